"""Partial recovery: what is damaged is counted exactly, kept as evidence and never overwritten, until acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from unittest import mock

import pytest

from storage.errors import AcknowledgeNothing, CheckpointFrozen
from storage.format.geometry import Geometry
from storage.recovery.errors import TooMuchSkipped
from storage.status import EngineState, Reason
from tests.support.damage import (
    copies_of,
    key_of,
    page_of,
    put_many,
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
    payload_of,
    peek,
    put,
    short_journal,
)
from tests.support.simulated_device import Image, cut_all

JOURNAL_BLOCKS = 128
KEYS = 150
BROKEN = [3, 7, 20, 21, 60]
"""Keys whose page is lost in every copy and whose record header is damaged too."""


@pytest.fixture(autouse=True)
def _short_journal() -> Iterator[None]:
    with short_journal(JOURNAL_BLOCKS, reserve=16):
        yield


@pytest.fixture(autouse=True)
async def _cut_devices() -> AsyncIterator[None]:
    yield
    cut_all()


async def damaged(broken: list[int] | None = None) -> tuple[Rig, Geometry, Image]:
    """A stopped cache of ``KEYS`` keys whose first page is lost in every copy; its image, not yet started."""
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS), options=CRASH_OPTIONS)
    engine = await rig.start()
    geometry = await settled(rig, KEYS)
    page = page_of(engine, 0)
    assert page == page_of(engine, 60) and page != page_of(engine, 64)
    places = [slot_of(engine, n) for n in (BROKEN if broken is None else broken)]
    await rig.stop()
    image = rig.device.image.copy()
    wreck_page(image, geometry, page)
    for place in places:
        wreck_header(image, place)
    return rig, geometry, image


async def check_partial(rig: Rig) -> None:
    """The report is exactly that of the damage, however often it was restarted."""
    status = rig.engine.status()
    assert status.partial_recovery
    assert status.state is EngineState.DEGRADED
    assert status.reasons == [Reason.PARTIAL_RECOVERY]
    assert status.skipped_entries == len(BROKEN)
    assert {reason: count for reason, count in status.skipped_by_reason.items() if count} == {"checksum": len(BROKEN)}
    assert status.auto_checkpoint.paused_reason == "partial_recovery"
    assert not status.auto_checkpoint.enabled
    assert status.capacity.slots.quarantined == len(BROKEN)
    assert status.recovery.repaired_by_source["record_header"] == 63 - len(BROKEN)
    assert status.recovery.repaired_entries == 63 - len(BROKEN)
    slots = [(entry.slab, entry.slot) for entry in rig.engine.skipped(0, 100)]
    assert sorted(slots) == [(slots[0][0], n) for n in BROKEN]
    assert all(len(entry.raw) == 128 for entry in rig.engine.skipped(0, 100))
    check_accounts(rig.engine)


async def test_r1_r2_one_bad_entry_costs_one_entry_and_is_counted_with_reason_and_place() -> None:
    rig, _, image = await damaged()
    await rig.start_over(image)
    await check_partial(rig)
    assert rig.engine.status().recovery.recovered_entries == KEYS - len(BROKEN)
    for number in range(KEYS):
        assert await peek(rig.engine, key_of(number)) == (None if number in BROKEN else value_of(number))
    await rig.stop()


async def test_r4_copies_stay_byte_identical_over_thousands_of_mutations_restarts_and_shutdowns() -> None:
    rig, geometry, image = await damaged()
    evidence = copies_of(image, geometry)
    engine = await rig.start_over(image)
    expected: dict[bytes, bytes | None] = {key_of(n): None if n in BROKEN else value_of(n) for n in range(KEYS)}
    for life in range(3):
        for step in range(1000):
            number = (step * 7 + life) % 120
            if step % 11 == 3 and expected.get(key_of(number)) is not None:
                await engine.delete("n", key_of(number))
                expected[key_of(number)] = None
            elif number not in BROKEN:
                expected[key_of(number)] = payload_of(step, 30 + step % 900)
                await put(engine, key_of(number), payload_of(step, 30 + step % 900))
            if step % 100 == 0:
                with pytest.raises(CheckpointFrozen):
                    await engine.checkpoint()
                await engine.flush()
        assert copies_of(rig.device.image, geometry) == evidence
        engine = await (rig.reopen() if life != 1 else rig.crash())
        assert copies_of(rig.device.image, geometry) == evidence
        assert engine.status().skipped_entries == len(BROKEN)
        assert engine.status().partial_recovery
        assert engine.counters.checkpoints == {"success": 0, "failed": 0}
        check_accounts(engine)
        for key, value in expected.items():
            assert await peek(engine, key) == value
    await rig.stop()
    assert copies_of(rig.device.image, geometry) == evidence


async def test_r4_r9_ten_restarts_change_no_count_and_no_free_slot() -> None:
    rig, _, image = await damaged()
    engine = await rig.start_over(image)
    await put(engine, b"new while partial", b"survives")
    first = engine.status().recovery
    free = free_slots(engine)
    for restart in range(10):
        engine = await (rig.crash() if restart % 3 == 2 else rig.reopen())
        await check_partial(rig)
        assert free_slots(engine) == free
        assert engine.status().recovery.repaired_by_source == first.repaired_by_source
        assert await peek(engine, b"new while partial") == b"survives"
    await rig.stop()


async def test_r4_the_journal_is_compacted_while_partial_and_nothing_is_lost() -> None:
    rig, geometry, image = await damaged()
    evidence = copies_of(image, geometry)
    engine = await rig.start_over(image)
    expected = {key_of(n): value_of(n) for n in range(KEYS) if n not in BROKEN}
    for round_ in range(1, 41):
        numbers = [n for n in range(60) if n not in BROKEN]
        for begin in range(0, len(numbers), 5):
            await asyncio.gather(*(put(engine, key_of(n), value_of(n + round_)) for n in numbers[begin : begin + 5]))
        await engine.flush()
        expected |= {key_of(n): value_of(n + round_) for n in numbers}
    assert engine._journal.last_block > 3 * JOURNAL_BLOCKS, "the journal was filled several times"
    assert engine._journal.used_blocks <= JOURNAL_BLOCKS
    for restart in range(3):
        engine = await (rig.crash() if restart else rig.reopen())
        status = engine.status()
        assert status.recovery.unknown_loss is False
        assert status.skipped_entries == len(BROKEN)
        assert status.recovery.repaired_by_source["record_header"] == 63 - len(BROKEN)
        for key, value in expected.items():
            assert await peek(engine, key) == value
        check_accounts(engine)
    assert copies_of(rig.device.image, geometry) == evidence
    await rig.stop()


async def test_r5_acknowledge_frees_the_slots_and_checkpoints_resume() -> None:
    rig, _, image = await damaged()
    engine = await rig.start_over(image)
    status = await engine.acknowledge()
    assert status.acknowledged_at == rig.clock.seconds
    after = engine.status()
    assert not after.partial_recovery
    assert after.skipped_entries == 0
    assert after.auto_checkpoint.enabled
    assert after.state is EngineState.READY
    assert after.recovery.repaired_by_source["record_header"] == 63 - len(BROKEN), "the report stays"
    assert engine.counters.checkpoints["success"] == 1
    await engine.flush()
    assert engine.status().capacity.slots.quarantined == 0
    check_accounts(engine)
    with pytest.raises(AcknowledgeNothing):
        await engine.acknowledge()
    await engine.checkpoint()
    engine = await rig.reopen()
    assert not engine.status().partial_recovery
    assert engine.status().recovery.recovered_entries == KEYS - len(BROKEN)
    await _fill_to_the_last_slot(rig)
    await rig.stop()


async def _fill_to_the_last_slot(rig: Rig) -> None:
    """A1: every slot of every slab can hold an entry; nothing leaked."""
    engine = rig.engine
    geometry = engine._index.geometry
    room = geometry.slabs * geometry.slots_per_slab(0)
    present = engine.status().capacity.slots.live
    for begin in range(0, room - present, 50):
        keys = [b"filler %d" % n for n in range(begin, min(begin + 50, room - present))]
        await asyncio.gather(*(put(engine, key, b"small") for key in keys))
    assert engine.status().capacity.slots.live == room
    assert engine.counters.evictions["evicted"] == 0
    check_accounts(engine)


async def test_r5_an_acknowledgement_that_a_crash_cuts_off_is_complete_or_not_there() -> None:
    rig, _, image = await damaged()
    engine = await rig.start_over(image)
    first = rig.device.now
    await engine.acknowledge()
    device = rig.device
    for moment in range(first, device.now + 1, 2):
        engine = await rig.crash(device.crash_image(moment))
        status = engine.status()
        assert status.skipped_entries in (0, len(BROKEN))
        assert status.partial_recovery == bool(status.skipped_entries)
        if not status.partial_recovery and status.capacity.slots.quarantined:
            await engine.acknowledge()
            await engine.flush()
            assert engine.status().capacity.slots.quarantined == 0
        check_accounts(engine)
        for number in range(0, KEYS, 7):
            assert await peek(engine, key_of(number)) == (None if number in BROKEN else value_of(number))
    await rig.stop()


async def test_r6_too_much_skipped_refuses_the_start_and_changes_nothing() -> None:
    broken = list(range(0, 60, 2))
    rig, _, image = await damaged(broken)
    strict = replace(CRASH_OPTIONS, max_skipped_floor=10, max_skipped_ratio=0.05)
    with pytest.raises(TooMuchSkipped):
        await rig.start_over(image, options=strict)
    assert rig.device.image == image
    assert rig.device.events == []
    assert rig.engine.state is EngineState.FAILED
    await rig.start_over(image, options=replace(strict, accept_loss=True))
    assert rig.engine.status().skipped_entries == len(broken)
    check_accounts(rig.engine)
    await rig.stop()


async def test_l1_a_report_longer_than_the_queue_of_the_journal_does_not_fail_the_start() -> None:
    rig, _, image = await damaged()
    with mock.patch("storage.journal.QUEUE_MAX_ROWS", 3), mock.patch("storage.starting.UNITS_AT_ONCE", 2):
        await rig.start_over(image)
    await check_partial(rig)
    await rig.reopen()
    await check_partial(rig)
    await rig.stop()


async def test_r6_both_limits_must_be_passed() -> None:
    rig, _, image = await damaged()
    await rig.start_over(image, options=replace(CRASH_OPTIONS, max_skipped_floor=len(BROKEN), max_skipped_ratio=0.0))
    await rig.stop()
    await rig.start_over(image, options=replace(CRASH_OPTIONS, max_skipped_floor=0, max_skipped_ratio=0.5))
    await rig.stop()


@pytest.mark.parametrize("from_copy", ["older", "other_page", "other_copy", "other_device"])
async def test_b3_a_page_that_verifies_but_belongs_elsewhere_is_not_valid(from_copy: str) -> None:
    """Stale, of another page, of another copy, of another device: found, and repaired from the older copy (R1)."""
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS), options=CRASH_OPTIONS)
    engine = await rig.start()
    geometry = await settled(rig, 100)
    page = page_of(engine, 0)
    newest = engine._checkpointer.newest
    assert newest is not None
    target = engine._checkpointer._target().copy
    before = rig.device.image.read(geometry.page_offset(target, page), 4096)
    await put_many(engine, range(5), version=1000)
    await engine.checkpoint()
    newest = engine._checkpointer.newest
    assert newest is not None and newest.copy == target
    await rig.stop()
    image = rig.device.image.copy()
    place = geometry.page_offset(target, page)
    other_device = bytearray(image.read(place, 4096))
    other_device[16:32] = bytes(16)
    content = {
        "older": before,
        "other_page": image.read(geometry.page_offset(target, page_of(engine, 70)), 4096),
        "other_copy": image.read(geometry.page_offset((target + 1) % 3, page), 4096),
        "other_device": _resealed(other_device),
    }[from_copy]
    assert content != image.read(place, 4096)
    image.write(place, content)
    engine = await rig.start_over(image)
    status = engine.status()
    assert not status.partial_recovery
    assert status.recovery.repaired_by_source["older_copy"] > 50
    for number in range(100):
        assert await peek(engine, key_of(number)) == value_of(number + 1000 if number < 5 else number)
    check_accounts(engine)
    await rig.stop()


def _resealed(page: bytearray) -> bytes:
    from storage.format.checksums import crc32c_without

    page[8:12] = crc32c_without(page, 8).to_bytes(4, "little")
    return bytes(page)


async def test_r1_r3_a_lost_journal_block_is_a_loss_of_unknown_extent_and_free_slots_are_examined() -> None:
    """R4: a free slot whose header shows an entry the gap may have taken is set aside, not handed out."""
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS), options=CRASH_OPTIONS)
    engine = await rig.start()
    geometry = await settled(rig, 100)
    lost = engine._journal.last_block + 1
    await put(engine, b"in the gap", b"value that is lost")
    assert engine._journal.last_block == lost
    await put(engine, b"behind the gap", b"still known")
    await engine.flush()
    await put(engine, b"last", b"carries how far it was flushed")
    row_id = engine._commit.published(engine._identity.digest(1, b"in the gap"))[0]  # type: ignore[index]
    image = rig.device.crash_image()
    wreck = geometry.journal_block_offset(lost)
    image.write(wreck, bytes(512) + image.read(wreck + 512, 3584))
    evidence = copies_of(image, geometry)
    engine = await rig.crash(image)
    status = engine.status()
    assert status.partial_recovery
    assert status.recovery.unknown_loss
    assert status.recovery.journal == "gap"
    assert await peek(engine, b"in the gap") is None
    assert await peek(engine, b"behind the gap") == b"still known"
    before = status.capacity.slots.quarantined
    await put_many(engine, range(200, 420))
    assert engine._index.table.state(row_id) != 1, "the slot in the gap was not handed out"
    status = engine.status()
    assert status.capacity.slots.quarantined == before + 1
    assert status.skipped_by_reason["journal_gap"] == status.skipped_entries == 1
    for _ in range(3):
        engine = await rig.crash()
        status = engine.status()
        assert status.recovery.unknown_loss
        assert status.skipped_by_reason["journal_gap"] == status.skipped_entries == 1
        assert copies_of(rig.device.image, geometry) == evidence
        check_accounts(engine)
    await engine.acknowledge()
    engine = await rig.reopen()
    assert not engine.status().partial_recovery
    assert engine.status().capacity.slots.quarantined == 0
    await _fill_to_the_last_slot(rig)
    await rig.stop()


async def test_r3_lost_unflushed_is_counted_exactly() -> None:
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS), options=CRASH_OPTIONS)
    engine = await rig.start()
    geometry = await settled(rig, 20)
    for number in range(10):
        await put(engine, key_of(number), payload_of(number, 3000))
    await put(engine, b"fresh", b"never flushed")
    start, stop = geometry.journal_offset, geometry.journal_offset + geometry.journal_bytes
    image = rig.device.crash_image(power_loss=True, keep=lambda w: start <= w.offset_bytes < stop)
    engine = await rig.crash(image)
    status = engine.status()
    assert status.recovery.lost_unflushed == 11
    assert not status.partial_recovery
    for number in range(20):
        assert await peek(engine, key_of(number)) == value_of(number)
    assert await peek(engine, b"fresh") is None
    check_accounts(engine)
    engine = await rig.reopen()
    assert engine.status().recovery.lost_unflushed == 0
    await rig.stop()


async def test_r1_a_page_lost_in_the_newest_copy_is_rebuilt_exactly_from_the_older_one() -> None:
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS), options=CRASH_OPTIONS)
    engine = await rig.start()
    geometry = await settled(rig, 100)
    for number in range(0, 40, 2):
        await engine.delete("n", key_of(number))
    for number in range(1, 40, 4):
        await put(engine, key_of(number), payload_of(number, 999))
    await engine.checkpoint()
    newest = engine._checkpointer.newest
    assert newest is not None
    pages = {page_of(engine, n) for n in range(41, 100)}
    await rig.stop()
    image = rig.device.image.copy()
    for page in pages:
        wreck_page(image, geometry, page, [newest.copy])
    engine = await rig.start_over(image)
    assert not engine.status().partial_recovery
    assert engine.status().recovery.repaired_by_source["record_header"] == 0
    for number in range(100):
        expected = value_of(number)
        if number < 40:
            expected = None if number % 2 == 0 else payload_of(number, 999) if number % 4 == 1 else expected  # type: ignore[assignment]
        assert await peek(engine, key_of(number)) == expected
    check_accounts(engine)
    await rig.stop()
