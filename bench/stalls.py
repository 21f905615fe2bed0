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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.restart import ROOM, SLOT_BYTES, fill
from bench.stall_operations import Operations
from storage.device.opening import open_device
from storage.engine import Engine
from storage.formatting import format_device
from storage.options import EngineOptions

RECORDS = 1000
VALUE_BYTES = 3000
GETTERS = 4
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
