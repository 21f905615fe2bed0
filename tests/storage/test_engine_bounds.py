"""Bounds and double faults of the running engine: queues shared with clients, waiting puts, old evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest

from storage.device.counters import OpKind
from storage.entries import Durability
from storage.errors import Busy, EntryNotFound, EntryUnreadable, FlushFailed, JournalUnavailable, NamespacesFull
from storage.evicting import Evicting
from storage.space import LOOK_AGAIN_SECONDS
from tests.storage.test_partial import JOURNAL_BLOCKS, damaged
from tests.support.damage import GARBAGE
from tests.support.engines import (
    CRASH_OPTIONS,
    OPTIONS,
    Rig,
    abandon,
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
from tests.support.simulated_device import cut_all, fail


@pytest.fixture(autouse=True)
def _journal() -> Iterator[None]:
    with short_journal():
        yield
        cut_all()


async def test_r5_a_deletion_that_checkpoints_took_out_of_the_journal_still_counts() -> None:
    """D2, R5: an old version quarantined at run time is not restored, however long ago its key was deleted."""
    rig = Rig()
    engine = await rig.start()
    await put(engine, b"K", b"old")
    await put(engine, b"other", b"x")
    digest = engine._identity.digest(1, b"K")
    published = engine._commit.published(digest)
    assert published is not None
    offset = engine._index.table.slot_offset(published[0])
    rig.device.faults.append(fail(OpKind.READ, start_byte=offset, stop_byte=offset + 4096))
    with pytest.raises(EntryUnreadable):
        await get(engine, b"K")
    await put(engine, b"K", b"new")
    await engine.delete("n", b"K")
    for _ in range(4):
        await put(engine, b"other", b"y")
        await engine.checkpoint()
    rig.device.faults.clear()
    engine = await rig.reopen()
    result = await engine.retry()
    assert (result.restored, result.superseded) == (0, 1)
    assert await peek(engine, b"K") is None
    await rig.stop()


async def test_l1_acknowledge_frees_more_slots_than_the_queue_takes() -> None:
    """L1, R5: all of them, in batches; afterwards nothing is left of the partial state."""
    with short_journal(JOURNAL_BLOCKS, reserve=16):  # as the image was formatted
        rig, _, image = await damaged(list(range(0, 60, 2)))
        engine = await rig.start_over(image, options=replace(CRASH_OPTIONS, accept_loss=True))
        assert engine.status().capacity.slots.quarantined == 30
        with mock.patch("storage.journal.QUEUE_MAX_ROWS", 10), mock.patch("storage.partial.UNITS_AT_ONCE", 8):
            await engine.acknowledge()
        status = engine.status()
        assert not status.partial_recovery
        assert status.capacity.slots.quarantined == 0
        check_accounts(engine)
        await rig.stop()


async def test_l1_what_expires_at_once_leaves_clients_room_in_the_queue() -> None:
    """L1: a mass expiry joins few rows at a time, so puts go on beside it."""
    rig = Rig()
    engine = await rig.start()
    expires_at = int(rig.clock()) + 10
    for number in range(60):
        await put(engine, b"k%d" % number, b"v", expires_at=expires_at)
    rig.clock.advance(60)
    with mock.patch("storage.journal.QUEUE_MAX_ROWS", 20), mock.patch("storage.expiry.UNITS_AT_ONCE", 8):
        await asyncio.gather(engine.expire(), *(put(engine, b"new%d" % number, b"v") for number in range(5)))
    assert engine.status().capacity.slots.live == 5
    check_accounts(engine)
    await rig.stop()


async def test_l1_namespaces_created_at_once_do_not_pass_the_limit() -> None:
    """L1: those under way count."""
    rig = Rig()
    engine = await rig.start()
    with mock.patch("storage.namespaces.NAMESPACES_MAX", 5):
        results = await asyncio.gather(
            *(put(engine, b"k", b"v", namespace=f"n{number}") for number in range(12)), return_exceptions=True
        )
    assert sum(isinstance(result, NamespacesFull) for result in results) == 7
    assert len(engine.status().namespaces) == 5
    check_accounts(engine)
    await rig.stop()


async def test_l3_a_put_that_waits_for_held_slots_does_not_spin() -> None:
    """L1, L3: where every slot is held by a reader, waiting costs a look now and then, and ends as Busy."""
    rig = Rig(options=OPTIONS)
    engine = await rig.start()
    geometry = engine._index.geometry
    count = geometry.slabs * geometry.slots_per_slab(0)
    for begin in range(0, count, 50):
        await asyncio.gather(*(put(engine, b"k%d" % n, b"v") for n in range(begin, min(begin + 50, count))))
    await engine.flush()
    readers = [await engine.open_read("n", b"k%d" % number) for number in range(count)]
    looks = 0
    evict = Evicting.evict

    async def counted(self: Evicting, slot_class: int) -> int:
        nonlocal looks
        looks += 1
        return await evict(self, slot_class)

    with mock.patch.object(Evicting, "evict", counted), pytest.raises(Busy):
        await put(engine, b"new", b"v")
    bound = OPTIONS.wait_timeout_seconds / LOOK_AGAIN_SECONDS
    assert looks <= 2 * bound + 5
    for reader in readers:
        reader.close()
    await put(engine, b"new", b"v")
    check_accounts(engine)
    await rig.stop()


async def test_r4_after_a_gap_a_slab_the_table_does_not_know_is_asked_before_it_is_given() -> None:
    """R4: the lost blocks were the only word of a slab and its entries; they are reported, and kept until accepted."""
    rig = Rig(formatted_image(slabs=4), options=CRASH_OPTIONS)
    engine = await rig.start()
    await put(engine, b"a", b"x" * 100)
    for _ in range(3):
        await engine.checkpoint()
        await put(engine, b"a", b"x" * 100)
    for number in range(5):
        await put(engine, b"big %d" % number, payload_of(number, 20000))
    await engine.flush()
    await put(engine, b"a", b"z")
    await engine.flush()
    geometry, newest = engine._index.geometry, engine._checkpointer.newest
    assert newest is not None
    assert newest.header is not None
    image = rig.device.crash_image()
    for block in range(newest.header.journal_block, engine._journal.last_block - 1):
        image.write(geometry.journal_block_offset(block), GARBAGE)
    await abandon(rig.device)
    engine = await rig.start_over(image)
    for _ in range(2):
        assert engine.status().recovery.unknown_loss
        for number in range(30):
            await put(engine, b"mid %d" % number, payload_of(number, 60000))
        status = engine.status()
        assert status.skipped_by_reason["journal_gap"] == 5
        assert {entry.key for entry in engine.skipped(0, 10)} == {f"big%20{number}" for number in range(5)}
        check_accounts(engine)
        engine = await rig.reopen()
    kept = engine.status().capacity.free_slabs
    await engine.acknowledge()
    for number in range(60):
        await put(engine, b"mid %d" % number, payload_of(number, 60000))
    assert engine.status().capacity.free_slabs < kept
    check_accounts(engine)
    await rig.stop()


async def test_d3_the_journal_reopens_only_behind_what_makes_room() -> None:
    """D3: one write of the journal is under way at a time. Two may make room for a full one, a compaction and a
    checkpoint: the tail that one of them moves reopens it while the other's rows are being written."""
    rig = Rig()
    engine = await rig.start()
    await put(engine, b"K", b"value")
    journal, geometry = engine._journal, engine._index.geometry
    journal._fail("the journal is full", [])
    journal._is_full = True

    def is_of_the_journal(kind: OpKind, offset_bytes: int, size_bytes: int) -> bool:
        return kind is OpKind.WRITE and geometry.journal_offset <= offset_bytes < geometry.slabs_offset

    rig.device.hold = is_of_the_journal
    renewed = journal.join(engine._commit.renewal(engine._index.table.live_row_ids().tolist()))
    await until(lambda: bool(rig.device.held))
    journal.move_tail(journal.tail, journal.complete_since)
    await turns()
    assert len(rig.device.held) == 1, "the reopening waits"
    rig.device.release_all()
    await until(lambda: not journal.unavailable)
    assert await renewed < journal.last_block
    await put(engine, b"L", b"another")
    engine = await rig.crash()
    assert not engine.status().partial_recovery
    assert (await peek(engine, b"K"), await peek(engine, b"L")) == (b"value", b"another")
    await rig.stop()


