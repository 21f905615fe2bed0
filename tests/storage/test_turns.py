"""What works on many entries does so in steps that do not grow with them; mutations between the steps do no harm."""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from storage.commit import Commit
from storage.engine import Engine
from storage.errors import (
    EntryNotFound,
    NamespaceWiped,
    QuotaExceeded,
    RawblockdError,
    SnapshotNotFound,
    SpaceHeld,
)
from storage.format.row import SlotState
from storage.index import Index
from storage.namespace_settings import NamespaceSettings
from storage.options import EvictionPolicy
from storage.row_set import RowSet
from storage.slots import Slots
from storage.snapshots import SnapshotView
from storage.table_walk import page_runs, row_ids_where
from tests.support.engines import OPTIONS, Rig, check_accounts, payload_of, peek, put, short_journal, until

AT_ONCE = 16
"""Rows that one step may look at or change where all limits are as low as below."""
LIMITS = {
    "storage.table_walk.PAGES_AT_ONCE": 1,
    "storage.snapshot_cut.PAGES_AT_ONCE": 1,
    "storage.quota_queue.PAGES_AT_ONCE": 1,
    "storage.expiry.PAGES_AT_ONCE": 1,
    "storage.namespace_changes.PAGES_AT_ONCE": 1,
    "storage.namespace_changes.FREED_AT_ONCE": AT_ONCE,
    "storage.expiry.UNITS_AT_ONCE": AT_ONCE,
    "storage.evicting.UNITS_AT_ONCE": AT_ONCE,
    "storage.settling.SETTLED_AT_ONCE": AT_ONCE,
    "storage.quotas.TRIM_ENTRIES": AT_ONCE,
    "storage.entry_changes.ROWS_CHANGED_AT_ONCE": AT_ONCE,
    "storage.compaction.UNITS_AT_ONCE": 1,
    "storage.journal.PUBLISHED_AT_ONCE": 1,
    "storage.leases.LET_GO_AT_ONCE": AT_ONCE,
    "storage.checkpoint.writing.WRITE_BYTES": 4096,
    "storage.checkpoint.writing.PAUSE_SECONDS": 0.0,
    "storage.checkpoint.tail.LOOKED_AT_ONCE": AT_ONCE,
    "storage.listing.BUCKETS_AT_ONCE": 64,
}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with contextmanager(_low_limits)():
        made = Rig(options=replace(OPTIONS, eviction=EvictionPolicy.CLOCK))
        await made.start()
        yield made
        if made.engine.state.value != "stopped":
            await made.stop()


def _low_limits() -> Iterator[None]:
    with short_journal():
        patches = [mock.patch(name, value) for name, value in LIMITS.items()]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


# -- how much one step does -------------------------------------------------------------------------------------------


