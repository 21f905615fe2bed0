"""Crash walks over damage: pages that never arrived, copies that disagree, crashes while partial recovery lasts."""

from __future__ import annotations

import asyncio

import pytest

from storage.engine import Engine
from storage.errors import AcknowledgeNothing
from storage.format.geometry import Geometry
from tests.support.damage import (
    copies_of,
    key_of,
    page_of,
    put_many,
    row_id_of,
    settled,
    slot_of,
    value_of,
    wreck_header,
    wreck_page,
)
from tests.support.engines import (
    CRASH_OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    free_slots,
    get,
    payload_of,
    peek,
    put,
    short_journal,
)
from tests.support.simulated_device import Image, Write

pytestmark = pytest.mark.usefixtures("small_devices")
KEYS = 100
BROKEN = [2, 5, 30]


async def settled_rig() -> tuple[Rig, Geometry]:
    rig = Rig(formatted_image(journal_blocks=64), options=CRASH_OPTIONS)
    await rig.start()
    return rig, await settled(rig, KEYS)


async def damaged_rig() -> tuple[Rig, Geometry]:
    """A running engine in partial recovery: ``BROKEN`` keys are skipped."""
    rig, geometry = await settled_rig()
    page = page_of(rig.engine, 0)
    places = [slot_of(rig.engine, n) for n in BROKEN]
    await rig.stop()
    image = rig.device.image.copy()
    wreck_page(image, geometry, page)
    for place in places:
        wreck_header(image, place)
    await rig.start_over(image)
    assert rig.engine.status().skipped_entries == len(BROKEN)
    return rig, geometry


def page_writes(rig: Rig, geometry: Geometry, since: int) -> list[Write]:
    areas = [(geometry.page_offset(c, 0), geometry.page_offset(c, geometry.pages)) for c in range(geometry.copies)]
    return [w for w in rig.device.writes if w.issued >= since and any(a <= w.offset_bytes < b for a, b in areas)]


async def expect(engine: Engine, expected: dict[bytes, bytes | None]) -> None:
    for key, value in expected.items():
        assert await peek(engine, key) == value, key


@pytest.mark.parametrize("torn", [False, True])
async def test_a_checkpoint_header_lands_and_a_page_does_not(torn: bool) -> None:
    """B3, R1: the page there verifies and yet is not the one the directory names: rebuilt from the older copy."""
    rig, geometry = await settled_rig()
    engine = rig.engine
    expected: dict[bytes, bytes | None] = {key_of(n): value_of(n) for n in range(KEYS)}
    for number in range(0, 60, 3):
        await engine.delete("n", key_of(number))
        expected[key_of(number)] = None
    for number in range(1, 60, 3):
        await put(engine, key_of(number), payload_of(number, 600))
        expected[key_of(number)] = payload_of(number, 600)
    begin = rig.device.now
    await engine.checkpoint()
    missing = page_writes(rig, geometry, begin)[0]
    image = rig.device.base.copy()
    for write in rig.device.writes:
        if write is not missing:
            image.write(write.offset_bytes, write.content)
        elif torn:
            image.write(write.offset_bytes, write.content[:1536])
    rig.device.image = image
    engine = await rig.crash(image)
    status = engine.status()
    assert not status.partial_recovery
    assert status.recovery.repaired_by_source["older_copy"] > 0
    assert status.recovery.repaired_by_source["record_header"] == 0
    await expect(engine, expected)
    check_accounts(engine)
    await engine.checkpoint()
    engine = await rig.reopen()
    assert engine.status().recovery.repaired_entries == 0
    await expect(engine, expected)
    await rig.stop()


