"""What others do between two steps of long work: rows found earlier may be somebody else's, or held, by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest import mock

import pytest

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.errors import JournalUnavailable, LeasesFull
from storage.format.row import FreeReason, SlotState
from storage.options import EvictionPolicy
from storage.waiting import wait_all
from tests.support.engines import OPTIONS, Rig, check_accounts, payload_of, peek, put, short_journal, turns, until

AT_ONCE = 16


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with (
        short_journal(),
        mock.patch("storage.namespace_changes.FREED_AT_ONCE", AT_ONCE),
        mock.patch("storage.evicting.UNITS_AT_ONCE", AT_ONCE),
        mock.patch("storage.snapshot_cut.PAGES_AT_ONCE", 1),
        mock.patch("storage.settling.SETTLED_AT_ONCE", 2 * AT_ONCE),
        mock.patch("storage.entry_changes.ROWS_CHANGED_AT_ONCE", AT_ONCE),
        mock.patch("storage.partial.UNITS_AT_ONCE", 2),
    ):
        made = Rig(options=replace(OPTIONS, eviction=EvictionPolicy.CLOCK))
        await made.start()
        for number in range(300):
            await put(made.engine, b"key %d" % number, payload_of(number, 50))
        yield made
        if made.engine.state.value != "stopped":
            await made.stop()


def _live(engine: Engine) -> list[int]:
    table = engine._index.table
    return [row_id for row_id in table.row_ids().tolist() if table.state(row_id) == SlotState.LIVE]


async def test_d2_freeing_what_a_wipe_left_spares_slots_that_others_got_meanwhile(rig: Rig) -> None:
    engine = rig.engine
    evicting = engine._space.evicting
    found = evicting._as_they_are(_live(engine))
    await put(engine, b"first", b"v", namespace="m")
    await engine.wipe_namespace("n")
    await wait_all(evicting._free_all(found[-60:], FreeReason.WIPED))  # as an eviction does that runs beside it
    await engine.flush()
    values = {b"new %d" % number: payload_of(number, 70) for number in range(60)}
    await asyncio.gather(*(put(engine, key, value, namespace="m") for key, value in values.items()))
    assert engine._index.namespaces.dying, "the rows found at first are not all freed yet"
    await until(lambda: engine._parts.namespaces._freeing is None)
    assert {key: await peek(engine, key, namespace="m") for key in values} == values
    # The same from a list that an eviction made before.
    assert not evicting._free_all(found, FreeReason.WIPED)
    assert engine.namespace("m").entries == 61
    check_accounts(engine)


@asynccontextmanager
async def _evicting_all(engine: Engine) -> AsyncIterator[None]:
    """All entries were chosen as victims, in their order, and the first of them are gone; then the rest goes."""
    evicting = engine._space.evicting
    with (
        mock.patch.object(evicting, "reserve", return_value=10_000),
        mock.patch.object(evicting, "_takeable", return_value=[]),
        mock.patch.object(evicting._eviction, "victims", return_value=_live(engine)),
    ):
        task = asyncio.create_task(evicting.evict(0))
        await until(lambda: engine.namespace("n").entries < 300)
        yield
        assert not task.done()
        await task


async def test_l3_what_is_leased_after_it_was_chosen_is_no_victim(rig: Rig) -> None:
    engine = rig.engine
    keys = [b"key %d" % number for number in range(200, 300)]
    async with _evicting_all(engine):
        lease = engine.lease("n", keys, ttl_seconds=60)
        assert all(lease.held)
    assert [await peek(engine, key) for key in keys] == [payload_of(number, 50) for number in range(200, 300)]
    assert engine.namespace("n").entries == 100
    engine.release(lease.lease.lease_id)
    check_accounts(engine)


async def test_what_changed_after_it_was_chosen_is_no_victim(rig: Rig) -> None:
    """An eviction frees the rows it chose, not what was put into their slots since, nor an entry with a new expiry."""
    engine = rig.engine
    index = engine._index
    values = {b"new %d" % number: payload_of(number, 60) for number in range(60)}
    chosen = set(_live(engine))
    with mock.patch("storage.evicting.UNITS_AT_ONCE", 1):
        async with _evicting_all(engine):
            await asyncio.gather(*(engine.delete("n", b"key %d" % number) for number in range(240, 300)))
            await engine.flush()
            await asyncio.gather(*(put(engine, key, value, namespace="m") for key, value in values.items()))
            await engine.touch("n", b"key 239", expires_at=2_000_000_000)
            now = {
                index.keys.find(engine._identity.digest(index.namespaces.by_name["m"].namespace_id, key))
                for key in values
            }
    assert now <= chosen
    assert {key: await peek(engine, key, namespace="m") for key in values} == values
    assert await peek(engine, b"key 239") == payload_of(239, 50)
    assert engine.namespace("n").entries == 1
    check_accounts(engine)


async def test_a_snapshot_without_entries_while_a_held_slot_loses_its_entry(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"gone", b"v", namespace="empty")
    await engine.delete("empty", b"gone")
    holding = await engine.take_snapshot("n", ttl_seconds=60)
    taking = asyncio.create_task(engine.take_snapshot("empty", ttl_seconds=60))
    await asyncio.sleep(0)
    await engine.delete("n", b"key 0")
    view = await taking
    assert (view.entries, view.freed_bytes) == (0, 0)
    assert engine.snapshot(holding.snapshot_id).freed_bytes == 4096


async def test_l1_snapshots_that_end_faster_than_they_let_go_are_bounded(rig: Rig) -> None:
    """Else their number would have no limit, nor the holds of a slot, of which there is room for 255."""
    engine = rig.engine
    slots = engine._index.slots
    refused = 0
    with mock.patch("storage.settling.SETTLED_AT_ONCE", 0):
        for _ in range(12):
            try:
                view = await engine.take_snapshot("n", ttl_seconds=60)
            except LeasesFull:
                refused += 1
            else:
                engine.end_snapshot(view.snapshot_id)
    assert (refused, slots.holders_leaving) == (4, 8)
    engine._space.settle()
    await until(lambda: engine._space.settling._rest is None)
    assert not slots.held_in_slab.any()
    view = await engine.take_snapshot("n", ttl_seconds=60)
    assert view.entries == 300


async def test_r5_two_acknowledgements_and_a_retry_at_once(rig: Rig) -> None:
    engine = rig.engine
    table, keys = engine._index.table, [b"key %d" % number for number in range(40)]
    for key in keys:
        rig.device.flip(table.slot_offset(engine._index.keys.find(engine._identity.digest(1, key))) + 10)
        assert await peek(engine, key) is None
    assert engine.status().capacity.slots.quarantined == 40
    rig.device.flips.clear()
    results = await asyncio.gather(engine.retry(), engine.acknowledge(), engine.acknowledge(), engine.retry())
    assert engine.status().capacity.slots.quarantined == 0
    there = [key for key in keys if await peek(engine, key) is not None]
    assert len(there) == results[0].restored + results[3].restored
    check_accounts(engine)


async def test_r5_a_retry_leaves_alone_what_an_acknowledgement_is_freeing(rig: Rig) -> None:
    engine, table = rig.engine, rig.engine._index.table
    offset = table.slot_offset(engine._index.keys.find(engine._identity.digest(1, b"key 7")))
    rig.device.flip(offset + 10)
    assert await peek(engine, b"key 7") is None
    rig.device.flips.clear()

    def journal(kind: OpKind, at: int, _: int) -> bool:
        return kind is OpKind.WRITE and at < engine._index.geometry.slabs_offset

    rig.device.hold = journal
    freeing = asyncio.create_task(engine.acknowledge())
    await until(lambda: bool(rig.device.held))
    rig.device.release_all()  # the acknowledgement itself; the freeing comes behind it
    rig.device.hold = journal
    await until(lambda: bool(engine._index.evidence.leaving))
    retrying = asyncio.create_task(engine.retry())
    await turns(50)
    rig.device.release_all()
    assert (await retrying).restored == 0
    await freeing
    assert await peek(engine, b"key 7") is None
    assert not engine._index.evidence.leaving
    check_accounts(engine)


@pytest.mark.parametrize("steps", [1, 3, 6])
async def test_d1_a_stop_refuses_what_many_deletions_have_not_joined_yet(rig: Rig, steps: int) -> None:
    keys = [b"key %d" % number for number in range(300)]
    deleting = asyncio.create_task(rig.engine.delete_many("n", keys))
    for _ in range(steps):
        await asyncio.sleep(0)
    await rig.stop()
    outcomes = dict(zip(keys, await deleting, strict=True))
    refused = [key for key, outcome in outcomes.items() if isinstance(outcome, JournalUnavailable)]
    assert refused
    assert all(isinstance(outcomes[key], int) for key in outcomes.keys() - set(refused))
    engine = await rig.start_over(rig.device.image)
    assert [key for key in keys if await peek(engine, key) is not None] == refused
    check_accounts(engine)


@pytest.mark.parametrize("steps", [1, 4, 16])
async def test_a_stop_waits_for_a_checkpoint_that_somebody_asked_for(rig: Rig, steps: int) -> None:
    asked = asyncio.create_task(rig.engine.checkpoint())
    for _ in range(steps):
        await asyncio.sleep(0)
    await rig.stop(checkpoint=False)
    assert (await asked).seq == rig.engine.status().checkpoint.seq
    engine = await rig.start_over(rig.device.image)
    assert engine.namespace("n").entries == 300


async def test_l1_leases_that_end_faster_than_they_let_go_count_until_they_have(rig: Rig) -> None:
    engine = rig.engine
    keys = [b"key %d" % number for number in range(60)]
    with mock.patch("storage.leases.LET_GO_AT_ONCE", 1), mock.patch("storage.leases.LEASED_ENTRIES_MAX", 150):
        for _ in range(2):
            engine.release(engine.lease("n", keys, ttl_seconds=60).lease.lease_id)
        with pytest.raises(LeasesFull):
            engine.lease("n", keys, ttl_seconds=60)
        await until(lambda: not engine._index.slots.holds_count)
        engine.release(engine.lease("n", keys, ttl_seconds=60).lease.lease_id)
