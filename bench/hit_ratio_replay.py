"""Replaying a trace through the running engine, and through libCacheSim at the capacity that the engine turned out to
have: a get, and on a miss a put, one request after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import libcachesim
import numpy as np
import uvloop

from bench.hit_ratio_traces import Ids
from bench.memory_device import MemoryDevice
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import EntryNotFound, GeometryInvalid
from storage.format.geometry import Geometry, plan
from storage.format.superblock import Superblock
from storage.formatting import write_format
from storage.options import EngineOptions, EvictionPolicy

SLAB_BYTES = 1 << 20
SLOT_BYTES = 4096
SLABS_MIN = 4
NAMESPACE = "replay"
SAMPLE_EVERY = 64
VALUE = b"v"
CLOCK_BITS = 2
"""The engine's counter of reads has two bits."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """``entries`` and ``slot_bytes`` are what the engine held in the mean once it had begun to evict."""

    hit_ratio: float
    byte_hit_ratio: float
    entries: float
    slot_bytes: float


def device_for(slot_area_bytes: int) -> tuple[MemoryDevice, Geometry]:
    """A formatted device in memory with slabs of so many bytes in all, rounded up to whole slabs."""
    slabs = max(SLABS_MIN, -(-slot_area_bytes // SLAB_BYTES))
    size = slabs * SLAB_BYTES
    geometry = None
    while geometry is None or geometry.slabs < slabs:
        size += SLAB_BYTES // 4
        with contextlib.suppress(GeometryInvalid):  # too small for its reserved areas
            geometry = plan(size, slab_bytes=SLAB_BYTES, smallest_slot_bytes=SLOT_BYTES)
    device = MemoryDevice(geometry.device_bytes)
    write_format(device, Superblock(bytes(range(16)), bytes(range(32)), 1_700_000_000_000, geometry))
    return device, geometry


async def replay(keys: Ids, sizes: Ids, policy: EvictionPolicy, slot_area_bytes: int) -> Replayed:
    """Every request through ``open_read``, every miss through a put at level ``journal``."""
    device, geometry = device_for(slot_area_bytes)
    engine = Engine(device, EngineOptions(eviction=policy, buffer_bytes=16 << 20, background=False))
    await engine.start()
    payload = VALUE * int(sizes.max())
    hits = hit_bytes = 0
    samples: list[tuple[int, int]] = []
    for number, (key, size) in enumerate(zip(keys.tolist(), sizes.tolist(), strict=True)):
        name = b"%d" % key
        try:
            (await engine.open_read(NAMESPACE, name)).close()
        except EntryNotFound:
            await _put(engine, name, payload[:size])
        else:
            hits += 1
            hit_bytes += size
        if number % SAMPLE_EVERY == 0 and engine.counters.evictions["evicted"]:
            live = engine._index.live
            samples.append((sum(live), sum(n * s for n, s in zip(live, geometry.class_bytes, strict=True))))
    await engine.stop(checkpoint=False)
    device.close()
    entries, slot_bytes = np.mean(samples, axis=0).tolist() if samples else (0.0, 0.0)
    return Replayed(hits / len(keys), hit_bytes / int(sizes.sum()), entries, slot_bytes)


async def _put(engine: Engine, key: bytes, payload: bytes) -> None:
    session = await engine.begin_put(NAMESPACE, key, len(payload), durability=Durability.JOURNAL)
    try:
        await session.write(payload)
        await session.commit()
    finally:
        session.abort()


def replayed(keys: Ids, sizes: Ids, policy: EvictionPolicy, slot_area_bytes: int) -> Replayed:
    """As ``replay``, on a loop of its own."""
    return uvloop.run(replay(keys, sizes, policy, slot_area_bytes))


ORACLES: dict[str, Callable[[int], libcachesim.cache.CacheBase]] = {
    "clock": lambda size: libcachesim.Clock(size, n_bit_counter=CLOCK_BITS, hashpower=18),
    "s3fifo": lambda size: libcachesim.S3FIFO(size, hashpower=18),
    "lru": lambda size: libcachesim.LRU(size, hashpower=18),
}


def oracle(name: str, keys: Ids, capacity: int, sizes: Ids | None = None) -> tuple[float, float]:
    """Hit ratio and byte hit ratio of libCacheSim's policy of this name. Without sizes capacity counts objects."""
    cache = ORACLES[name](capacity)
    hits = hit_bytes = total = 0
    request = libcachesim.Request()
    every_size = [1] * len(keys) if sizes is None else sizes.tolist()
    for key, size in zip(keys.tolist(), every_size, strict=True):
        request.obj_id, request.obj_size = key, size
        total += size
        if cache.get(request):
            hits += 1
            hit_bytes += size
    return hits / len(keys), hit_bytes / total
