"""What ``bench.stalls`` watches: one operation after the other, each on many entries at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import numpy as np

from storage.engine import Engine
from storage.entries import UNCONDITIONAL
from storage.format.row import SlotState
from storage.namespace_settings import NamespaceSettings
from storage.waiting import wait_all

NAMESPACE = "bench"


class Operations:
    """Everything that is measured, in the order in which one leaves the next its state."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.snapshot_id = self.lease_id = ""
        self.leased = self._some(10_000)
        self.mass = np.array([row_id for row_id, _ in self._some(20_000)])

    def all(self) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        return [
            ("nothing", self.nothing),
            ("checkpoint_full", self.checkpoint_full),
            ("checkpoint_1_percent", self.checkpoint_one_percent),
            ("status", self.status),
            ("listing", self.listing),
            ("listing_sparse", self.listing_sparse),
            ("lease_take", self.lease_take),
            ("lease_release", self.lease_release),
            ("snapshot_take", self.snapshot_take),
            ("snapshot_digests", self.snapshot_digests),
            ("snapshot_export_begin", self.snapshot_export_begin),
            ("snapshot_end", self.snapshot_end),
            ("expiry_nothing_due", self.expiry_nothing_due),
            ("expiry_mass", self.expiry_mass),
            ("quota_set", self.quota_set),
            ("quota_put", self.quota_put),
            ("quota_trim", self.quota_trim),
            ("quota_trim_held", self.quota_trim_held),
            ("scrub_copies", self.scrub_copies),
            ("scrub_free_slots", self.scrub_free_slots),
            ("evict_ahead", self.evict_ahead),
            ("slab_change", self.slab_change),
            ("compaction", self.compaction),
            ("quarantined_search", self.quarantined_search),
            ("events_last", self.events_last),
            ("delete_many", self.delete_many),
            ("void_freed", self.void_freed),
            ("void_freed", self.void_freed),
            ("void_freed", self.void_freed),
            ("wipe", self.wipe),
        ]

    async def nothing(self) -> None:
        await asyncio.sleep(2.0)

    async def checkpoint_full(self) -> int:
        target = self.engine._checkpointer._target()
        target.directory["seq"] = 0
        return (await self.engine.checkpoint()).bytes

    async def checkpoint_one_percent(self) -> int:
        table = self.engine._index.table
        used = np.flatnonzero(table.page_seq)
        row_ids = used[::100] * (table.geometry.block_bytes // 64) + 1
        commit = self.engine._commit
        for row_id in row_ids.tolist():
            row = table.row(row_id)
            if row.state == SlotState.LIVE:
                touched = commit.touch(row.digest, 0, UNCONDITIONAL)
                assert touched is not None
                await wait_all([touched[0]])
        return (await self.engine.checkpoint()).bytes

    async def status(self) -> None:
        for _ in range(20):
            self.engine.status()
            await asyncio.sleep(0)

    async def listing(self) -> None:
        await self.engine.list_entries("records", limit=1000)

    async def listing_sparse(self) -> None:
        cursor: str | None = ""
        while cursor is not None:
            page = await self.engine.list_entries("records", limit=1000, prefix=b"no such", cursor=cursor)
            cursor = page.cursor

    def _some(self, count: int) -> list[Any]:
        table = self.engine._index.table
        row_ids = table.row_ids()
        row_ids = row_ids[table.lines["namespace_id"][row_ids] == self._id()][:count]
        return [(row_id, table.row(row_id)) for row_id in row_ids.tolist()]

    def _id(self) -> int:
        return self.engine._index.namespaces.by_name[NAMESPACE].namespace_id

    async def lease_take(self) -> None:
        leases = self.engine._parts.leases
        for begin in range(0, len(self.leased), 512):  # as the batch API does
            part = self.leased[begin : begin + 512]
            self.lease_id = leases.take(NAMESPACE, self._id(), part, 60.0, "", self.lease_id).lease.lease_id
            await asyncio.sleep(0)

    async def lease_release(self) -> None:
        self.engine.release(self.lease_id)
        await asyncio.sleep(0.1)

    async def snapshot_take(self) -> None:
        self.snapshot_id = (await self.engine.take_snapshot(NAMESPACE, ttl_seconds=600)).snapshot_id

    async def snapshot_digests(self) -> None:
        async for _ in self.engine.snapshot_digests(self.snapshot_id):
            await asyncio.sleep(0)

    async def snapshot_export_begin(self) -> None:
        count = 0
        async for _ in self.engine.export(self.snapshot_id):
            count += 1
            if count > 100:
                break

    async def snapshot_end(self) -> None:
        self.engine.end_snapshot(self.snapshot_id)
        await asyncio.sleep(0.5)

    async def expiry_nothing_due(self) -> None:
        touched = self.engine._commit.touch(self.leased[0][1].digest, 2**31 - 1, UNCONDITIONAL)
        assert touched is not None
        await wait_all([touched[0]])
        await self.engine.expire()

    async def expiry_mass(self) -> None:
        lines, index = self.engine._index.table.lines, self.engine._index
        row_ids = self.mass
        lines["expires_at"][row_ids] = 1
        index.expiring += len(row_ids)
        await self.engine.expire()

    async def _quota(self, entries: int | None) -> None:
        await self.engine.set_namespace(NAMESPACE, NamespaceSettings(quota_entries=entries))

    async def quota_set(self) -> None:
        await self._quota(self.engine.namespace(NAMESPACE).entries)

    async def quota_put(self) -> None:
        for number in range(64):
            put = await self.engine.begin_put(NAMESPACE, b"quota-%d" % number, 10)
            await put.write(bytes(10))
            await put.commit()

    async def quota_trim(self) -> None:
        await self._quota(self.engine.namespace(NAMESPACE).entries - 20_000)

    async def quota_trim_held(self) -> None:
        entries = self.engine.namespace(NAMESPACE).entries
        snapshot = await self.engine.take_snapshot(NAMESPACE, ttl_seconds=600)
        await self._quota(entries - 1000)
        self.engine.end_snapshot(snapshot.snapshot_id)
        await self._quota(None)

    async def scrub_copies(self) -> None:
        for copy in self.engine._checkpointer.copies:
            await self.engine.scrubber._scrub_copy(copy)

    async def scrub_free_slots(self) -> None:
        await self.engine.scrubber._scrub_slab(int(self.engine._index.table.slabs_of(self.mass[:1])[0]))

    async def evict_ahead(self) -> None:
        evicting = self.engine._space.evicting
        with mock.patch.object(evicting, "reserve", lambda kind: self.engine._index.slots.free_count(kind) + 20_000):
            await evicting.evict(0)

    async def slab_change(self) -> None:
        space = self.engine._space
        space.evicting.take_slab([0])
        while self.engine._index.slots.draining:
            await space.relax()
            await self.engine.flush()
            await asyncio.sleep(0.001)
        put = await self.engine.begin_put(NAMESPACE, b"large", 600_000)
        await put.write(bytes(600_000))
        await put.commit()

    async def delete_many(self) -> None:
        await self.engine.delete_many("records", [b"no record %d" % number for number in range(10_000)])

    async def void_freed(self) -> int:
        target = self.engine._checkpointer._target()
        target.directory["seq"] = 0
        return (await self.engine.checkpoint()).bytes

    async def compaction(self) -> None:
        self.engine._journal.complete_since = 0
        await self.engine._maintenance.compactor.run()

    async def quarantined_search(self) -> None:
        assert self.engine._partial is not None
        await self.engine._partial.acknowledge()

    async def events_last(self) -> None:
        self.engine.events.subscribe(last=100, accepts=lambda name: name == "none").close()
        self.engine.events.cut(self.engine.events.seq, "unknown_loss")

    async def wipe(self) -> None:
        await self.engine.wipe_namespace(NAMESPACE)
        await asyncio.sleep(3.0)
