"""Hit ratios: the running engine, a plain model of each policy, and libCacheSim are within a point of one another.

``make bench-hitratio`` does the same with longer traces, recorded ones among them, and writes docs/eviction.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest

from bench.hit_ratio_replay import Replayed, oracle, replay
from bench.hit_ratio_traces import Ids, scan_and_loop, zipf
from storage.options import EvictionPolicy

REQUESTS = 9000
OBJECTS = 6000
SLOT_AREA_BYTES = 4 << 20
POINT = 0.01


def clock_hits(keys: Ids, capacity: int) -> int:
    """CLOCK with a counter of two bits, as in the textbook."""
    queue: OrderedDict[int, int] = OrderedDict()
    hits = 0
    for key in keys.tolist():
        if key in queue:
            queue[key] = min(3, queue[key] + 1)
            hits += 1
            continue
        while len(queue) >= capacity:
            first, reads = queue.popitem(last=False)
            if reads:
                queue[first] = reads - 1
        queue[key] = 0
    return hits


def s3fifo_hits(keys: Ids, capacity: int) -> int:
    """S3-FIFO as in the paper: a tenth small, nine tenths remembered, two reads to move."""
    small: OrderedDict[int, int] = OrderedDict()
    main: OrderedDict[int, int] = OrderedDict()
    ghost: OrderedDict[int, None] = OrderedDict()
    room = capacity - capacity // 10
    hits = 0
    evicting = False
    for key in keys.tolist():
        queue = small if key in small else main if key in main else None
        if queue is not None:
            queue[key] = min(3, queue[key] + 1)
            hits += 1
            continue
        while len(small) + len(main) >= capacity:
            evicting = True
            if small and len(main) <= room:
                first, reads = small.popitem(last=False)
                if reads >= 2:
                    main[first] = 0
                else:
                    ghost[first] = None
                    if len(ghost) > capacity * 9 // 10:
                        ghost.popitem(last=False)
            else:
                first, reads = main.popitem(last=False)
                if reads:
                    main[first] = reads - 1
        returned = ghost.pop(key, key) is None
        grows = not evicting and len(small) >= capacity // 10
        (main if returned or grows else small)[key] = 0
    return hits


MODELS: dict[EvictionPolicy, Callable[[Ids, int], int]] = {
    EvictionPolicy.CLOCK: clock_hits,
    EvictionPolicy.S3FIFO: s3fifo_hits,
}
TRACES: dict[str, Callable[[np.random.Generator], Ids]] = {
    "zipf": lambda rng: zipf(rng, OBJECTS, REQUESTS, 0.9),
    "scan and loop": lambda rng: scan_and_loop(rng, OBJECTS, REQUESTS),
}


async def through_the_engine(keys: Ids, policy: EvictionPolicy) -> Replayed:
    return await replay(keys, np.full(len(keys), 100), policy, SLOT_AREA_BYTES)


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("policy", MODELS)
async def test_the_engine_hits_as_often_as_its_policy_promises(policy: EvictionPolicy, trace: str) -> None:
    keys = TRACES[trace](np.random.default_rng(7))
    engine = await through_the_engine(keys, policy)
    capacity = round(engine.entries)
    assert capacity > 900, "the device was full"
    model = MODELS[policy](keys, capacity) / len(keys)
    reference = oracle(policy.value, keys, capacity)[0]
    assert model == pytest.approx(reference, abs=POINT)
    assert engine.hit_ratio == pytest.approx(model, abs=POINT)
    assert engine.hit_ratio == pytest.approx(reference, abs=POINT)


async def test_keys_that_come_once_displace_less_with_s3fifo_than_with_lru() -> None:
    keys = TRACES["zipf"](np.random.default_rng(7))
    engine = await through_the_engine(keys, EvictionPolicy.S3FIFO)
    assert engine.hit_ratio > oracle("lru", keys, round(engine.entries))[0] + POINT
