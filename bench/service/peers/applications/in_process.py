"""Stores as libraries, in one process without HTTP: writes and reads by a few threads.

    in_process.py STORE FOLDER SIZE KEYS SECONDS THREADS

One JSON object on standard output: ``put`` and ``get`` are operations per second. It runs in the environment of the
peers and imports nothing of this project.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BLOCK = 4096


class Store:
    """A store with ``put(key, value)`` and ``get(key)``, which answers bytes."""

    put: Callable[[int, Any], Any]
    get: Callable[[int], Any]
    close: Callable[[], Any]


def open_diskcache(folder: str, size: int, keys: int) -> Store:
    import diskcache

    cache = diskcache.Cache(folder, size_limit=1 << 40)
    store = Store()
    store.put, store.get, store.close = cache.set, cache.get, cache.close
    return store


def open_rocksdict(folder: str, size: int, keys: int) -> Store:
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    database = rocksdict.Rdict(folder, options=options)
    store = Store()
    store.put = lambda key, value: database.put(b"%08x" % key, bytes(value))
    store.get = lambda key: database.get(b"%08x" % key)
    store.close = database.close
    return store


def open_lmdb(folder: str, size: int, keys: int, *, sync: bool = False) -> Store:
    import lmdb

    environment = lmdb.open(folder, map_size=8 << 30, sync=sync, metasync=sync, writemap=False)

    def put(key: int, value: Any) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"%08x" % key, value)

    def get(key: int) -> Any:
        with environment.begin() as transaction:
            return transaction.get(b"%08x" % key)

    store = Store()
    store.put, store.get, store.close = put, get, environment.close
    return store


def open_lmdb_sync(folder: str, size: int, keys: int) -> Store:
    return open_lmdb(folder, size, keys, sync=True)


def open_lmcache(folder: str, size: int, keys: int) -> Store:
    """LMCache's raw block device, which has places and no keys: a key is its place. No checksums, no index."""
    import lmcache_rust_raw_block_io

    path = os.path.join(folder, "device")
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, keys * size)
    device = lmcache_rust_raw_block_io.RawBlockDevice(path, True, use_odirect=True, alignment=BLOCK)
    local = threading.local()

    def put(key: int, value: Any) -> None:
        device.pwrite_from_buffer(key * size, value, size, size)

    def get(key: int) -> Any:
        if not hasattr(local, "buffer"):
            local.buffer = aligned(size)
        device.pread_into(key * size, local.buffer, size, size)
        return local.buffer

    store = Store()
    store.put, store.get, store.close = put, get, device.close
    return store


def aligned(size: int) -> memoryview:
    """Zeros on huge pages where the kernel has them."""
    room = mmap.mmap(-1, max(size, 2 << 20) + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)[:size]


STORES = {
    "diskcache": open_diskcache,
    "rocksdict": open_rocksdict,
    "lmdb": open_lmdb,
    "lmdb, synced": open_lmdb_sync,
    "lmcache": open_lmcache,
}


def rate(work: Callable[[random.Random], Any], seconds: float, threads: int) -> float:
    """Operations per second of so many threads."""
    counts = [0] * threads
    failures: list[BaseException] = []
    end = time.perf_counter() + seconds

    def go_on(number: int) -> None:
        rng = random.Random(number)
        try:
            while time.perf_counter() < end:
                work(rng)
                counts[number] += 1
        except Exception as error:  # noqa: BLE001 — whatever a store raises ends the measurement, below
            failures.append(error)

    began = time.perf_counter()
    running = [threading.Thread(target=go_on, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - began)


def main() -> None:
    name, folder = sys.argv[1:3]
    size, keys, threads = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[6])
    seconds = float(sys.argv[5])
    os.makedirs(folder, exist_ok=True)
    store = STORES[name](folder, size, keys)
    values = []
    for _ in range(8):
        value = aligned(size)
        value[:] = os.urandom(size)
        values.append(value if name == "lmcache" else bytes(value))
    for key in range(keys):
        store.put(key, values[key % 8])
    got = store.get(3 % keys)
    assert bytes(got) == bytes(values[3 % keys % 8]), "what was read is not what was written"
    puts = rate(lambda rng: store.put(rng.randrange(keys), values[rng.randrange(8)]), seconds, threads)
    gets = rate(lambda rng: store.get(rng.randrange(keys)), seconds, threads)
    store.close()
    sys.stdout.write(json.dumps({"put": puts, "get": gets}) + "\n")


if __name__ == "__main__":
    main()