async def test_a_page_write_that_never_happened_in_any_checkpoint_since() -> None:
    """A device that acknowledges and drops writes to one page: each copy keeps an old one; the journal has the rest."""
    rig, geometry = await settled_rig()
    engine = rig.engine
    page = page_of(engine, 0)
    stale = {geometry.page_offset(copy, page) for copy in range(3)}
    begin = rig.device.now
    await engine.delete("n", key_of(1))
    await engine.checkpoint()
    await put(engine, key_of(2), b"newer")
    await engine.checkpoint()
    image = rig.device.base.copy()
    for write in rig.device.writes:
        skip = write.issued >= begin and write.offset_bytes in stale
        content = write.content if not skip else b""
        image.write(write.offset_bytes, content)
        if skip:
            image.write(write.offset_bytes + 4096, write.content[4096:])
    engine = await rig.crash(image)
    assert not engine.status().partial_recovery
    assert await peek(engine, key_of(1)) is None
    assert await get(engine, key_of(2)) == b"newer"
    check_accounts(engine)
    await rig.stop()


async def test_deleted_then_checkpoint_then_the_newest_page_is_damaged_and_an_older_copy_lists_the_key() -> None:
    """D2, R1: the older page counts only together with all journal rows since that copy."""
    rig, geometry = await settled_rig()
    engine = rig.engine
    pages = {page_of(engine, 4)}
    await engine.delete("n", key_of(4))
    await put(engine, key_of(6), b"replaced")
    pages.add(page_of(engine, 6))
    await engine.checkpoint()
    newest = engine._checkpointer.newest
    assert newest is not None
    image = rig.device.crash_image()
    for page in pages:
        wreck_page(image, geometry, page, [newest.copy])
    engine = await rig.crash(image)
    assert not engine.status().partial_recovery
    assert await peek(engine, key_of(4)) is None
    assert await get(engine, key_of(6)) == b"replaced"
    # Now the next copy has it too, and the oldest still lists the key: two newest damaged.
    await put(engine, key_of(8), b"moves on")
    await engine.checkpoint()
    newest = engine._checkpointer.newest
    assert newest is not None
    image = rig.device.crash_image()
    for page in pages:
        wreck_page(image, geometry, page, [newest.copy])
    engine = await rig.crash(image)
    assert not engine.status().partial_recovery
    assert await peek(engine, key_of(4)) is None
    assert await get(engine, key_of(8)) == b"moves on"
    check_accounts(engine)
    await rig.stop()


async def test_every_crash_while_partial_keeps_evidence_report_and_mutations() -> None:
    """R4: start, mutations, compaction, stop: cut at any event, the next start reports exactly the same."""
    rig, geometry = await damaged_rig()
    evidence = copies_of(rig.device.image, geometry)
    engine = rig.engine
    clock = rig.clock
    history: list[tuple[int, bytes, bytes]] = []
    for round_ in range(14):
        numbers = list(range(KEYS - 40, KEYS))
        for begin in range(0, len(numbers), 10):
            part = numbers[begin : begin + 10]
            await asyncio.gather(*(put(engine, key_of(n), payload_of(round_ * 1000 + n, 200)) for n in part))
        history.append((rig.device.now, key_of(KEYS - 1), payload_of(round_ * 1000 + KEYS - 1, 200)))
        await engine.flush()
    assert engine._journal.tail > 1 and engine._journal.last_block > 60
    await rig.stop()
    device = rig.device
    for moment in [*range(60), *range(60, device.now, 7), device.now]:
        image = device.crash_image(moment, power_loss=moment % 2 == 1, keep=lambda w: w.offset_bytes % 3 == 0)
        again = Rig(image, options=CRASH_OPTIONS, clock=clock)
        await again.start()
        status = again.engine.status()
        assert status.partial_recovery
        assert status.skipped_entries == len(BROKEN)
        assert status.skipped_by_reason["checksum"] == len(BROKEN)
        assert not status.recovery.unknown_loss, moment
        assert status.capacity.slots.quarantined == len(BROKEN)
        assert copies_of(again.device.image, geometry) == evidence
        done = [value for at, _, value in history if at <= moment]
        if done and moment % 2 == 0:
            assert int((await get(again.engine, key_of(KEYS - 1)))[1:].split(b":")[0]) >= int(
                done[-1][1:].split(b":")[0]
            )
        for number in range(0, KEYS - 40, 9):
            assert await peek(again.engine, key_of(number)) == (None if number in BROKEN else value_of(number))
        check_accounts(again.engine)
        await again.stop()


