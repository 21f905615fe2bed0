"""Real files: an installed package tree over HTTP, and the sizes of an operating system's files in the engine."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import random
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from rawblockd.torture.load import exchange
from rawblockd.torture.values import make_value
from rawblockd.torture.verification import check_accounting
from storage.device.opening import open_device
from storage.engine import Engine
from storage.formatting import format_device
from tests.support.daemon_process import DaemonProcess

MIB = 1 << 20
DEVICE_BYTES = 1 << 30
CLIENTS = 4
FILES = 50_000
PUTS_AT_ONCE = 16
ROOTS = ("/usr/lib", "/usr/share")


class Tree:
    """The files of a folder that a value can hold, by their paths in it, and what was read of them when stored."""

    def __init__(self, root: Path, size_max_bytes: int) -> None:
        self.root = root
        self.keys = [
            os.fsencode(path.relative_to(root))
            for path in sorted(root.rglob("*"))
            # Not what another process is about to rename: compiled modules come so.
            if ".pyc." not in path.name
            and path.is_file()
            and not path.is_symlink()
            and path.stat().st_size <= size_max_bytes
        ]
        self.digests: dict[bytes, bytes] = {}
        self.bytes = 0

    def store(self, port: int, keys: list[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for key in keys:
            content = (self.root / os.fsdecode(key)).read_bytes()
            code, answer = exchange(connection, "PUT", f"/v1/kv/tree/{quote(key)}", content)
            assert code in (201, 204), (key, code, answer)
            self.digests[key] = hashlib.blake2b(content).digest()
            self.bytes += len(content)
        connection.close()

    def compare(self, port: int, keys: list[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for key in keys:
            code, content = exchange(connection, "GET", f"/v1/kv/tree/{quote(key)}")
            assert code == 200, (key, code, content)
            assert hashlib.blake2b(content).digest() == self.digests[key], key
        connection.close()

    def parts(self) -> Iterator[list[bytes]]:
        for number in range(CLIENTS):
            yield self.keys[number::CLIENTS]

    def store_all(self, port: int) -> None:
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda keys: self.store(port, keys), self.parts()))

    def compare_all(self, port: int) -> None:
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda keys: self.compare(port, keys), self.parts()))


def test_an_installed_package_tree_survives_kill_and_restart(
    device: Path, log: Path, told: Callable[[str], None]
) -> None:
    """B1, D1, D2, A2: thousands of real files of all sizes are the same after SIGKILL, and after a stop in order."""
    root = Path(sysconfig.get_paths()["purelib"])
    flags = ("--device", str(device), "--create", "--size", str(DEVICE_BYTES), "--buffer-bytes", "64MiB")
    with DaemonProcess(log, *flags) as daemon:
        daemon.wait_ready()
        tree = Tree(root, daemon.status()["capacity"]["max_value_bytes"])
        assert len(tree.keys) > 1000
        tree.store_all(daemon.port)
        tree.compare_all(daemon.port)
        daemon.kill()
    for stop in (DaemonProcess.kill, DaemonProcess.stop):
        with DaemonProcess(log, *flags) as daemon:
            daemon.wait_ready()
            tree.compare_all(daemon.port)
            status = daemon.wait_at_rest()
            check_accounting(status)
            space = status["namespaces"]["tree"]
            assert (space["entries"], space["payload_bytes"]) == (len(tree.keys), tree.bytes)
            assert not status["partial_recovery"]
            stop(daemon)
    told(f"package tree: {len(tree.keys)} files, {tree.bytes / MIB:.1f} MiB")


@asynccontextmanager
async def engine_over(path: Path) -> AsyncIterator[Engine]:
    device = open_device(path, write=True)
    engine = Engine(device)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        device.close()


def file_sizes(size_max_bytes: int) -> list[int]:
    """Sizes of the files of an operating system, the larger ones capped; as many as the test puts."""
    sizes = [
        min(os.lstat(path).st_size, size_max_bytes)
        for root in ROOTS
        for folder, _, names in os.walk(root)
        for path in (os.path.join(folder, name) for name in names)
        if not os.path.islink(path)
    ]
    rng = random.Random("file sizes")
    # A small machine has fewer files: then some sizes are drawn twice.
    return rng.sample(sizes, FILES) if len(sizes) >= FILES else rng.choices(sizes, k=FILES)


@pytest.mark.parametrize("cap_bytes", [64 << 10, 8 << 20])
async def test_nothing_is_evicted_while_a_third_of_the_device_is_free(
    cap_bytes: int, device: Path, told: Callable[[str], None]
) -> None:
    """A1, A2: files of real sizes find room in their classes, without evicting others, up to two thirds."""
    format_device(str(device), size_bytes=DEVICE_BYTES)
    pool = make_value("pool", 1, 8 << 20)
    sizes = iter(enumerate(file_sizes(cap_bytes)))
    stored: dict[bytes, int] = {}
    async with engine_over(device) as engine:
        total_bytes = engine.status().capacity.total_bytes
        usage = engine.status().namespaces

        async def store() -> None:
            for number, size in sizes:
                space = usage.get("files")
                if number % 64 == 0:
                    usage.update(engine.status().namespaces)
                if space is not None and space.used_bytes * 3 >= total_bytes * 2:
                    return
                key = b"file-%d" % number
                put = await engine.begin_put("files", key, size)
                await put.write(memoryview(pool)[:size])
                await put.commit()
                stored[key] = size

        await asyncio.gather(*(store() for _ in range(PUTS_AT_ONCE)))
        evictions = sum(engine.counters.evictions.values())
        capacity = engine.status().capacity
        told(
            f"{len(stored)} files of up to {cap_bytes} bytes: {sum(stored.values()) / MIB:.0f} MiB in slots of "
            f"{capacity.used_bytes / MIB:.0f} of {total_bytes / MIB:.0f} MiB, {evictions} evictions"
        )
        assert evictions == 0
        assert capacity.slots.live == len(stored)
        assert capacity.payload_bytes == sum(stored.values())
        assert len(stored) == FILES or capacity.used_bytes * 3 >= total_bytes * 2
        for key in random.Random("some of them").sample(sorted(stored), 500):
            reader = await engine.open_read("files", key)
            content = b"".join([bytes(piece) async for piece in reader.pieces()])
            reader.close()
            assert content == pool[: stored[key]]
