"""Bounds and double faults of the running engine: queues shared with clients, waiting puts, old evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest

from storage.device.counters import OpKind
from storage.errors import Busy, EntryUnreadable, NamespacesFull
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
)
from tests.support.simulated_device import fail


@pytest.fixture(autouse=True)
def _journal() -> Iterator[None]:
    with short_journal():
        yield


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
