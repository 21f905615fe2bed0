"""Faults while the engine runs: corruption, unreadable slots, writes and a journal that fail (R5, R7, R8, D1, D3)."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from unittest import mock

import pytest

import storage.engine_life
from storage.buffers import BufferArena
from storage.device.counters import OpKind
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import (
    AcknowledgeNothing,
    EntryCorrupt,
    EntryUnreadable,
    FlushFailed,
    JournalUnavailable,
    NotFormatted,
    SettingsInvalid,
    WriteFailed,
)
from storage.status import EngineState, Reason
from tests.support.engines import (
    OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    peek,
    put,
    short_journal,
    until,
)
from tests.support.simulated_device import Fault, Image, SimulatedDevice, fail


def place_of(rig: Rig, key: bytes) -> tuple[int, int]:
    """Row id and offset of a key's slot."""
    found = rig.engine._commit.published(rig.engine._identity.digest(1, key))
    assert found is not None
    return found[0], rig.engine._index.table.slot_offset(found[0])


def journal_fault(rig: Rig, times: int = -1) -> Fault:
    geometry = rig.engine._index.geometry
    start = geometry.journal_offset
    return Fault(OpKind.WRITE, errno.EIO, start_byte=start, stop_byte=start + geometry.journal_bytes, times=times)


@pytest.mark.parametrize("size", [300, 5000, 1_050_000])
@pytest.mark.parametrize("where", ["header", "payload"])
async def test_r8_corruption_found_by_a_read(rig: Rig, size: int, where: str) -> None:
    """A miss, a quarantined slot as a journaled row change, kept over restarts, freed by acknowledge (R5)."""
    engine = rig.engine
    await put(engine, b"key", payload_of(1, size))
    await put(engine, b"other", b"untouched")
    row_id, offset = place_of(rig, b"key")
    rig.device.flip(offset + (50 if where == "header" else size - 1))
    with pytest.raises(EntryCorrupt):
        await get(engine, b"key")
    assert engine.counters.corruptions["read"] == 1
    assert engine.counters.lookups["corrupt"] == 1
    assert await peek(engine, b"key") is None
    assert engine.status().capacity.slots.quarantined == 1
    assert engine.state is EngineState.DEGRADED
    assert engine.reasons == [Reason.CORRUPTION]
    check_accounts(engine)
    for restart in range(3):
        engine = await (rig.crash() if restart == 1 else rig.reopen())
        assert engine.status().capacity.slots.quarantined == 1
        assert not engine.status().partial_recovery
        assert await peek(engine, b"key") is None
        assert await get(engine, b"other") == b"untouched"
    await put(engine, b"key", b"new")
    assert place_of(rig, b"key")[0] != row_id
    await engine.acknowledge()
    await engine.flush()
    assert engine.status().capacity.slots.quarantined == 0
    assert engine.state is EngineState.READY
    assert await get(engine, b"key") == b"new"
    with pytest.raises(AcknowledgeNothing):
        await engine.acknowledge()


async def test_r7_a_transfer_error_is_not_yet_damage(rig: Rig) -> None:
    """Bytes flipped in one read, or one EIO, and right in the next: a hit, nothing quarantined."""
    engine = rig.engine
    await put(engine, b"key", payload_of(1, 5000))
    _, offset = place_of(rig, b"key")
    rig.device.faults.append(fail(OpKind.READ, start_byte=offset, stop_byte=offset + 4096, times=1))
    assert await get(engine, b"key") == payload_of(1, 5000)
    assert engine.status().capacity.slots.quarantined == 0


async def test_r8_only_the_row_that_failed_is_quarantined(rig: Rig) -> None:
    """The key is replaced while the read of its old record fails: the new entry stays, the answer is the new one."""
    engine, device = rig.engine, rig.device
    await put(engine, b"key", payload_of(1, 5000))
    _, offset = place_of(rig, b"key")
    device.flip(offset + 3000)
    device.hold = lambda kind, at, size: kind is OpKind.READ and at == offset
    reading = asyncio.create_task(get(engine, b"key"))
    await until(lambda: bool(device.held))
    await put(engine, b"key", payload_of(2, 5000))
    device.release_all()
    assert await reading == payload_of(2, 5000)
    assert engine.status().capacity.slots.quarantined == 0


