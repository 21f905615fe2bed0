"""Damage of a closed device, bit by bit: every structure that roots a recovery is flipped and torn everywhere.

Whatever is damaged, a start finds one of the states that the cache had, or refuses with a reason; it never goes back
to an older state without a word, and never ends in another way (B3, B4, D4, R1, R3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from storage.engine import Engine
from storage.entries import Durability
from storage.errors import FormatUnsupported, RawblockdError
from storage.format.checkpoint_copy import decode_copy_header
from storage.format.geometry import Geometry, plan
from storage.format.journal_block import decode_journal_header
from storage.format.layout import Undecodable
from storage.format.row import SlotState
from storage.format.superblock import Superblock, decode_superblock
from storage.formatting import write_format
from storage.recovery.recover import Recovered, RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress
from tests.support.engines import CRASH_OPTIONS, SECRET, UUID, FakeClock, payload_of, put, short_journal
from tests.support.simulated_device import SECTOR_BYTES, Image, SimulatedDevice, Write
from tests.support.virtual_loop import run_virtually

BLOCK_BYTES = 4096
JOURNAL_BLOCKS = 40
DEVICE_BYTES = 8 << 20

State = dict[bytes, int]
"""Digest of each live key → its write id."""


@pytest.fixture(autouse=True)
def _short_journal() -> Iterator[None]:
    with short_journal(JOURNAL_BLOCKS, reserve=4):
        yield


@dataclass
class Lived:
    """A device after a life, and every state it was in."""

    geometry: Geometry
    image: Image
    newest_copy: int
    last_block: int
    flushed_through: int
    journal_block: int
    """The first block that the newest copy does not cover."""
    states: list[State] = field(default_factory=list)
    checkpoint: SimulatedDevice | None = None
    """The device on which one more checkpoint was recorded."""


def state_of(engine_or_recovered: Engine | Recovered) -> State:
    index = engine_or_recovered._index if isinstance(engine_or_recovered, Engine) else engine_or_recovered.index
    row_ids = index.table.row_ids()
    lines = index.table.lines[row_ids]
    live = lines[lines["state"] == SlotState.LIVE]
    return {line["digest"].tobytes(): int(line["write_id"]) for line in live}


async def _live() -> Lived:
    """Every copy written, rows behind the newest one, some of them flushed, the journal's ring gone round."""
    geometry = plan(DEVICE_BYTES, slab_bytes=1 << 20, smallest_slot_bytes=65536)
    image = Image(geometry.device_bytes)
    write_format(SimulatedDevice(image), Superblock(UUID, SECRET, 1_600_000_000_000, geometry))
    device = SimulatedDevice(image)
    engine = Engine(device, CRASH_OPTIONS, FakeClock())
    await engine.start()
    states = [state_of(engine)]

    async def step(key: bytes, number: int, durability: Durability = Durability.JOURNAL) -> None:
        await put(engine, key, payload_of(number, 100 + number), durability=durability)
        states.append(state_of(engine))

    for number in range(12):
        await step(b"first %d" % (number % 4), number)
        await step(b"both", 10 + number)
        await engine.checkpoint()
        await engine.flush()
    for number in range(3):
        await step(b"flushed %d" % number, 20 + number, Durability.FLUSH)
    await engine.delete("n", b"first 0")
    states.append(state_of(engine))
    await engine.flush()
    await step(b"unflushed", 30)
    await step(b"both", 31)
    journal, newest = engine._journal, engine._checkpointer.newest
    assert newest is not None and newest.header is not None
    lived = Lived(
        geometry,
        device.image.copy(),
        newest.copy,
        journal.last_block,
        journal.flushed_through,
        newest.header.journal_block,
        states,
    )
    device.forget()
    await engine.checkpoint()
    lived.checkpoint = device
    assert journal.last_block > JOURNAL_BLOCKS, "the ring must have gone round"
    assert lived.journal_block < lived.flushed_through < lived.last_block
    return lived


@pytest.fixture(scope="module")
def lived() -> Lived:
    with short_journal(JOURNAL_BLOCKS, reserve=4):
        return run_virtually(_live())


def start(image: Image) -> Recovered | RawblockdError:
    """A recovery of the image. Anything else that it ends with fails the test."""
    device = SimulatedDevice(image)
    try:
        recovered = recover(device, RecoveryLimits(), RecoveryProgress(), 1_700_000_000.0)
    except RawblockdError as error:
        assert str(error)
        return error
    assert not device.events, "recovery writes nothing"
    return recovered


def words(recovered: Recovered) -> list[str]:
    """What the report says of losses."""
    report = recovered.report
    found = [report.journal] if report.journal != "clean" else []
    found += ["unknown_loss"] if report.unknown_loss else []
    found += ["skipped"] if report.skipped else []
    return found + (["lost_unflushed"] if report.lost_unflushed else [])


