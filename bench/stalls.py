"""How long the loop stands still during what works on many entries at once.

    python -m bench.stalls [--entries 1000000] [--only NAME,...] [--device FILE]

Fills a sparse device as ``bench.restart`` does, adds some records that are read back, and runs one operation after the
other while tasks in the background get values at random. Of each operation it prints:

- ``step_ms``: the processor time of its longest single step on the loop: what no other request gets in between. The
  figure does not depend on who else uses the machine;
- ``gc_ms``: of the longest garbage collection, which is in the longest step if it fell into one;
- ``gap_ms``: the longest time between two calls of a callback that wants to be called every millisecond: what clients
  feel, threads that keep the interpreter included;
- ``p99_ratio``: the 99th percentile of the gets during the operation to that of gets without, on the same machine a
  moment before;
- ``seconds``, and for checkpoints ``bytes_ratio``: bytes written to those of a full one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from bench.restart import ROOM, SLOT_BYTES, fill
from storage.device.opening import open_device
from storage.engine import Engine
from storage.entries import UNCONDITIONAL
from storage.format.row import SlotState
from storage.formatting import format_device
from storage.namespace_settings import NamespaceSettings
from storage.options import EngineOptions
from storage.waiting import wait_all

RECORDS = 1000
VALUE_BYTES = 3000
GETTERS = 4
NAMESPACE = "bench"
OPTIONS = EngineOptions(buffer_bytes=64 << 20, background=False, scrub_bytes_per_second=0)


@dataclass
class Measured:
    """What was seen of one operation."""

    step_seconds: float = 0.0
    step_of: str = ""
    collection_seconds: float = 0.0
    gap_seconds: float = 0.0
    get_seconds: list[float] = field(default_factory=list)


@contextmanager
def longest_step(measured: Measured) -> Any:
    """Take the processor time of each callback that the loop runs."""
    run = events.Handle._run

    def timed(handle: events.Handle) -> None:
        begin = time.thread_time()
        run(handle)
        spent = time.thread_time() - begin
        if spent > measured.step_seconds:
            measured.step_seconds, measured.step_of = spent, _name_of(handle)

    began = 0.0

    def collecting(phase: str, _info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        else:
            measured.collection_seconds = max(measured.collection_seconds, time.thread_time() - began)

    gc.callbacks.append(collecting)
    events.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        gc.callbacks.remove(collecting)
        events.Handle._run = run  # type: ignore[method-assign]


def _name_of(handle: events.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return str(getattr(coroutine, "__qualname__", coroutine))
    return str(getattr(callback, "__qualname__", callback))


@asynccontextmanager
async def watched(engine: Engine, measured: Measured) -> AsyncIterator[None]:
    """Background gets and the gap between turns of the loop, while the body runs."""
    loop = asyncio.get_running_loop()
    last = loop.time()
    stopped = False

    def tick() -> None:
        nonlocal last
        now = loop.time()
        measured.gap_seconds = max(measured.gap_seconds, now - last)
        last = now
        if not stopped:
            loop.call_later(0.001, tick)

    async def get() -> None:
        chosen = random.Random(1)
        while not stopped:
            begin = loop.time()
            reader = await engine.open_read("records", b"record-%d" % chosen.randrange(RECORDS))
            async for _ in reader.pieces(0, VALUE_BYTES):
                pass
            reader.close()
            measured.get_seconds.append(loop.time() - begin)
            await asyncio.sleep(0.0005)

    tick()
    getters = [loop.create_task(get()) for _ in range(GETTERS)]
    try:
        with longest_step(measured):
            await asyncio.sleep(0)  # so that what follows begins in a step that is measured
            yield
    finally:
        stopped = True
        await asyncio.gather(*getters)


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
        space = self.engine._space
        with mock.patch.object(space, "_reserve", lambda kind: self.engine._index.slots.free_count(kind) + 20_000):
            await space._evict(0)

    async def slab_change(self) -> None:
        space = self.engine._space
        space._take_slab([0])
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


async def add_records(engine: Engine) -> None:
    for number in range(RECORDS):
        put = await engine.begin_put("records", b"record-%d" % number, VALUE_BYTES)
        await put.write(bytes(VALUE_BYTES))
        await put.commit()


async def run(path: str, only: set[str]) -> list[dict[str, object]]:
    device = open_device(path, write=True)
    engine = Engine(device, OPTIONS)
    await engine.start()
    await add_records(engine)
    operations = Operations(engine)
    gc.collect()
    gc.freeze()  # as the daemon does after its start
    for _ in range(3):
        await engine.checkpoint()
    results: list[dict[str, object]] = []
    full_bytes = 0
    for name, operation in operations.all():
        if only and name not in only:
            continue
        before, measured = Measured(), Measured()
        async with watched(engine, before):
            await asyncio.sleep(0.5)
        begin = time.perf_counter()
        async with watched(engine, measured):
            written = await operation()
        seconds = time.perf_counter() - begin
        result: dict[str, object] = {
            "operation": name,
            "step_ms": round(measured.step_seconds * 1000, 2),
            "step_of": measured.step_of,
            "gc_ms": round(measured.collection_seconds * 1000, 2),
            "gap_ms": round(measured.gap_seconds * 1000, 2),
            "seconds": round(seconds, 3),
        }
        if len(measured.get_seconds) >= 100:
            result["p99_ratio"] = round(_p99(measured) / _p99(before), 2)
        if isinstance(written, int):
            full_bytes = full_bytes or written
            result["bytes_ratio"] = round(written / full_bytes, 4)
        results.append(result)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    await engine.stop(checkpoint=False)
    device.close()
    return results


def _p99(measured: Measured) -> float:
    return statistics.quantiles(measured.get_seconds, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="names of operations, with commas between")
    parser.add_argument("--device", help="a filled device of an earlier run; it is changed")
    arguments = parser.parse_args()
    logging.disable()
    path = arguments.device or os.path.join(tempfile.gettempdir(), "rawblockd-stalls.device")
    if not arguments.device:
        with open(path, "wb") as file:
            file.truncate(int(arguments.entries * SLOT_BYTES * ROOM) + (256 << 20))
        format_device(path, smallest_slot_bytes=SLOT_BYTES, force=True)
        asyncio.run(fill(path, arguments.entries, {b"first": b"value"}))
    try:
        asyncio.run(run(path, set(filter(None, arguments.only.split(",")))))
    finally:
        if not arguments.device:
            os.unlink(path)


if __name__ == "__main__":
    main()