class StepMeter:
    """Counts rows changed, joined, settled and looked at in each step of the loop; keeps the most of each."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def count(self, what: str, number: int = 1) -> None:
        self._now[what] = self._now.get(what, 0) + number
        self.most[what] = max(self.most.get(what, 0), self._now[what])

    @contextmanager
    def watching(self) -> Iterator[None]:
        run, apply_row, join_free = events.Handle._run, Index.apply_row, Commit._join_free
        release, rows_where = Slots._release, row_ids_where

        def step(handle: events.Handle) -> None:
            self._now.clear()
            run(handle)

        def counted(what: str, function: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object) -> object:
                self.count(what)
                return function(*arguments)

            return call

        def look(table: object, pages: tuple[int, int], condition: object) -> object:
            self.count("pages", pages[1] - pages[0])
            return rows_where(table, pages, condition)  # type: ignore[arg-type]

        users = ("snapshot_cut", "quota_queue", "expiry", "namespace_changes", "compaction", "partial")
        with (
            mock.patch.object(events.Handle, "_run", step),
            mock.patch.object(Index, "apply_row", counted("changed", apply_row)),
            mock.patch.object(Commit, "_join_free", counted("joined", join_free)),
            mock.patch.object(Slots, "_release", counted("released", release)),
        ):
            patches = [mock.patch(f"storage.{user}.row_ids_where", look) for user in users]
            for patch in patches:
                patch.start()
            yield
            for patch in patches:
                patch.stop()


async def _fill(engine: Engine, count: int = 300) -> None:
    for number in range(count):
        await put(engine, b"key %d" % number, payload_of(number, 50))


async def _snapshot(engine: Engine) -> None:
    view = await engine.take_snapshot("n", ttl_seconds=60)
    assert view.entries == 300
    for number in range(100):
        await engine.delete("n", b"key %d" % number)
    await engine.flush()
    engine.end_snapshot(view.snapshot_id)


async def _lease(engine: Engine) -> None:
    keys = [b"key %d" % number for number in range(100)]
    lease = engine.lease("n", keys, ttl_seconds=60).lease
    await engine.delete_many("n", keys)
    await engine.flush()
    engine.release(lease.lease_id)
    await until(lambda: not engine._parts.leases._ending)
    assert engine._parts.leases.held_bytes == 0
    assert engine._index.slots.holds_count == 0


async def _wipe(engine: Engine) -> None:
    await engine.wipe_namespace("n")
    await until(lambda: not engine._index.namespaces.dying)


async def _quota(engine: Engine) -> None:
    view, _ = await engine.set_namespace("n", NamespaceSettings(quota_entries=100))
    assert view.entries == 100


async def _quota_with_all_held(engine: Engine) -> None:
    view = await engine.take_snapshot("n", ttl_seconds=60)
    await engine.set_namespace("n", NamespaceSettings(quota_entries=100))
    assert engine.namespace("n").entries == 300
    engine.end_snapshot(view.snapshot_id)


async def _expiry(engine: Engine) -> None:
    keys = [b"key %d" % number for number in range(300)]
    for key in keys:
        await engine.touch("n", key, expires_at=int(engine._clock()) + 10)
    engine._clock.advance(20)  # type: ignore[attr-defined]
    await engine.expire()
    assert engine.namespace("n").entries == 0


async def _delete_many(engine: Engine) -> None:
    await engine.delete_many("n", [b"key %d" % number for number in range(300)])


async def _compaction(engine: Engine) -> None:
    await engine._maintenance.compactor.run()


async def _checkpoints(engine: Engine) -> None:
    await engine.delete_many("n", [b"key %d" % number for number in range(300)])
    for _ in range(4):
        await engine.checkpoint()
    assert not len(engine._index.slots.freed_unvoided)


@pytest.mark.parametrize(
    "work",
    [_snapshot, _lease, _wipe, _quota, _quota_with_all_held, _expiry, _delete_many, _compaction, _checkpoints],
    ids=lambda work: work.__name__.strip("_"),
)
async def test_l2_no_step_grows_with_the_number_of_entries(rig: Rig, work: Callable[[Engine], Awaitable[None]]) -> None:
    await _fill(rig.engine)
    meter = StepMeter()
    with meter.watching():
        await asyncio.sleep(0)
        await work(rig.engine)
        await rig.engine.flush()
        await until(lambda: rig.engine._space.settling._rest is None)
    assert meter.most.get("pages", 0) <= 2
    assert meter.most.get("joined", 0) <= AT_ONCE
    # A block of the journal is published as a whole, and one more row may come with each step.
    assert meter.most.get("changed", 0) <= rig.engine._index.geometry.rows_per_journal_block
    assert meter.most.get("released", 0) <= 2 * AT_ONCE
    check_accounts(rig.engine)


# -- mutations between the steps --------------------------------------------------------------------------------------


class Writers:
    """Mutations at random in two namespaces, and what is published after each: the model."""

    def __init__(self, engine: Engine, seed: int, keys: int = 160) -> None:
        self.engine, self.rng, self.keys = engine, random.Random(seed), keys
        self.stopped = False

    def published(self, name: str = "n") -> dict[bytes, int]:
        """Digest to write id of all live, unexpired rows of a namespace, by a look at each row."""
        index = self.engine._index
        known = index.namespaces.by_name.get(name)
        rows = [index.table.row(row_id) for row_id in index.table.row_ids().tolist()]
        return {
            row.digest: row.write_id
            for row in rows
            if known is not None
            and row.state == SlotState.LIVE
            and row.namespace_id == known.namespace_id
            and not (row.expires_at and row.expires_at <= self.engine._clock())
        }

    async def run(self) -> None:
        while not self.stopped:
            await self.once()

    async def once(self) -> None:
        key = b"key %d" % self.rng.randrange(self.keys)
        name = self.rng.choice("nnm")
        chance = self.rng.random()
        payload = payload_of(self.rng.randrange(99), self.rng.choice([10, 3000]))
        try:
            if chance < 0.55:
                await put(self.engine, key, payload, namespace=name)
            elif chance < 0.8:
                await self.engine.delete(name, key)
            elif chance < 0.9:
                await self.engine.touch(name, key, expires_at=int(self.engine._clock()) + 1000)
            else:
                await self.engine.flush()
        except (EntryNotFound, NamespaceWiped, QuotaExceeded, SpaceHeld):
            await asyncio.sleep(0)

    @contextmanager
    def writing(self, count: int = 4) -> Iterator[list[asyncio.Task[None]]]:
        self.tasks = [asyncio.create_task(self.run()) for _ in range(count)]
        yield self.tasks

    async def end(self) -> None:
        self.stopped = True
        await asyncio.gather(*self.tasks)


async def _exported(engine: Engine, snapshot_id: str) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    async with aclosing(engine.export(snapshot_id)) as entries:
        async for _, row, reader in entries:
            assert not isinstance(reader, RawblockdError), reader
            assert reader.info.write_id == row.write_id
            async for _piece in reader.pieces():
                pass
            reader.close()
            found[row.digest] = row.write_id
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_l3_a_snapshot_is_one_moment_though_it_is_taken_in_steps(rig: Rig, seed: int) -> None:
    """B1, L3: puts, overwrites, deletions, expiries, wipes and checkpoints go on between the steps."""
    engine = rig.engine
    for number in range(160):
        await put(engine, b"key %d" % number, payload_of(number, 500))
    writers = Writers(engine, seed)
    with writers.writing():
        for round_ in range(6):
            for _ in range(writers.rng.randrange(40)):
                await asyncio.sleep(0)
            if engine._index.namespaces.by_name.get("n") is None:
                await put(engine, b"key 0", b"v")
            expected: list[dict[bytes, int]] = []

            async def take(expected: list[dict[bytes, int]] = expected) -> SnapshotView:
                expected.append(writers.published())
                return await engine.take_snapshot("n", ttl_seconds=60)  # begins in the same step

            taking = asyncio.create_task(take())
            if round_ % 3 == 1:
                await asyncio.sleep(0)
                await engine.wipe_namespace("n")
            if round_ % 3 == 2:
                await engine.checkpoint()
            view = await taking
            assert await _exported(engine, view.snapshot_id) == expected[0]
            row_ids = engine._parts.snapshots.find(view.snapshot_id).row_ids
            assert (np.diff(row_ids) > 0).all()
            engine.end_snapshot(view.snapshot_id)
    await writers.end()
    await engine.flush()
    await until(lambda: engine._space.settling._rest is None)
    assert not engine._index.slots.held_in_slab.any()
    assert not engine._index.before_change
    check_accounts(engine)


async def test_l3_a_snapshot_whose_caller_leaves_between_the_steps_holds_nothing(rig: Rig) -> None:
    engine = rig.engine
    await _fill(engine)
    for steps in range(8):
        taking = asyncio.create_task(engine.take_snapshot("n", ttl_seconds=60))
        for _ in range(steps):
            await asyncio.sleep(0)
        await engine.delete("n", b"key %d" % (299 - steps))
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled():
            engine.end_snapshot(taking.result().snapshot_id)
    await engine.flush()
    await until(lambda: engine._space.settling._rest is None)
    assert not engine.snapshots()
    assert not engine._index.before_change
    assert not engine._index.slots.held_in_slab.any()
    assert engine.status().capacity.slots.limbo == 0
    check_accounts(engine)


async def test_l3_what_a_snapshot_is_about_to_hold_is_no_victim(rig: Rig) -> None:
    engine = rig.engine
    await _fill(engine)
    taking = asyncio.create_task(engine.take_snapshot("n", ttl_seconds=60))
    await asyncio.sleep(0)
    row_ids = engine._index.table.row_ids()
    live = row_ids[engine._index.table.lines["state"][row_ids] == SlotState.LIVE].tolist()
    assert not taking.done()
    assert not any(engine._space.may_go(row_id) for row_id in live)
    await put(engine, b"later", b"v")
    later = engine._index.keys.find(engine._identity.digest(1, b"later"))
    assert engine._space.may_go(later)
    view = await taking
    assert view.entries == 300
    engine.end_snapshot(view.snapshot_id)
    with pytest.raises(SnapshotNotFound):
        engine.snapshot(view.snapshot_id)


async def test_l3_freed_bytes_count_what_goes_while_a_snapshot_is_taken(rig: Rig) -> None:
    engine = rig.engine
    await _fill(engine)
    taking = asyncio.create_task(engine.take_snapshot("n", ttl_seconds=60))
    await asyncio.sleep(0)
    for number in (0, 150, 299):  # gathered already, and not yet
        await engine.delete("n", b"key %d" % number)
    view = await taking
    await engine.delete("n", b"key 7")
    assert engine.snapshot(view.snapshot_id).freed_bytes == 4 * 4096
    assert view.entries == 300


@pytest.mark.parametrize("seed", range(4))
async def test_a2_a_quota_queue_made_between_mutations_misses_no_entry(rig: Rig, seed: int) -> None:
    """Every live entry is in it exactly once, in whatever order mutations came between the steps."""
    engine = rig.engine
    for number in range(120):
        await put(engine, b"key %d" % number, payload_of(number, 50))
    await engine.set_namespace("n", NamespaceSettings(quota_entries=1000))
    writers = Writers(engine, seed)
    namespace = engine._index.namespaces.by_name["n"]
    quotas = engine._commit.quotas
    with writers.writing():
        for _ in range(5):
            quotas.forget(namespace.namespace_id)
            await quotas.prepare(namespace)
            for _ in range(writers.rng.randrange(20)):
                await asyncio.sleep(0)
    await writers.end()
    queue = quotas._queues[namespace.namespace_id]
    members = queue.take(len(queue)).tolist()
    table = engine._index.table
    present = [m for m in members if table.row(m >> 32).write_id & 0xFFFFFFFF == m & 0xFFFFFFFF]
    present = [m for m in present if table.state(m >> 32) == SlotState.LIVE]
    assert len(present) == len(set(present)) == namespace.entries


async def test_a2_a_quota_that_is_reached_by_many_at_once_holds(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=40))
    writers = Writers(engine, 9)
    with writers.writing(8):
        for _ in range(400):
            await asyncio.sleep(0)
            assert namespace_entries(engine) <= 40
    await writers.end()
    check_accounts(engine)


def namespace_entries(engine: Engine) -> int:
    known = engine._index.namespaces.by_name.get("n")
    return known.entries if known is not None else 0


@pytest.mark.parametrize("seed", range(4))
async def test_d2_a_checkpoint_and_a_compaction_between_mutations_lose_nothing(rig: Rig, seed: int) -> None:
    """A crash at any moment, after copies and journal were written in steps: the state is the published one."""
    engine = rig.engine
    writers = Writers(engine, seed)
    with writers.writing():
        for round_ in range(5):
            if round_ == 2:
                await engine._maintenance.compactor.run()
            else:
                await engine.checkpoint()
    await writers.end()
    expected = writers.published()
    engine = await rig.crash()
    assert not engine.status().partial_recovery
    assert Writers(engine, 0).published() == expected
    check_accounts(engine)


async def test_a_listing_in_steps_is_complete_for_what_stays(rig: Rig) -> None:
    engine = rig.engine
    for number in range(200):
        await put(engine, b"stays %d" % number, b"v")
    writers = Writers(engine, 3)
    with writers.writing(2):
        listed: list[bytes] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await engine.list_entries("n", prefix=b"stays", cursor=cursor, limit=30)
            listed += [entry.key for entry in page.entries]
            cursor = page.cursor
    await writers.end()
    assert sorted(listed) == sorted(b"stays %d" % number for number in range(200))


async def test_a_stop_between_the_steps(rig: Rig) -> None:
    """A wipe, a queue and a checkpoint are under way: the stop ends them, and the next start has all of it."""
    engine = rig.engine
    await _fill(engine)
    await put(engine, b"other", b"v", namespace="m")
    await engine.set_namespace("m", NamespaceSettings(quota_entries=16))
    await engine.wipe_namespace("n")
    engine._commit.quotas._make_soon(engine._index.namespaces.by_name["m"])
    checkpoint = asyncio.create_task(engine.checkpoint())
    await asyncio.sleep(0)
    await rig.stop()
    await checkpoint
    engine = await rig.start_over(rig.device.image)
    assert await peek(engine, b"other", namespace="m") == b"v"
    assert await peek(engine, b"key 1") is None
    await engine.expire()
    await until(lambda: not engine._index.namespaces.dying)
    assert engine.status().capacity.slots.live == 1
    check_accounts(engine)


# -- the tools ---------------------------------------------------------------------------------------------------------


def test_a_row_set_is_a_set() -> None:
    rng, rows, model = random.Random(5), RowSet(1000), set[int]()
    for _ in range(3000):
        row_id, chance = rng.randrange(1000), rng.random()
        if chance < 0.45:
            rows.add(row_id)
            model.add(row_id)
        elif chance < 0.9:
            rows.discard(row_id)
            model.discard(row_id)
        elif chance < 0.95:
            many = np.array([rng.randrange(1000) for _ in range(20)])
            rows.add_all(many)
            model |= set(many.tolist())
        else:
            rows.discard_between(row_id, row_id + 10)
            model -= set(range(row_id, row_id + 10))
        assert len(rows) == len(model)
        assert (row_id in rows) == (row_id in model)
    assert set(rows) == model
    assert rows.between(200, 700).tolist() == sorted(r for r in model if 200 <= r < 700)


async def test_a_walk_finds_every_row_and_no_page_header(rig: Rig) -> None:
    engine = rig.engine
    await _fill(engine, 150)
    await put(engine, b"large", payload_of(1, 300_000))
    await engine.checkpoint()
    engine = await rig.reopen()  # pages come with their header lines
    table = engine._index.table
    every = [row_ids_where(table, pages, lambda rows: rows["seq"] > 0) for pages in page_runs(table)]
    assert np.concatenate(every).tolist() == table.row_ids().tolist()