async def test_r7_one_unreadable_slot_is_quarantined(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", payload_of(1, 5000))
    await put(engine, b"other", payload_of(2, 5000))
    _, offset = place_of(rig, b"key")
    rig.device.faults.append(fail(OpKind.READ, start_byte=offset, stop_byte=offset + 4096))
    with pytest.raises(EntryUnreadable):
        await get(engine, b"key")
    assert engine.counters.lookups["error"] == 1
    assert await get(engine, b"other") == payload_of(2, 5000)
    assert engine.status().capacity.slots.quarantined == 1
    assert await peek(engine, b"key") is None


async def test_a_payload_write_that_fails_gives_everything_back(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", payload_of(1, 3000))
    geometry = engine._index.geometry
    rig.device.faults.append(fail(OpKind.WRITE, start_byte=geometry.slabs_offset, times=1))
    with pytest.raises(WriteFailed):
        await put(engine, b"key", payload_of(2, 3000))
    assert await get(engine, b"key") == payload_of(1, 3000)
    await put(engine, b"key", payload_of(3, 3000))
    assert await get(engine, b"key") == payload_of(3, 3000)


async def test_a_flush_that_fails_refuses_the_level_flush_only(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"1")
    rig.device.faults.append(fail(OpKind.FLUSH, times=1))
    with pytest.raises(FlushFailed):
        await put(engine, b"key", b"2", durability=Durability.FLUSH)
    assert await get(engine, b"key") == b"2"
    await put(engine, b"key", b"3", durability=Durability.FLUSH)


async def test_d1_d3_a_journal_that_fails_undoes_what_is_queued_and_keeps_level_none(rig: Rig) -> None:
    engine = rig.engine
    for number in range(4):
        await put(engine, b"key %d" % number, payload_of(number, 2000))
    before = engine.status().capacity.slots
    fault = journal_fault(rig)
    rig.device.faults.append(fault)
    refused = await asyncio.gather(
        *(put(engine, b"key %d" % n, payload_of(n + 10, 2000)) for n in range(2)),
        *(put(engine, b"fresh %d" % n, payload_of(n, 2000)) for n in range(20)),
        engine.delete("n", b"key 2"),
        return_exceptions=True,
    )
    assert all(isinstance(result, JournalUnavailable) for result in refused)
    after = engine.status().capacity.slots
    assert (after.free, after.live, after.in_flight) == (before.free, before.live, 0)
    assert engine.state is EngineState.READ_ONLY
    assert Reason.JOURNAL_UNAVAILABLE in engine.reasons
    for number in range(4):
        assert await get(engine, b"key %d" % number) == payload_of(number, 2000)
    with pytest.raises(JournalUnavailable):
        await put(engine, b"key 0", b"x")
    with pytest.raises(JournalUnavailable):
        await engine.delete("n", b"key 0")
    for version in (1, 2):
        for key in (b"key 0", b"volatile"):
            await put(engine, key, payload_of(version, 900), durability=Durability.NONE)
    await until(lambda: len(engine._commit._volatile) == 4)
    assert await get(engine, b"key 0") == payload_of(2, 900)
    assert await get(engine, b"volatile") == payload_of(2, 900)
    rig.device.faults.remove(fault)
    while engine._journal.unavailable:
        await asyncio.sleep(0.01)
    await until(lambda: not engine.status().capacity.slots.in_flight)
    await put(engine, b"key 1", b"taken again")
    check_accounts(engine)
    engine = await rig.crash()
    assert await get(engine, b"key 0") == payload_of(2, 900)
    assert await get(engine, b"volatile") == payload_of(2, 900)
    assert await get(engine, b"key 1") == b"taken again"
    assert await get(engine, b"key 2") == payload_of(2, 2000)
    assert engine.state is EngineState.READY


async def test_d1_a_put_at_level_none_queued_when_the_journal_fails_goes_on(rig: Rig) -> None:
    """It was acknowledged before its row could be written: readers keep seeing it, and it becomes durable."""
    engine = rig.engine
    await put(engine, b"key", payload_of(0, 900))
    fault = journal_fault(rig)
    rig.device.faults.append(fault)
    await put(engine, b"key", payload_of(1, 900), durability=Durability.NONE)
    await until(lambda: engine._commit.published(engine._identity.digest(1, b"key"))[1].payload_bytes == 900)  # type: ignore[index]
    while not engine._journal.unavailable:
        await asyncio.sleep(0.01)
    assert await get(engine, b"key") == payload_of(1, 900)
    rig.device.faults.remove(fault)
    while engine._journal.unavailable:
        await asyncio.sleep(0.01)
    await until(lambda: not engine.status().capacity.slots.in_flight)
    engine = await rig.crash()
    assert await get(engine, b"key") == payload_of(1, 900)


async def test_a_start_that_can_not_write_fails_and_changes_no_answer(rig: Rig) -> None:
    await put(rig.engine, b"key", b"1")
    await rig.stop()
    image = rig.device.image.copy()
    fresh = Rig(image.copy(), options=rig.options, clock=rig.clock)
    fresh.device.faults.append(fail(OpKind.WRITE))
    with pytest.raises(WriteFailed):
        await fresh.start()
    assert fresh.engine.state is EngineState.FAILED
    await fresh.engine.stop()
    await rig.start_over(fresh.device.image)
    assert await get(rig.engine, b"key") == b"1"


@pytest.mark.parametrize("point", ["start_recovered", "start_counted", "start_recorded"])
@pytest.mark.parametrize("failure", [WriteFailed("", offset_bytes=0), AttributeError("a mistake"), None])
async def test_a_start_that_fails_leaves_nothing_running(rig: Rig, point: str, failure: Exception | None) -> None:
    """No task, no memory, whatever ended the start: an error of the device, a mistake, or its cancellation."""
    await put(rig.engine, b"key", b"1")
    await rig.stop()
    arenas: list[BufferArena] = []
    fresh = Rig(rig.device.image.copy(), options=rig.options, clock=rig.clock)
    starting = asyncio.create_task(fresh.start())

    def end(name: str) -> None:
        if name == point:
            arenas.extend((fresh.engine._arena, fresh.engine._internal))
            if failure is not None:
                raise failure
            starting.cancel()

    fresh.engine.step = end
    with pytest.raises(type(failure) if failure is not None else asyncio.CancelledError):
        await starting
    assert fresh.engine.state is EngineState.FAILED
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [arena._closed for arena in arenas] == [True, True]
    await fresh.engine.stop()
    assert fresh.engine.state.value == "stopped"
    await rig.start_over(fresh.device.image)
    assert await get(rig.engine, b"key") == b"1"


async def test_a_start_whose_journal_can_not_be_written_leaves_nothing_running(rig: Rig) -> None:
    """A journal tries on and on to come back, but not for an engine that is given up."""
    await put(rig.engine, b"key", b"1")
    fault = journal_fault(rig)
    await rig.stop()
    fresh = Rig(rig.device.image.copy(), options=rig.options, clock=rig.clock)
    fresh.device.faults.append(fault)
    with pytest.raises(JournalUnavailable):
        await fresh.start()
    assert fresh.engine.state is EngineState.FAILED
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert fresh.engine._arena._closed and fresh.engine._internal._closed
    await fresh.engine.stop()
    await rig.start_over(fresh.device.image)
    assert await get(rig.engine, b"key") == b"1"


async def test_an_eviction_that_fails_is_counted_and_tried_again(rig: Rig) -> None:
    """Making room needs a flush (D4): while that fails nothing is given out, and operators see a number grow."""
    engine = rig.engine
    count = 0
    while engine.status().capacity.free_slabs:
        await put(engine, b"key %d" % count, payload_of(count, 1_000_000))
        count += 1
    assert engine.counters.eviction_failures == 0
    rig.device.faults.append(fail(OpKind.FLUSH, times=2))
    await put(engine, b"one more", b"x" * 1_000_000)
    assert engine.counters.eviction_failures > 0
    assert engine.counters.evictions["evicted"] > 0
    assert await get(engine, b"one more") == b"x" * 1_000_000
    check_accounts(engine)


@pytest.mark.parametrize("held", [False, True])
async def test_l2_a_journal_that_was_full_takes_rows_again_once_a_checkpoint_can_be_written(held: bool) -> None:
    """What must be journaled once more before the tail can move is written into the reserve: names of namespaces, and
    the freeing row of a slot that a reader holds."""
    options = replace(OPTIONS, wait_timeout_seconds=0.2)
    with short_journal(72, reserve=8), mock.patch("storage.maintenance.CHECKPOINT_RETRY_SECONDS", 0.05):
        rig = Rig(formatted_image(4, journal_blocks=72), options=options)
        engine = await rig.start()
        await put(engine, b"held", b"v")
        reader = await engine.open_read("n", b"held")
        if not held:
            reader.close()
        await put(engine, b"held", b"w")
        for _ in range(3):
            await put(engine, b"key", b"v")
            await engine.checkpoint()
        geometry = engine._index.geometry
        starts = [geometry.copy_offset(copy) for copy in range(geometry.copies)]
        rig.device.faults += [Fault(OpKind.WRITE, errno.EIO, start, start + geometry.copy_bytes) for start in starts]
        with pytest.raises(JournalUnavailable, match="full"):
            await _put_on(engine)
        rig.device.faults.clear()
        await asyncio.wait_for(_put_again(engine), 10)
        reader.close()
        await engine.flush()
        check_accounts(engine)
        await rig.stop()


async def _put_on(engine: Engine) -> None:
    for number in range(1000):
        await put(engine, b"key", b"%d" % number)


async def _put_again(engine: Engine) -> None:
    while True:
        try:
            await put(engine, b"key", b"again")
        except JournalUnavailable:
            await asyncio.sleep(0.01)
        else:
            return


@pytest.mark.parametrize("refused", [True, False])
async def test_why_a_recovery_refused_is_not_hidden_by_want_of_memory(
    rig: Rig, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are made ready at the same time; what is wrong with the device is what the operator must know first."""

    def no_memory(_size_bytes: int) -> BufferArena:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(storage.engine_life, "BufferArena", no_memory)
    engine = Engine(SimulatedDevice(Image(64 << 20) if refused else rig.device.image.copy()), OPTIONS)
    with pytest.raises(NotFormatted if refused else SettingsInvalid):
        await engine.start()
    assert engine.state is EngineState.FAILED
    await engine.stop()