@pytest.mark.parametrize("way_out", ["restart", "retry", "acknowledge"])
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_skipped_key_is_put_and_deleted_again(way_out: str, deleted: bool) -> None:
    """R5, D2: the entry that was skipped never comes back over what was done to its key since."""
    rig, geometry = await damaged_rig()
    engine = rig.engine
    key = key_of(BROKEN[0])
    await put(engine, key, b"since")
    if deleted:
        await engine.delete("n", key)
    await engine.flush()
    # The record header becomes readable again, as after a transient fault: the strongest temptation.
    image = rig.device.crash_image()
    skipped = next(e for e in engine.skipped(0, 10) if e.slot == BROKEN[0])
    assert skipped.slab is not None and skipped.slot is not None
    offset = geometry.slot_offset(skipped.slab, skipped.slot, 0)
    wreck_header(image, offset)
    engine = await rig.crash(image)
    if way_out == "retry":
        result = await engine.retry()
        assert result.restored == 0
    elif way_out == "acknowledge":
        await engine.acknowledge()
    for _ in range(3):
        assert await peek(engine, key) == (None if deleted else b"since")
        check_accounts(engine)
        engine = await rig.crash()
    if way_out == "acknowledge":
        with pytest.raises(AcknowledgeNothing):
            await engine.acknowledge()
        assert engine.status().capacity.slots.quarantined == 0
    else:
        assert engine.status().skipped_entries == len(BROKEN)
    await rig.stop()


async def test_a_journal_twice_the_rows_is_compacted_although_every_row_changed() -> None:
    """R4: the device is full and each of its entries is replaced again and again while partial recovery lasts."""
    rig = Rig(formatted_image(journal_blocks=64), options=CRASH_OPTIONS)
    await rig.start()
    geometry = rig.engine._index.geometry
    room = geometry.slabs * geometry.slots_per_slab(0)
    assert geometry.journal_blocks * geometry.rows_per_journal_block >= 2 * room
    await settled(rig, 100)
    page, place = page_of(rig.engine, 0), slot_of(rig.engine, 3)
    await rig.stop()
    image = rig.device.image.copy()
    wreck_page(image, geometry, page)
    wreck_header(image, place)
    engine = await rig.start_over(image)
    for round_ in range(4):
        for begin in range(0, room - 100, 32):
            numbers = range(begin, min(begin + 32, room - 100))
            await asyncio.gather(*(put(engine, b"fill %d" % n, payload_of(n + round_, 100)) for n in numbers))
        await engine.flush()
    assert engine.counters.puts["failed"] == 0
    engine = await rig.crash()
    assert engine.status().skipped_entries == 1
    for number in range(0, room - 100, 13):
        value = await peek(engine, b"fill %d" % number)
        assert value in (None, payload_of(number + 3, 100))
    check_accounts(engine)
    await rig.stop()


async def test_a_free_set_is_the_same_after_every_kind_of_end() -> None:
    """A1, R9: stopped with and without a checkpoint, killed, cut off: the free slots follow from the rows alone."""
    rig, _ = await settled_rig()
    engine = rig.engine
    for number in range(0, KEYS, 3):
        await engine.delete("n", key_of(number))
    await put_many(engine, range(200, 230))
    await engine.flush()
    free = free_slots(engine)
    row = row_id_of(engine, 200)
    endings: list[Image] = [rig.device.crash_image(), rig.device.crash_image(power_loss=True)]
    for checkpoint in (False, True):
        engine = await rig.reopen(checkpoint=checkpoint)
        assert free_slots(engine) == free
    for image in endings:
        engine = await rig.crash(image)
        assert free_slots(engine) == free
        assert row_id_of(engine, 200) == row
    await rig.stop()


async def test_short_journal_is_what_these_walks_run_on() -> None:
    """The helper that shortens the journal leaves the device's own rules alone."""
    with short_journal(64, reserve=8):
        rig, geometry = await settled_rig()
        assert geometry.journal_blocks == 64
        geometry.check()
        await rig.stop()
