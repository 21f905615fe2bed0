"""Checkpoints and the journal's ring: the order on the device, what is written, what is kept (D4, R1, L2)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from storage.checkpoint.checkpointer import CheckpointResult
from storage.device.counters import OpKind
from storage.errors import WriteFailed
from storage.status import EngineState, Reason
from tests.support.damage import key_of, page_of, put_many, row_id_of, slot_of, value_of, wreck_page
from tests.support.engines import (
    CRASH_OPTIONS,
    MIB,
    Rig,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    peek,
    put,
    short_journal,
    turns,
    until,
)
from tests.support.simulated_device import Fault, Flush, Write, cut_all


@pytest.fixture(autouse=True)
def _cut_devices() -> Iterator[None]:
    yield
    cut_all()


def copy_at(rig: Rig, offset_bytes: int) -> int:
    """The copy an offset lies in, -1 for none."""
    geometry = rig.engine._index.geometry
    for copy in range(geometry.copies):
        start = geometry.copy_offset(copy)
        if start <= offset_bytes < start + geometry.copy_bytes:
            return copy
    return -1


def pages_written(rig: Rig, since: int) -> list[int]:
    geometry = rig.engine._index.geometry
    pages: list[int] = []
    for write in rig.device.writes:
        copy = copy_at(rig, write.offset_bytes) if write.issued >= since else -1
        if copy >= 0 and write.offset_bytes >= geometry.page_offset(copy, 0):
            first = (write.offset_bytes - geometry.page_offset(copy, 0)) // 4096
            pages += range(first, first + len(write.content) // 4096)
    return pages


async def test_d4_the_order_of_a_checkpoint_on_the_device(rig: Rig) -> None:
    """Journal flushed, pages and streams, flush, header, flush; only then the tail moves. Never the newest copy."""
    engine, device = rig.engine, rig.device
    await put_many(engine, range(150))
    newest = -1
    for round_ in range(7):
        await put(engine, key_of(round_), payload_of(round_, 77))
        begin, tail = device.now, engine._journal.tail
        header_at: list[tuple[int, int]] = []

        def step(name: str, tail: int = tail, seen: list[tuple[int, int]] = header_at) -> None:
            seen.append((device.now, engine._journal.tail))
            assert engine._journal.tail == tail or name == "checkpoint_done", name

        engine._checkpointer.step = step
        await engine.checkpoint()
        events = [record for what, record in device.events[begin:] if what == "issued"]
        in_copies = [e for e in events if isinstance(e, Write) and copy_at(rig, e.offset_bytes) >= 0]
        copies = {copy_at(rig, w.offset_bytes) for w in in_copies}
        assert len(copies) == 1
        [copy] = copies
        assert copy != newest, "the newest copy is never overwritten"
        header = in_copies[-1]
        geometry = engine._index.geometry
        assert header.offset_bytes == geometry.copy_offset(copy)
        assert [w.offset_bytes for w in in_copies].count(header.offset_bytes) == 1
        first = events.index(in_copies[0])
        assert any(isinstance(e, Flush) for e in events[:first]), "the journal is flushed first"
        between = events[events.index(in_copies[-2]) : events.index(header)]
        [flush] = [e for e in between if isinstance(e, Flush)]
        assert all(w.done < flush.issued for w in in_copies[:-1])
        assert flush.done < header.issued
        [last] = [e for e in events[events.index(header) :] if isinstance(e, Flush)]
        assert header.done < last.issued
        newest = copy
    engine._checkpointer.step = lambda _: None
    assert engine._journal.tail > 1


async def test_only_pages_that_changed_are_written(rig: Rig) -> None:
    engine = rig.engine
    await put_many(engine, range(240))
    for _ in range(3):
        await engine.checkpoint()
    begin = rig.device.now
    await engine.checkpoint()
    assert pages_written(rig, begin) == []
    changed = {page_of(engine, 100)}
    await engine.delete("n", key_of(100))
    begin = rig.device.now
    await engine.checkpoint()
    assert set(pages_written(rig, begin)) == changed
    await get(engine, key_of(3))  # an access count is no change
    begin = rig.device.now
    await engine.checkpoint()
    assert set(pages_written(rig, begin)) == changed, "the next copy needs the page too"
    assert engine.status().checkpoint.dirty_pages == 0


async def test_a_checkpoint_that_fails_leaves_the_newest_and_is_made_up_for(rig: Rig) -> None:
    engine = rig.engine
    await put_many(engine, range(100))
    await engine.checkpoint()
    geometry = engine._index.geometry
    for nth in range(4):
        await put(engine, key_of(nth), payload_of(nth, 200))
        target = engine._checkpointer._target().copy
        start = geometry.copy_offset(target)
        number = rig.device.operations(OpKind.WRITE) + nth
        fault = Fault(OpKind.WRITE, errno.EIO, start_byte=start, stop_byte=start + geometry.copy_bytes, number=number)
        rig.device.faults = [fault]
        try:
            await engine.checkpoint()
        except WriteFailed:
            assert engine.counters.checkpoints["failed"] >= 1
        rig.device.faults = []
        engine_ = await rig.crash()
        assert not engine_.status().partial_recovery
        for number_ in range(100):
            expected = payload_of(number_, 200) if number_ <= nth else value_of(number_)
            assert await peek(engine_, key_of(number_)) == expected
        engine = engine_
        await engine.checkpoint()
        geometry = engine._index.geometry


async def test_r1_headers_of_freed_slots_are_void_before_their_rows_leave_the_journal(rig: Rig) -> None:
    """Whatever pages are lost then, a deleted key does not come back."""
    engine = rig.engine
    await put_many(engine, range(100))
    for number in range(0, 100, 2):
        await engine.delete("n", key_of(number))
    freed = set(engine._index.slots.freed_unvoided)
    assert len(freed) == 50
    for _ in range(4):
        await engine.checkpoint()
        await engine.delete("n", key_of(1))
        await put(engine, key_of(1), value_of(1))
    assert engine._journal.complete_since > 150
    places = [engine._index.table.slot_offset(r) for r in freed if engine._index.table.row(r).seq < 150]
    assert len(places) > 40
    assert not any(rig.device.image.read(place, 512).strip(b"\0") for place in places)
    geometry = engine._index.geometry
    pages = {page_of(engine, n) for n in range(1, 100, 2)}
    await rig.stop()
    image = rig.device.image.copy()
    for page in pages:
        wreck_page(image, geometry, page)
    engine = await rig.start_over(image)
    for number in range(100):
        assert await peek(engine, key_of(number)) == (value_of(number) if number % 2 else None)
    assert engine.status().skipped_entries == 0


@pytest.mark.parametrize("how", ["reader", "put", "restart"])
async def test_r1_a_freed_slot_in_use_over_many_checkpoints_does_not_bring_its_key_back(rig: Rig, how: str) -> None:
    """D2: a reader holds it in limbo, or a put took it and never wrote: its freeing row stays in the journal."""
    engine = rig.engine
    await put_many(engine, range(20))
    row_id = row_id_of(engine, 5)
    offset = slot_of(engine, 5)
    geometry = engine._index.geometry
    reader = await engine.open_read("n", key_of(5)) if how != "put" else None
    await engine.delete("n", key_of(5))
    await engine.flush()
    session = await engine.begin_put("n", b"slow", 100) if how == "put" else None
    if session is not None:
        assert session.row_id == row_id
    for round_ in range(5):
        await put(engine, b"moves the journal", payload_of(round_, 50))
        await engine.flush()
        await engine.checkpoint()
    assert any(rig.device.image.read(offset, 512)), "the header still stands"
    if how == "restart":
        engine = await rig.crash()
        for round_ in range(5):
            await engine.delete("n", key_of(10 + round_))
            await engine.flush()
            await engine.checkpoint()
    page = engine._index.table.page_of(row_id)
    image = rig.device.crash_image()
    wreck_page(image, geometry, page)
    if reader is not None and how == "reader":
        reader.close()
    if session is not None:
        session.abort()
    engine = await rig.crash(image)
    assert await peek(engine, key_of(5)) is None
    assert await get(engine, key_of(6)) == value_of(6)
    check_accounts(engine)


async def test_l2_the_journal_wraps_many_times_with_restarts_between() -> None:
    with short_journal(64, reserve=8):
        rig = Rig(formatted_image(journal_blocks=64), options=CRASH_OPTIONS)
        engine = await rig.start()
        expected: dict[bytes, bytes] = {}
        for life in range(12):
            for step in range(60):
                key, value = key_of(step % 17), payload_of(life * 100 + step, 40 + step)
                await put(engine, key, value)
                expected[key] = value
                assert engine._journal.used_blocks <= 64
            engine = await (rig.crash() if life % 3 == 1 else rig.reopen(checkpoint=life % 3 == 0))
            assert not engine.status().partial_recovery
            for key, value in expected.items():
                assert await get(engine, key) == value
            check_accounts(engine)
        assert engine._journal.last_block > 10 * 64
        await rig.stop()


async def test_l2_a_full_journal_does_not_lock_out_the_checkpoint_that_makes_room() -> None:
    """The checkpoint must journal rows of slots that readers hold while writers wait for the room it makes."""
    with short_journal(64, reserve=8):
        rig = Rig(formatted_image(journal_blocks=64), options=CRASH_OPTIONS)
        engine = await rig.start()
        await put_many(engine, range(40))
        readers = [await engine.open_read("n", key_of(n)) for n in range(20)]
        for number in range(20):
            await engine.delete("n", key_of(number))
        await asyncio.gather(*(_overwrite(rig, b"writer %d" % n, 60) for n in range(8)))
        for number in range(400):
            await put(engine, b"one after the other", payload_of(number, 30))
        assert engine.counters.checkpoints["failed"] == 0
        assert engine.counters.puts["failed"] == 0
        for reader in readers:
            reader.close()
        await engine.flush()
        check_accounts(engine)
        await rig.stop()


async def _overwrite(rig: Rig, key: bytes, times: int) -> None:
    for number in range(times):
        await put(rig.engine, key, payload_of(number, 100))


async def test_pages_without_rows_are_written_again_after_a_checkpoint_that_was_cut_short(rig: Rig) -> None:
    """B3: a slab of large slots has more pages than rows. They too are what their copy's directory names."""

    class CutShort(Exception):
        pass

    def cut_short(name: str) -> None:
        if name == "checkpoint_streams":
            raise CutShort

    engine = rig.engine
    await put_many(engine, range(20))
    for _ in range(3):
        await engine.checkpoint()
    await put(engine, b"large", payload_of(1, 900_000))
    engine._checkpointer.step = cut_short
    with pytest.raises(CutShort):
        await engine.checkpoint()
    engine = await rig.crash()
    await engine.checkpoint()
    geometry = engine._index.geometry
    for copy in engine._checkpointer.copies:
        assert copy.header is not None
        for page in range(geometry.pages):
            block = rig.device.image.read(geometry.page_offset(copy.copy, page), geometry.block_bytes)
            checksum = int.from_bytes(block[8:12], "little")
            assert checksum == copy.directory[page]["checksum"], f"copy {copy.copy} page {page} is stale"