async def test_r5_what_asks_for_another_expiry_of_a_lost_key_gives_up_nothing_of_it() -> None:
    """R5: only a put or a deletion supersedes what is quarantined of a key."""
    rig = Rig()
    engine = await rig.start()
    await put(engine, b"K", b"value")
    published = engine._commit.published(engine._identity.digest(1, b"K"))
    assert published is not None
    offset = engine._index.table.slot_offset(published[0])
    rig.device.faults.append(fail(OpKind.READ, start_byte=offset, stop_byte=offset + 4096))
    with pytest.raises(EntryUnreadable):
        await get(engine, b"K")
    with pytest.raises(EntryNotFound):
        await engine.touch("n", b"K", expires_at=2_000_000_000)
    assert engine.counters.deletes["missing"] == 0
    rig.device.faults.clear()
    result = await engine.retry()
    assert (result.restored, result.superseded) == (1, 0)
    assert await get(engine, b"K") == b"value"
    await rig.stop()


@pytest.mark.parametrize("many", [False, True])
async def test_d2_a_flushed_deletion_that_finds_nothing_is_flushed_too(*, many: bool) -> None:
    """D1, D2: what was there may be gone by a deletion of a lower level, which a power loss would undo."""
    rig = Rig()
    engine = await rig.start()
    await put(engine, b"K", b"value", durability=Durability.FLUSH)
    await engine.delete("n", b"K", durability=Durability.JOURNAL)
    if many:
        outcomes = await engine.delete_many("n", [b"K", b"never there"], durability=Durability.FLUSH)
        assert all(isinstance(outcome, EntryNotFound) for outcome in outcomes)
    else:
        with pytest.raises(EntryNotFound):
            await engine.delete("n", b"K", durability=Durability.FLUSH)
    engine = await rig.crash(rig.device.crash_image(power_loss=True))
    assert await peek(engine, b"K") is None
    rig.device.faults.append(fail(OpKind.FLUSH, times=1))
    await put(engine, b"L", b"v")
    if many:
        (outcome,) = await engine.delete_many("n", [b"K"], durability=Durability.FLUSH)
        assert isinstance(outcome, FlushFailed)
    else:
        with pytest.raises(FlushFailed):
            await engine.delete("n", b"K", durability=Durability.FLUSH)
    await rig.stop()


