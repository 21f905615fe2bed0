"""Hit ratios of the eviction policies: the running engine against libCacheSim, and against LRU.

    python -m bench.hit_ratio [--requests 200000] [--traces var/traces] [--page docs/eviction.md]

Each trace is replayed with each policy through an engine on a device in memory. The reference then gets the capacity
that the engine turned out to have, in entries: what it held in the mean while it evicted, so without what is free ahead
of need, in limbo or in flight. All values of these runs are of one size, so that slot classes play no part. A second
table is of values of many sizes; there the reference counts the slots' bytes.

Writes the tables into the page between their marks, and a plot beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.hit_ratio_replay import SLOT_BYTES, Replayed, device_for, oracle, replayed
from bench.hit_ratio_report import MixedRow, Row, write_page, write_plot
from bench.hit_ratio_traces import Trace, mixed, recorded, synthetic
from storage.options import EvictionPolicy

SHARES = (0.02, 0.1)
"""Capacities, as shares of a trace's footprint. A device has no fewer than four slabs, some 1000 slots."""
POLICIES = (EvictionPolicy.CLOCK, EvictionPolicy.S3FIFO)
VALUE_BYTES = 100
OBJECTS = 100_000
HEADER_BYTES = 256
"""The record's header with the short keys of a trace."""


@dataclass(frozen=True, slots=True)
class Job:
    """One replay and its reference."""

    trace: Trace
    share: float
    policy: EvictionPolicy
    one_size: bool


@dataclass(frozen=True, slots=True)
class Done:
    job: Job
    engine: Replayed
    reference: tuple[float, float]
    lru: tuple[float, float]
    seconds: float


def run(job: Job) -> Done:
    started = time.perf_counter()
    keys, sizes = job.trace.keys, job.trace.sizes
    if job.one_size:
        sizes = np.full(len(keys), VALUE_BYTES)
        area = int(job.trace.footprint * job.share * SLOT_BYTES)
        engine = replayed(keys, sizes, job.policy, area)
        reference = oracle(job.policy.value, keys, round(engine.entries))
        lru = oracle("lru", keys, round(engine.entries))
    else:
        first = np.unique(keys, return_index=True)[1]
        area = int(sizes[first].sum() * job.share)
        engine = replayed(keys, sizes, job.policy, area)
        slots = slot_sizes(sizes, area)
        reference = oracle(job.policy.value, keys, round(engine.slot_bytes), slots)
        lru = oracle("lru", keys, round(engine.slot_bytes), slots)
    return Done(job, engine, reference, lru, time.perf_counter() - started)


def slot_sizes(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], area: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The bytes of the slot that each value takes."""
    device, geometry = device_for(area)
    device.close()
    classes = np.array(geometry.class_bytes)
    return classes[np.searchsorted(classes, sizes + HEADER_BYTES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--traces", type=Path, default=Path("var/traces"))
    parser.add_argument("--page", type=Path, default=Path("docs/eviction.md"))
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    traces = synthetic(arguments.requests, OBJECTS)
    traces += [trace.shortened(arguments.requests) for trace in recorded(arguments.traces)]
    jobs = [Job(trace, share, policy, True) for trace in traces for share in SHARES for policy in POLICIES]
    several = [mixed(arguments.requests // 2, OBJECTS // 4), traces[-2]]
    jobs += [Job(trace, SHARES[-1], policy, False) for trace in several for policy in POLICIES]
    done: list[Done] = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for result in pool.map(run, jobs):
            done.append(result)
            sys.stdout.write(_line(result) + "\n")
            sys.stdout.flush()
    rows = [
        Row(
            trace=clock.job.trace.name,
            requests=len(clock.job.trace.keys),
            footprint=clock.job.trace.footprint,
            share=clock.job.share,
            entries=(clock.engine.entries, s3fifo.engine.entries),
            lru=(clock.lru[0], s3fifo.lru[0]),
            engine=(clock.engine.hit_ratio, s3fifo.engine.hit_ratio),
            reference=(clock.reference[0], s3fifo.reference[0]),
        )
        for clock, s3fifo in _pairs([result for result in done if result.job.one_size])
    ]
    mixed_rows = [
        MixedRow(
            trace=result.job.trace.name,
            policy=result.job.policy.value,
            slot_bytes=result.engine.slot_bytes,
            engine=(result.engine.hit_ratio, result.engine.byte_hit_ratio),
            reference=result.reference,
            lru=result.lru,
        )
        for result in done
        if not result.job.one_size
    ]
    write_page(arguments.page, rows, mixed_rows)
    write_plot(arguments.page.parent / "images" / "hit-ratios.svg", [row for row in rows if row.share == SHARES[-1]])


def _pairs(results: list[Done]) -> list[tuple[Done, Done]]:
    """Both policies' results of each trace and capacity."""
    return list(zip(results[::2], results[1::2], strict=True))


def _line(done: Done) -> str:
    job, engine = done.job, done.engine
    sizes = "one size" if job.one_size else "sizes"
    ratios = f"{engine.hit_ratio:.4f}, reference {done.reference[0]:.4f}, LRU {done.lru[0]:.4f}"
    return f"{job.trace.name}, {job.share:.0%}, {sizes}, {job.policy}: {ratios} ({done.seconds:.0f} s)"


if __name__ == "__main__":
    main()