async def test_a_checkpoint_is_overdue_when_it_does_not_end_and_not_after_a_quiet_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mutation after a pause, or a restart, finds the newest checkpoint old: that is nobody's fault."""
    await put(rig.engine, b"key", b"value")
    await rig.engine.checkpoint()
    await rig.stop()
    rig.clock.advance(86_400)
    engine = await rig.start_over(rig.device.image, options=replace(rig.options, background=True))
    maintenance, run, go_on = engine._maintenance, engine._checkpointer.run, asyncio.Event()

    async def hang() -> CheckpointResult:
        await go_on.wait()
        return await run()

    monkeypatch.setattr(type(engine._checkpointer), "run", lambda _: hang())
    await put(engine, b"another", b"value")
    assert engine.state is EngineState.READY
    maintenance._wake.set()
    await until(lambda: maintenance.due_since is not None)
    rig.clock.advance(120)
    assert engine.state is EngineState.READY
    rig.clock.advance(1)
    assert engine.reasons == [Reason.CHECKPOINT_OVERDUE]
    go_on.set()
    await until(lambda: not engine.reasons)
    await rig.stop()


async def test_d4_no_header_is_made_void_in_a_slab_that_is_being_given_away(rig: Rig) -> None:
    """B1, D4: a slow write of zeros, begun while the slab was on its way, would fall upon a record of its new class."""
    engine, device = rig.engine, rig.device
    index = engine._index
    for number in range(3):
        await put(engine, b"small %d" % number, payload_of(number, 3000))
    slab, _ = index.table.place_of(int(index.table.live_row_ids()[0]))
    # The first slot's header is void already: the slab's new class can begin there at once.
    await engine.delete("n", b"small 0")
    for number in range(3):
        await put(engine, b"large %d" % number, payload_of(number, 700_000))
        await engine.checkpoint()
    await engine.delete("n", b"small 1")
    await engine.delete("n", b"small 2")
    await engine.flush()
    await engine.checkpoint()
    await engine.checkpoint()
    assert len(index.slots.freed_unvoided) == 2, "the next checkpoint lets their freeing rows go"
    start = index.geometry.slab_offset(slab)
    device.hold = lambda kind, offset, size: kind is OpKind.WRITE and start <= offset < start + MIB
    putting = asyncio.create_task(put(engine, b"large 3", payload_of(3, 700_000)))
    await until(lambda: bool(device.held))
    header = device.held[0]
    checkpoint = asyncio.create_task(engine.checkpoint())
    await turns(100)
    device.hold = None
    device.release(header)
    await putting
    device.release_all()
    await checkpoint
    assert index.table.slab_class[slab] == index.geometry.class_for(700_256)
    assert await get(engine, b"large 3") == payload_of(3, 700_000)


async def test_a1_a_slab_that_is_being_given_is_not_emptied_for_another_class(rig: Rig) -> None:
    """A1, B1: else it would be given twice, the second time with records of the first class in it."""
    engine, device = rig.engine, rig.device
    index, evicting = engine._index, engine._space.evicting
    await put(engine, b"small", payload_of(0, 3000))
    slab, _ = index.table.place_of(int(index.table.live_row_ids()[0]))
    small, large = int(index.table.slab_class[slab]), index.geometry.class_for(700_256)
    for number in range(3):
        await put(engine, b"large %d" % number, payload_of(number, 700_000))
    await engine.delete("n", b"small")
    await engine.flush()
    start = index.geometry.slab_offset(slab)
    device.hold = lambda kind, offset, size: kind is OpKind.WRITE and offset == start
    putting = asyncio.create_task(put(engine, b"large 3", payload_of(3, 700_000)))
    await until(lambda: bool(device.held))
    assert evicting.take_slab([small]) == []
    assert not index.slots.unowned
    device.release_all()
    await putting
    assert index.table.slab_class[slab] == large
    assert not index.slots.unowned
    assert index.slots.spare_slab(small) == -1, "all are in use"
