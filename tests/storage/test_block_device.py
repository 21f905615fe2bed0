"""The engine on real block devices: loop devices with sectors of 512 and 4096 bytes, by both I/O engines.

A file and a block device differ in what matters here: O_DIRECT needs whole sectors, the size comes from an ioctl, the
holder has the kernel's own claim, and nothing can be made on the way: ``format`` comes first.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rawblockd.device_preparation import prepare_device
from rawblockd.settings_sources import load_settings
from rawblockd.torture.values import make_value, version_of
from storage.device.opening import open_device
from storage.device.probe import probe
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import (
    CachePresent,
    DeviceInUse,
    EntryNotFound,
    ForeignContent,
    GeometryInvalid,
    NotFormatted,
)
from storage.formatting import format_device
from storage.options import EngineOptions
from tests.support.daemon_process import DaemonProcess
from tests.support.loop_devices import loop_device, run, zero_file

MIB = 1 << 20
DEVICE_BYTES = 64 * MIB
OPTIONS = EngineOptions(buffer_bytes=16 * MIB)
SECTORS = (512, 4096)
LARGE_BYTES = MIB
"""With its header more than one transfer of the device."""


@pytest.fixture(params=SECTORS, ids=lambda sector: f"{sector} B")
def sector_bytes(request: pytest.FixtureRequest) -> int:
    sector: int = request.param
    return sector


@pytest.fixture
def blank(tmp_path: Path, sector_bytes: int) -> Iterator[str]:
    """A blank block device."""
    backing = zero_file(tmp_path / "backing", DEVICE_BYTES)
    with loop_device(backing, sector_bytes) as path:
        yield path
    backing.unlink()


@pytest.fixture
def cache(blank: str) -> str:
    """A block device with an empty cache."""
    format_device(blank)
    return blank


@pytest.fixture(params=["uring", "threads"])
def io_engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def serving(path: str, io_engine: str) -> AsyncIterator[Engine]:
    """An engine over the device; stopped in order at the end."""
    device = open_device(path, write=True, io_engine=io_engine)
    assert device.io_engine == io_engine
    assert device.direct_io
    engine = Engine(device, OPTIONS)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()
        device.close()


async def put(engine: Engine, key: str, version: int, size: int, durability: Durability = Durability.JOURNAL) -> None:
    session = await engine.begin_put("block", key.encode(), size, durability=durability)
    await session.write(make_value(key, version, size))
    await session.commit()


async def get(engine: Engine, key: str) -> int:
    """The version under a key, whole (B1)."""
    reader = await engine.open_read("block", key.encode())
    try:
        return version_of(key, b"".join([bytes(piece) async for piece in reader.pieces()]))
    finally:
        reader.close()


async def test_put_get_overwrite_delete_checkpoint_and_restart(cache: str, io_engine: str) -> None:
    """B1, D2, R9: the life of entries of all sizes and levels, over a stop in order."""
    sizes = {"small": 100, "sector": 4096, "odd": 70_001, "large": LARGE_BYTES}
    async with serving(cache, io_engine) as engine:
        for level in Durability:
            for key, size in sizes.items():
                await put(engine, f"{key}-{level}", 1, size, level)
                await put(engine, f"{key}-{level}", 2, size, level)
        await engine.delete("block", b"odd-flush")
        await engine.checkpoint()
        await put(engine, "after", 3, 100)
    async with serving(cache, io_engine) as engine:
        for level in Durability:
            for key in sizes:
                if (key, level) != ("odd", Durability.FLUSH):
                    assert await get(engine, f"{key}-{level}") == 2
        assert await get(engine, "after") == 3
        with pytest.raises(EntryNotFound):
            await get(engine, "odd-flush")
        status = engine.status()
        assert status.namespaces["block"].entries == 3 * len(sizes)
        assert not status.partial_recovery
        assert status.recovery.journal == "clean"


async def test_ranges(cache: str, io_engine: str) -> None:
    """B1: any part of a value, wherever it begins within a sector."""
    value = make_value("ranged", 1, LARGE_BYTES)
    async with serving(cache, io_engine) as engine:
        await put(engine, "ranged", 1, LARGE_BYTES)
        for start, stop in [(0, 1), (511, 513), (4095, 4097), (65_535, 131_073), (LARGE_BYTES - 1, LARGE_BYTES)]:
            reader = await engine.open_read("block", b"ranged")
            assert b"".join([bytes(piece) async for piece in reader.pieces(start, stop)]) == value[start:stop]
            reader.close()


async def test_eviction(cache: str, io_engine: str) -> None:
    """L3, A1: more than fits is put; what is there is whole, and every slot is accounted for."""
    count = 2 * DEVICE_BYTES // 300_000
    async with serving(cache, io_engine) as engine:
        for number in range(1, count + 1):
            await put(engine, f"many-{number}", number, 300_000)
        found = 0
        for number in range(1, count + 1):
            try:
                assert await get(engine, f"many-{number}") == number
                found += 1
            except EntryNotFound:
                assert number < count
        slots = engine.status().capacity.slots
        assert found == slots.live == count - sum(engine.counters.evictions.values())
        assert slots.free + slots.live + slots.limbo + slots.in_flight == slots.total


def test_kill_and_restart(cache: str, io_engine: str, tmp_path: Path) -> None:
    """D1, D2: the real daemon on the device is killed; what it acknowledged is there again."""
    flags = ("--device", cache, "--io-engine", io_engine, "--buffer-bytes", "16MiB")
    keys = [f"killed-{number}" for number in range(50)]
    with DaemonProcess(tmp_path / "log", *flags) as daemon:
        daemon.wait_ready()
        assert daemon.status()["device"]["io_engine"] == io_engine
        for version, key in enumerate(keys):
            value = make_value(key, version, 100 + version * 1000)
            assert daemon.request("PUT", f"/v1/kv/block/{key}", value)[0] == 201
        daemon.kill()
    with DaemonProcess(tmp_path / "log", *flags) as daemon:
        daemon.wait_ready()
        for version, key in enumerate(keys):
            code, value = daemon.get(f"/v1/kv/block/{key}")
            assert code == 200
            assert version_of(key, value) == version
        assert daemon.stop() == 0


def test_a_second_opener_is_refused(cache: str, tmp_path: Path) -> None:
    """D6: while the daemon holds the device, nobody else opens it, by the device or by the file behind it."""
    with DaemonProcess(tmp_path / "log", "--device", cache, "--buffer-bytes", "16MiB") as daemon:
        daemon.wait_ready()
        for path in (cache, str(tmp_path / "backing")):
            with pytest.raises(DeviceInUse):
                open_device(path, write=True)
            with pytest.raises(DeviceInUse):
                format_device(path, force=True)
        with DaemonProcess(tmp_path / "second", "--device", cache) as second:
            assert second.wait() == DeviceInUse.exit_code
        assert daemon.get("/readyz")[0] == 200
        assert daemon.stop() == 0


def test_sizes_are_probed(blank: str, sector_bytes: int) -> None:
    """The size and the sector come from the device; a layout never needs more than there is."""
    facts = probe(blank)
    assert (facts.size_bytes, facts.logical_block_bytes) == (DEVICE_BYTES, sector_bytes)
    with pytest.raises(GeometryInvalid):
        format_device(blank, size_bytes=DEVICE_BYTES + sector_bytes)
    geometry = format_device(blank).geometry
    assert (geometry.device_bytes, geometry.block_bytes) == (DEVICE_BYTES, 4096)
    assert geometry.end_bytes <= DEVICE_BYTES


def test_a_cache_is_not_formatted_over(cache: str) -> None:
    """D5: a cache of ours is refused without force, and is another one with it."""
    before = head_of(cache)
    with pytest.raises(CachePresent):
        format_device(cache)
    assert head_of(cache) == before
    format_device(cache, force=True)
    assert head_of(cache) != before


@pytest.mark.parametrize("tool", ["mkfs.ext4", "mkswap"])
def test_a_foreign_signature_is_refused(tool: str, blank: str) -> None:
    """D5: a device that holds something else is left as it is."""
    run(*({"mkfs.ext4": ("mkfs.ext4", "-q", "-F"), "mkswap": ("mkswap",)}[tool]), blank)
    before = head_of(blank)
    with pytest.raises(ForeignContent):
        format_device(blank)
    assert head_of(blank) == before


async def test_a_blank_device_is_not_served(blank: str) -> None:
    """D5: ``--create`` makes files, never a cache on a block device."""
    before = head_of(blank)
    settings = load_settings({"device": blank, "create": True, "size": str(DEVICE_BYTES)})
    device = prepare_device(settings)
    try:
        with pytest.raises(NotFormatted):
            await Engine(device, OPTIONS).start()
    finally:
        device.close()
    assert head_of(blank) == before


def head_of(path: str) -> bytes:
    """The first MiB, from the device itself."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, MIB, 0)
    finally:
        os.close(fd)