@pytest.mark.parametrize("how", [OpKind.FLUSH, OpKind.WRITE])
async def test_l2_a_journal_that_filled_while_checkpoints_failed_empties_again(how: OpKind) -> None:
    """L2, D1: the first checkpoint that succeeds may leave the tail where it is, held by an older copy; what makes room
    is written until one moves it, whether the journal was given up for want of room or for a write that failed."""
    with short_journal(64, reserve=6):
        rig = Rig(formatted_image(journal_blocks=64))
        engine = await rig.start()
        geometry, journal = engine._index.geometry, engine._journal
        await put(engine, b"K", b"value")
        await engine.checkpoint()
        rig.device.faults.append(fail(OpKind.FLUSH))
        while journal.used_blocks < geometry.journal_blocks - 6:
            await put(engine, b"K", b"value")
        if how is OpKind.WRITE:
            rig.device.faults.append(fail(how, start_byte=geometry.journal_offset, stop_byte=geometry.slabs_offset))
            journal._fail("the journal can't be written", [])
            journal._start_reopening()
        with mock.patch.object(journal, "_wait_timeout_seconds", 0.01), pytest.raises(JournalUnavailable):
            await put(engine, b"K", b"value")
        await turns()
        rig.device.faults.clear()
        for _ in range(geometry.copies):
            await engine.checkpoint()
        await until(lambda: not journal.unavailable)
        await put(engine, b"K", b"another")
        assert await get(engine, b"K") == b"another"
        await rig.stop()
