"""Filling a device several times over, emptying it, filling it to the last slot (A1, A2, L3)."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rawblockd.torture.load import exchange
from rawblockd.torture.values import make_value, version_of
from rawblockd.torture.verification import check_accounting
from storage.device.opening import open_device
from storage.engine import Engine
from storage.errors import EntryNotFound, Full
from storage.formatting import format_device
from storage.options import EngineOptions, EvictionPolicy
from tests.support.daemon_process import DaemonProcess
from tests.support.engines import until

MIB = 1 << 20
TIMES = 3
NEWEST_RATIO = 0.05
"""The last values that were put, as many as have so many of the device's bytes, must all be there.

A value goes only after the hand of its class came round, seven eighths of the class's slots later at least, or with a
slab of the half that was written to longest ago. In a mix that stays the same a class has about the share of the device
that it has of the bytes put, so either takes about a device's worth of puts. Classes of two or three slots a slab vary
most: with them it takes some 10 % of the device at least.
"""
OPTIONS = EngineOptions(buffer_bytes=32 * MIB)
SIZES = {
    "small": (3000, 3000),
    "blocks": (64 << 10, 64 << 10),
    "mixed": (100, MIB),
}
TOGETHER = {"small": 16}
"""How many puts of a kind are under way at once. Of larger values so many would be much of the device."""
DELETED_TOGETHER = 64
DEVICES = {"64 MiB": 64 * MIB, "256 MiB": 256 * MIB}


@asynccontextmanager
async def engine_over(path: Path, options: EngineOptions = OPTIONS) -> AsyncIterator[Engine]:
    device = open_device(path, write=True)
    engine = Engine(device, options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        device.close()


async def put(engine: Engine, number: int, size_bytes: int) -> None:
    session = await engine.begin_put("fill", b"%d" % number, size_bytes)
    await session.write(make_value(str(number), number, size_bytes))
    await session.commit()


async def together(actions: list[Coroutine[Any, Any, None]]) -> None:
    """Let them share the journal's writes; the first that fails is raised when all have ended."""
    for result in await asyncio.gather(*actions, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def is_whole(engine: Engine, number: int) -> bool:
    """Whether a value is there; if it is, it is whole (B1)."""
    try:
        reader = await engine.open_read("fill", b"%d" % number)
    except EntryNotFound:
        return False
    value = b"".join([bytes(piece) async for piece in reader.pieces()])
    reader.close()
    assert version_of(str(number), value) == number
    return True


def draw_size(rng: random.Random, kind: str) -> int:
    smallest, largest = SIZES[kind]
    return int(smallest * (largest / smallest) ** rng.random())


async def fill_over_and_over(engine: Engine, kind: str, *, newest_stay: bool) -> int:
    """Put several times what fits; every put succeeds. Returns how many were put.

    CLOCK goes by age where nothing is read, so the newest are there; S3-FIFO lets new ones go first.
    """
    rng = random.Random(f"fill/{kind}")
    total_bytes = engine.status().capacity.total_bytes
    newest: deque[tuple[int, int]] = deque()
    newest_bytes = put_bytes = number = 0
    while put_bytes < TIMES * total_bytes:
        sizes = [draw_size(rng, kind) for _ in range(TOGETHER.get(kind, 1))]
        await together([put(engine, number + n, size) for n, size in enumerate(sizes, 1)])
        for size in sizes:
            number += 1
            put_bytes += size
            newest.append((number, size))
            newest_bytes += size
        while newest_bytes > NEWEST_RATIO * total_bytes:
            newest_bytes -= newest.popleft()[1]
    missing = [one for one, _ in newest if not await is_whole(engine, one)]
    assert not newest_stay or not missing, (
        f"{len(missing)} of {len(newest)} newest are gone, the last {number - missing[-1]} puts ago"
    )
    return number


async def delete_everything(engine: Engine, puts: int) -> int:
    """Returns how many were there. Afterwards nothing is used, to the byte (A1, A2)."""
    found = 0

    async def delete(number: int) -> None:
        nonlocal found
        try:
            await engine.delete("fill", b"%d" % number)
            found += 1
        except EntryNotFound:
            pass

    for first in range(1, puts + 1, DELETED_TOGETHER):
        await together([delete(number) for number in range(first, min(first + DELETED_TOGETHER, puts + 1))])
    await engine.flush()
    # Slots leave limbo behind the flush some hundreds at a time.
    await until(lambda: engine.status().capacity.slots.limbo == 0, limit=1000)
    status = engine.status()
    slots = status.capacity.slots
    assert (status.capacity.used_bytes, status.capacity.payload_bytes, slots.live, slots.limbo) == (0, 0, 0, 0)
    assert slots.free == slots.total
    assert (status.namespaces["fill"].entries, status.namespaces["fill"].used_bytes) == (0, 0)
    return found


async def fill_to_the_last_slot(engine: Engine, size_bytes: int) -> int:
    """Put values of one size until no slot is left. Returns how many fitted."""
    count = 0
    while True:
        try:
            await put(engine, count + 1, size_bytes)
        except Full:
            return count
        count += 1


CLOCK, S3FIFO = EvictionPolicy.CLOCK, EvictionPolicy.S3FIFO
CASES = [("64 MiB", kind, CLOCK) for kind in SIZES] + [("256 MiB", "mixed", CLOCK), ("64 MiB", "mixed", S3FIFO)]


@pytest.mark.parametrize(("size", "kind", "policy"), CASES)
async def test_a_device_is_filled_emptied_and_filled_to_the_last_slot(
    size: str, kind: str, policy: EvictionPolicy, device: Path, told: Callable[[str], None]
) -> None:
    """A1, A2: puts go on succeeding; deleting everything gives back everything, in whatever class it lies."""
    geometry = format_device(str(device), size_bytes=DEVICES[size]).geometry
    async with engine_over(device, replace(OPTIONS, eviction=policy)) as engine:
        puts = await fill_over_and_over(engine, kind, newest_stay=policy is CLOCK)
        evicted = sum(engine.counters.evictions.values())
        found = await delete_everything(engine, puts)
    assert found + evicted == puts
    last_size = SIZES["small" if size == "64 MiB" else "blocks"][1]
    async with engine_over(device, replace(OPTIONS, eviction=EvictionPolicy.NONE)) as engine:
        fitted = await fill_to_the_last_slot(engine, last_size)
        slots = engine.status().capacity.slots
        # Larger classes lend their slots too, so at least as many fit as the class itself has on the whole device.
        slot_class = geometry.class_for(last_size + 512)
        assert fitted >= geometry.slabs * geometry.slots_per_slab(slot_class)
        assert (slots.live, slots.free) == (fitted, 0)
        await delete_everything(engine, fitted)
        await put(engine, 1, last_size)
        assert await is_whole(engine, 1)
    told(f"{size}, {kind}: {puts} puts, {evicted} evicted, {found} deleted, then {fitted} fitted")


def test_without_eviction_a_full_device_says_so(device: Path, log: Path) -> None:
    """L3: 507 full; after one entry was deleted, the next put of its size succeeds; nothing else went."""
    flags = ("--device", str(device), "--create", "--size", "64MiB", "--eviction", "none", "--buffer-bytes", "32MiB")
    with DaemonProcess(log, *flags) as daemon:
        daemon.wait_ready()
        connection = daemon.connect()
        count = 0
        while True:
            code, answer = exchange(connection, "PUT", f"/v1/kv/fill/{count}", make_value(str(count), count, 500_000))
            if code == 507:
                break
            assert code == 201, answer
            count += 1
        assert b'"code": "full"' in answer
        for number in random.Random("full").sample(range(count), 5):
            assert exchange(connection, "DELETE", f"/v1/kv/fill/{number}")[0] == 204
            value = make_value(str(number), number, 500_000)
            assert exchange(connection, "PUT", f"/v1/kv/fill/{number}", value)[0] == 201
            assert exchange(connection, "PUT", f"/v1/kv/fill/{count}", value)[0] == 507
        for number in range(count):
            code, value = exchange(connection, "GET", f"/v1/kv/fill/{number}")
            assert code == 200
            assert version_of(str(number), value) == number
        connection.close()
        status = daemon.wait_at_rest()
        check_accounting(status)
        assert status["capacity"]["slots"]["live"] == count
        assert daemon.stop() == 0
