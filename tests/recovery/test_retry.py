"""``retry``: what became readable again comes back, never over what was put or deleted since (R5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from storage.device.counters import OpKind
from storage.errors import AcknowledgeNothing, EntryNotFound, EntryUnreadable
from storage.format.row import SlotState
from storage.recovery.report import SkipReason
from tests.recovery.checks import check_partial_state, check_status, check_values, quarantined_slots, restart, start
from tests.recovery.expectations import Expected, PageDamage
from tests.recovery.test_damage_matrix_pages import settled_before
from tests.recovery.world import World
from tests.support.engines import Rig, check_accounts, payload_of, peek, put, turns
from tests.support.victim import Victim


def unreadable_slots(world: World, *, known: bool, count: int = 5) -> tuple[Victim, list[int], Expected]:
    """A page lost in all copies and some of its slots unreadable; ``known``: the lines still tell whose they were."""
    victim, page = world.victim(), 1
    rows = settled_before(world, page)[:count]
    found = PageDamage(broken_headers=set(rows))
    for copy in world.copies:
        found.reasons[copy, page] = SkipReason.CHECKSUM
        if known:
            victim.flip(victim.page_offset(copy, page) + 40)
        else:
            for row_id in rows:
                victim.zero(victim.line_offset(copy, row_id), 64)
    for row_id in rows:
        victim.unreadable(world.offsets[row_id])
    expected = found.expected(world, victim)
    assert set(expected.skipped) == set(rows)
    return victim, rows, expected


@pytest.mark.parametrize("known", [True, False], ids=["keys known", "keys unknown"])
async def test_r5_retry_restores_what_became_readable_again(world: World, known: bool) -> None:
    """R5: unreadable at the start, readable later: every entry is back whole, the partial state ends by itself."""
    victim, rows, expected = unreadable_slots(world, known=known)
    rig = await start(world, victim)
    check_status(rig.engine, world, expected)
    result = await rig.engine.retry()
    assert (result.restored, result.superseded, result.still_skipped) == (0, 0, len(rows))
    check_status(rig.engine, world, expected)
    rig.device.faults.clear()
    result = await rig.engine.retry()
    assert (result.restored, result.superseded, result.still_skipped) == (len(rows), 0, 0)
    for _ in range(2):
        check_partial_state(rig.engine.status(), False)
        assert quarantined_slots(rig.engine) == set()
        await check_values(rig.engine, world, Expected())
        check_accounts(rig.engine)
        await restart(rig)
    with pytest.raises(AcknowledgeNothing):
        await rig.engine.retry()
    await rig.stop()


@pytest.mark.parametrize("known", [True, False], ids=["keys known", "keys unknown"])
async def test_r5_retry_counts_what_it_restored_when_some_stay(world: World, known: bool) -> None:
    """R2, R5: what stays stays counted, what came back is repaired by retry, also after a restart."""
    victim, rows, _ = unreadable_slots(world, known=known)
    rig = await start(world, victim)
    rig.device.faults = rig.device.faults[:2]
    result = await rig.engine.retry()
    assert (result.restored, result.still_skipped) == (len(rows) - 2, 2)
    for _ in range(3):
        status = rig.engine.status()
        assert status.skipped_entries == 2
        assert status.recovery.repaired_by_source["retry"] == len(rows) - 2
        assert quarantined_slots(rig.engine) == set(rows[:2])
        check_partial_state(status, True)
        await restart(rig)
    await rig.stop()


Change = Callable[[Rig, bytes], Awaitable[None]]


async def overwritten(rig: Rig, key: bytes) -> None:
    await put(rig.engine, key, payload_of(999, 321))


async def put_and_deleted(rig: Rig, key: bytes) -> None:
    await put(rig.engine, key, payload_of(999, 321))
    await rig.engine.delete("n", key)


async def deleted_though_absent(rig: Rig, key: bytes) -> None:
    with pytest.raises(EntryNotFound):
        await rig.engine.delete("n", key)


async def nothing(rig: Rig) -> None:
    pass


async def restarted(rig: Rig) -> None:
    await restart(rig)


async def compacted(rig: Rig) -> None:
    await rig.engine._maintenance.compactor.run()
    await rig.engine._maintenance.compactor.run()


async def compacted_and_restarted(rig: Rig) -> None:
    await compacted(rig)
    await restart(rig)


@pytest.mark.parametrize("between", [nothing, restarted, compacted, compacted_and_restarted])
@pytest.mark.parametrize("change", [overwritten, put_and_deleted, deleted_though_absent])
@pytest.mark.parametrize("known", [True, False], ids=["keys known", "keys unknown"])
async def test_r5_retry_never_brings_a_key_back_over_what_happened_since(
    world: World, known: bool, change: Change, between: Callable[[Rig], Awaitable[None]]
) -> None:
    """R5: known and unknown digests, across restarts and compaction; the others come back."""
    victim, rows, _ = unreadable_slots(world, known=known)
    rig = await start(world, victim)
    touched = [world.keys[row_id] for row_id in rows[:2]]
    for key in touched:
        await change(rig, key)
    after = {key: await peek(rig.engine, key) for key in touched}
    await between(rig)
    rig.device.faults.clear()
    # Of a slot whose key nobody knew, a later start can't tell any more whether that key was touched: it stays.
    certain = known or between in (nothing, compacted)
    kept = rows[2:] if certain else []
    result = await rig.engine.retry()
    assert (result.restored, result.superseded) == (len(kept), len(rows) - len(kept))
    for key in touched:
        assert await peek(rig.engine, key) == after[key]
    for row_id in kept:
        assert await peek(rig.engine, world.keys[row_id]) == world.values[world.keys[row_id]]
    assert rig.engine.status().skipped_entries == len(rows) - len(kept)
    check_accounts(rig.engine)
    await restart(rig)
    result = await rig.engine.retry()
    assert (result.restored, result.superseded) == (0, len(rows) - len(kept))
    await rig.engine.acknowledge()
    await restart(rig)
    for key in touched:
        assert await peek(rig.engine, key) == after[key]
    await rig.stop()


async def test_r5_superseded_entries_are_shown_as_such(world: World) -> None:
    """R5: the listing says which entries a retry will never bring back."""
    victim, rows, _ = unreadable_slots(world, known=True)
    rig = await start(world, victim)
    await overwritten(rig, world.keys[rows[1]])
    table = rig.engine._index.table
    for _ in range(2):
        shown = {table.row_id(e.slab or 0, e.slot or 0): e.superseded for e in rig.engine.skipped(0, 100)}
        assert shown == {row_id: row_id == rows[1] for row_id in rows}
        await restart(rig)
    await rig.stop()


async def test_r5_retry_brings_back_no_record_of_another_key_than_the_one_watched(world: World) -> None:
    """R5: the line said key A, the slot turns out to hold B, which was deleted since: B must stay deleted."""
    victim, rows, _ = unreadable_slots(world, known=True)
    other = settled_before(world, 1)[10]
    claimed = victim.row_with(world.raws[rows[0]], digest=world.rows[other].digest, write_id=7)
    for copy in world.copies:
        victim.image.write(victim.line_offset(copy, rows[0]), claimed)
    rig = await start(world, victim)
    key = world.keys[rows[0]]
    await deleted_though_absent(rig, key)
    rig.device.faults.clear()
    await rig.engine.retry()
    assert await peek(rig.engine, key) is None
    assert await peek(rig.engine, world.keys[other]) == world.values[world.keys[other]]
    assert rig.engine._index.table.state(rows[0]) == SlotState.QUARANTINED
    await rig.stop()


async def test_r5_retry_also_brings_back_what_failed_while_running(world: World) -> None:
    """R5, R8: a slot quarantined at run time is retried as well, without any partial recovery."""
    rig = await start(world, world.victim())
    row_id = settled_before(world, 1)[7]
    key = world.keys[row_id]
    victim = world.victim()
    victim.unreadable(world.offsets[row_id])
    rig.device.faults = victim.faults
    with pytest.raises(EntryUnreadable):
        await peek(rig.engine, key)
    assert quarantined_slots(rig.engine) == {row_id}
    rig.device.faults = []
    result = await rig.engine.retry()
    assert result.restored == 1
    assert await peek(rig.engine, key) == world.values[key]
    check_accounts(rig.engine)
    await rig.stop()


# -- while it runs -------------------------------------------------------------------------------------------------


async def acknowledged(rig: Rig, key: bytes) -> None:
    """The slot is freed, and another put takes it."""
    await rig.engine._partial.acknowledge()  # type: ignore[union-attr]
    for number in range(200):
        await put(rig.engine, b"meanwhile %d" % number, payload_of(number, 700))
        await rig.engine.flush()


@pytest.mark.parametrize("change", [overwritten, put_and_deleted, deleted_though_absent, acknowledged])
@pytest.mark.parametrize("known", [True, False], ids=["keys known", "keys unknown"])
async def test_r5_what_happens_while_a_retry_reads_is_not_undone_by_it(
    world: World, known: bool, change: Change
) -> None:
    """R5, B1: between the read of the slot and its return to life, the key or the slot may have changed."""
    victim, rows, _ = unreadable_slots(world, known=known, count=1)
    rig = await start(world, victim)
    rig.device.faults.clear()
    key, offset = world.keys[rows[0]], world.offsets[rows[0]]
    rig.device.hold = lambda kind, at, size: kind is OpKind.READ and at == offset
    retrying = asyncio.create_task(rig.engine.retry())
    await turns()
    assert len(rig.device.held) == 1
    await change(rig, key)
    after = await peek(rig.engine, key)
    rig.device.release_all()
    result = await retrying
    assert result.restored == 0
    assert await peek(rig.engine, key) == after
    for number in range(200 if change is acknowledged else 0):
        assert await peek(rig.engine, b"meanwhile %d" % number) == payload_of(number, 700)
    check_accounts(rig.engine)
    await rig.stop()


async def test_r5_a_deletion_still_in_the_queue_counts(world: World) -> None:
    """R5, D3: the deletion of an absent key has joined and is not durable yet; the entry must not come back."""
    victim, rows, _ = unreadable_slots(world, known=True, count=1)
    rig = await start(world, victim)
    rig.device.faults.clear()
    geometry = rig.engine._index.geometry
    rig.device.hold = lambda kind, at, _: kind is OpKind.WRITE and at < geometry.slabs_offset
    key = world.keys[rows[0]]
    deleting = asyncio.create_task(deleted_though_absent(rig, key))
    await turns()
    assert len(rig.device.held) == 1
    retrying = asyncio.create_task(rig.engine.retry())
    await turns(100)
    rig.device.release_all()
    await deleting
    assert (await retrying).restored == 0
    assert await peek(rig.engine, key) is None
    await rig.stop()
