"""The engine as a library, without HTTP, for :mod:`bench.service.in_process`.

    engine_alone.py DEVICE SIZE KEYS SECONDS      formats the device anew

One JSON object on standard output: ``put`` and ``get`` are operations per second. It imports nothing of the bench, so
that it can run with the code of another checkout.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from storage.device.opening import open_device
from storage.engine import Engine
from storage.formatting import format_device
from storage.options import EngineOptions

IN_FLIGHT = 32
SPACE = "bench"


async def engine_rates(path: str, size: int, keys: int, seconds: float) -> dict[str, float]:
    """The engine alone: so many tasks, each with one put or get under way."""
    device = open_device(path, write=True)
    engine = Engine(device, EngineOptions())
    await engine.start()
    value = os.urandom(size)

    async def put(key: int) -> None:
        session = await engine.begin_put(SPACE, b"%08x" % key, size)
        try:
            await session.write(value)
            await session.commit()
        finally:
            session.abort()

    async def get(key: int) -> None:
        reader = await engine.open_read(SPACE, b"%08x" % key)
        try:
            async for _ in reader.pieces(0, size):
                pass
        finally:
            reader.close()

    for key in range(keys):
        await put(key)
    rates = {"put": await _rate(put, keys, seconds), "get": await _rate(get, keys, seconds)}
    await engine.stop()
    device.close()
    return rates


async def _rate(work: Callable[[int], Awaitable[Any]], keys: int, seconds: float) -> float:
    end = time.perf_counter() + seconds

    async def go_on(number: int) -> int:
        rng, count = random.Random(number), 0
        while time.perf_counter() < end:
            await work(rng.randrange(keys))
            count += 1
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(go_on(number) for number in range(IN_FLIGHT)))
    return sum(counts) / (time.perf_counter() - began)


def main() -> None:
    path, size, keys, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    format_device(path, force=True)
    rates = uvloop.run(engine_rates(path, size, keys, seconds))
    sys.stdout.write(json.dumps(rates) + "\n")


if __name__ == "__main__":
    main()