def check(lived: Lived, outcome: Recovered | RawblockdError, what: str, *, exact: bool = False) -> str:
    """The rule of this page; returns the kind of outcome."""
    if isinstance(outcome, RawblockdError):
        assert not exact, f"{what}: refused, {outcome}"
        return outcome.code
    state, said = state_of(outcome), words(outcome)
    if state == lived.states[-1]:
        return "whole"
    assert not exact, f"{what}: not the last state ({said})"
    assert said, f"{what}: an older state without a word"
    if "unknown_loss" in said:
        ever = {(digest, write_id) for known in lived.states for digest, write_id in known.items()}
        assert set(state.items()) <= ever, f"{what}: an entry that never was"
        return "unknown_loss"
    assert state in lived.states, f"{what}: a state that never was ({said})"
    return said[0]


def places(lived: Lived) -> dict[str, int]:
    """Every block that roots a recovery, by name."""
    geometry = lived.geometry
    first, last = geometry.superblock_offsets
    found = {"superblock A": first, "superblock B": last}
    found |= {f"header of copy {copy}": geometry.copy_offset(copy) for copy in range(geometry.copies)}
    found["flushed journal block"] = geometry.journal_block_offset(lived.flushed_through - 1)
    found["last journal block"] = geometry.journal_block_offset(lived.last_block)
    return found


PLACES = (
    "superblock A",
    "superblock B",
    "header of copy 0",
    "header of copy 1",
    "header of copy 2",
    "flushed journal block",
    "last journal block",
)


def flipped(image: Image, offset_bytes: int, bits: int) -> Image:
    damaged = image.copy()
    damaged.write(offset_bytes, bytes([image.read(offset_bytes, 1)[0] ^ bits]))
    return damaged


def decoder_of(lived: Lived, name: str) -> Callable[[bytearray], object]:
    geometry = lived.geometry
    if name.startswith("superblock"):
        place = "AB".index(name[-1])
        return lambda block: decode_superblock(block, place)
    if name.startswith("header"):
        copy = int(name[-1])
        return lambda block: decode_copy_header(block, UUID, copy=copy, pages=geometry.pages)
    number = lived.last_block if name.startswith("last") else lived.flushed_through - 1
    position = number % geometry.journal_blocks
    return lambda block: decode_journal_header(block, UUID, position=position, journal_blocks=geometry.journal_blocks)


@pytest.mark.parametrize("name", PLACES)
def test_every_bit_before_the_decoder(lived: Lived, name: str) -> None:
    """B3, B4: no flip of a single bit passes, wherever in the block it is."""
    decode = decoder_of(lived, name)
    block = bytearray(lived.image.read(places(lived)[name], BLOCK_BYTES))
    decode(block)
    for bit in range(BLOCK_BYTES * 8):
        block[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Undecodable):
            decode(block)
        block[bit // 8] ^= 1 << bit % 8
    decode(block)


EXACT = tuple(name for name in PLACES if "journal" not in name)


@pytest.mark.parametrize("name", PLACES)
def test_every_byte_before_a_recovery(lived: Lived, name: str) -> None:
    """R1, R3: a second source settles superblocks and copies exactly; a loss in the journal is never silent.

    Every byte of the structure, and of the zeros behind it, all of which the decoder refuses, every eighth.
    """
    offset = places(lived)[name]
    assert check(lived, start(lived.image), "undamaged", exact=True) == "whole"
    used = len(lived.image.read(offset, BLOCK_BYTES).rstrip(b"\0")) + SECTOR_BYTES // 8
    for byte in [*range(used), *range(used, BLOCK_BYTES, 8)]:
        bits = 1 << byte % 8 if byte % 3 else 0xFF
        outcome = start(flipped(lived.image, offset + byte, bits))
        kind = check(lived, outcome, f"{name}, byte {byte} ^ {bits:#04x}", exact=name in EXACT)
        if name in EXACT:
            assert isinstance(outcome, Recovered)
            verdicts = [*outcome.report.superblocks, *(copy.verdict for copy in outcome.report.copies)]
            assert sum(verdict != "valid" for verdict in verdicts) == 1, f"{name}, byte {byte}: {verdicts}"
        else:
            assert kind == ("unknown_loss" if name == "flushed journal block" else "torn_tail")


@pytest.mark.parametrize("first", range(3))
def test_two_copies_at_once(lived: Lived, first: int) -> None:
    """R1: one whole copy is enough while the journal reaches back to it; without any, headers and journal tell."""
    geometry = lived.geometry
    second = (first + 1) % geometry.copies
    image = flipped(lived.image, geometry.copy_offset(first) + 40, 1)
    for byte in range(0, BLOCK_BYTES, 61):
        damaged = flipped(image, geometry.copy_offset(second) + byte, 0x80)
        check(lived, start(damaged), f"copies {first} and {second}, byte {byte}", exact=True)
        none_left = flipped(damaged, geometry.copy_offset((first + 2) % geometry.copies) + byte, 0x80)
        outcome = start(none_left)
        check(lived, outcome, f"all copies, byte {byte}")
        assert isinstance(outcome, RawblockdError) or outcome.report.rebuilt


def test_both_superblocks_at_once(lived: Lived) -> None:
    """D5, B3: then nobody knows what this device is, and the start says so."""
    first, last = lived.geometry.superblock_offsets
    for byte in range(0, BLOCK_BYTES, 7):
        outcome = start(flipped(flipped(lived.image, first + byte, 1), last + byte, 1))
        assert isinstance(outcome, RawblockdError) and not isinstance(outcome, FormatUnsupported)
        assert 10 <= outcome.exit_code <= 19


def test_pages_directory_and_catalogue_of_the_newest_copy(lived: Lived) -> None:
    """R1: every 16th byte of what the newest copy holds; an older copy and the journal make it good exactly."""
    geometry, copy = lived.geometry, lived.newest_copy
    begin = geometry.directory_offset(copy)
    areas = {
        "directory": (begin, geometry.directory_blocks * BLOCK_BYTES),
        "catalogue": (geometry.catalogue_offset(copy), BLOCK_BYTES),
        "pages": (geometry.page_offset(copy, 0), geometry.pages * BLOCK_BYTES),
    }
    for name, (offset, size) in areas.items():
        for byte in range(0, size, 16 if size <= 4 * BLOCK_BYTES else 64):
            check(lived, start(flipped(lived.image, offset + byte, 4)), f"{name}, byte {byte}", exact=True)


def test_a_checkpoint_torn_at_every_sector(lived: Lived) -> None:
    """D4, R1: whatever of a checkpoint arrived, and in whichever order, the state is the same, and nothing is lost."""
    device = lived.checkpoint
    assert device is not None
    copies = [w for w in device.writes if not _in_slabs(lived.geometry, w)]
    header = copies[-1]
    assert header.content.startswith(b"RAWBLKCP")
    assert len({w.offset_bytes for w in copies}) >= 4, "pages, directory, catalogue, header"
    count = 0
    for write in copies:
        for cut in range(0, len(write.content) + 1, SECTOR_BYTES):
            for what, part in (("head", (0, cut)), ("tail", (cut, len(write.content)))):
                image = device.crash_image(write.issued + 1, keep=_only(write, part))
                outcome = start(image)
                check(lived, outcome, f"{what} of {write.offset_bytes} cut at {cut}", exact=True)
                assert isinstance(outcome, Recovered)
                assert set(words(outcome)) <= {"torn_tail"}
                count += 1
    assert count >= 2 * 9 * 4


def test_a_page_that_never_arrived_under_a_whole_header(lived: Lived) -> None:
    """B3, R1: a device that lies about its flushes: each write of the checkpoint missing or torn, the header there."""
    device = lived.checkpoint
    assert device is not None
    copies = [w for w in device.writes if not _in_slabs(lived.geometry, w)]
    for victim in copies[:-1]:
        for cut in range(0, len(victim.content), SECTOR_BYTES):
            image = device.base.copy()
            for write in device.writes:
                image.write(write.offset_bytes, write.content[: cut if write is victim else None])
            check(lived, start(image), f"write at {victim.offset_bytes} cut at {cut}", exact=True)


def test_every_row_of_a_page_no_copy_has(lived: Lived) -> None:
    """R1, R2: the same page damaged in all copies is settled line by line, or each loss is listed."""
    geometry = lived.geometry
    for page in range(geometry.pages):
        for byte in range(0, BLOCK_BYTES, 64):
            image = lived.image
            for copy in range(geometry.copies):
                image = flipped(image, geometry.page_offset(copy, page) + byte + 9, 2)
            outcome = start(image)
            check(lived, outcome, f"page {page} of all copies, byte {byte}")
            if isinstance(outcome, Recovered):
                missing = lived.states[-1].keys() - state_of(outcome).keys()
                assert len(missing) <= len(outcome.report.skipped)
                table = outcome.index.table
                quarantined = np.count_nonzero(table.lines["state"][table.row_ids()] == SlotState.QUARANTINED)
                assert quarantined == len(outcome.report.skipped), "evidence is kept (R4)"


def _only(write: Write, part: tuple[int, int]) -> Callable[[Write], list[tuple[int, int]] | bool]:
    """Of the loose writes all whole, but of this one only a part."""
    return lambda loose: [part] if loose is write else True


def _in_slabs(geometry: Geometry, write: Write) -> bool:
    start_byte = geometry.slabs_offset
    in_slab = start_byte <= write.offset_bytes < start_byte + geometry.slabs * geometry.slab_bytes
    journal = geometry.journal_offset
    return in_slab or journal <= write.offset_bytes < journal + geometry.journal_bytes
