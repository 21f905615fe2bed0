"""A million puts over many namespaces while their quotas change: is usage what a recount finds? (A2)

``python -m bench.quotas [--puts N] [--namespaces N] [--seed N]`` on a file of its own. It ends with 1 if a namespace
was ever above its quota, if usage differs from a recount of the rows, or if an entry was evicted for others.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from storage.device.opening import open_device
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import QuotaExceeded
from storage.format.row import SlotState
from storage.formatting import format_device
from storage.namespace_settings import NamespaceSettings, QuotaMode
from storage.options import EngineOptions

DEVICE_BYTES = 1 << 30
CLIENTS = 32
KEYS = 2000
"""Per namespace, drawn unevenly: some are overwritten all the time, most are new."""
QUOTA_ENTRIES = (50, 1000)
VALUE = bytes(3000)
CHANGE_EVERY = 500
"""Puts of one client between two changes of a quota."""


class Run:
    def __init__(self, engine: Engine, puts: int, namespaces: int, seed: int) -> None:
        self.engine = engine
        self.puts = puts
        self.names = [f"tenant-{number}" for number in range(namespaces)]
        self.rng = random.Random(seed)
        self.refused = self.changes = 0
        self.above: list[str] = []

    async def change(self, name: str) -> None:
        settings = NamespaceSettings(
            quota_entries=self.rng.randint(*QUOTA_ENTRIES),
            quota_bytes=4096 * self.rng.randint(*QUOTA_ENTRIES),
            quota_mode=self.rng.choice(list(QuotaMode)),
        )
        await self.engine.set_namespace(name, settings)
        self.changes += 1

    async def client(self, count: int) -> None:
        for number in range(count):
            name = self.rng.choice(self.names)
            if number % CHANGE_EVERY == 0:
                await self.change(name)
            key = b"%d" % int(KEYS * self.rng.random() ** 3)
            try:
                put = await self.engine.begin_put(name, key, len(VALUE), durability=Durability.JOURNAL)
            except QuotaExceeded:
                self.refused += 1
                continue
            try:
                await put.write(VALUE)
                await put.commit()
            except QuotaExceeded:
                self.refused += 1
            finally:
                put.abort()
            self.check(name)

    def check(self, name: str) -> None:
        view = self.engine.namespace(name)
        if view.entries > QUOTA_ENTRIES[1] or view.used_bytes > 4096 * QUOTA_ENTRIES[1]:
            self.above.append(name)

    def recount(self) -> list[str]:
        """Namespaces whose usage is not what the rows make of it, or above their quota."""
        index = self.engine._index
        rows = index.table.lines[index.table.row_ids()]
        live = rows[rows["state"] == SlotState.LIVE]
        sizes = np.array(index.geometry.class_bytes, dtype=np.int64)[live["slot_class"]]
        wrong = []
        for name, namespace in index.namespaces.by_name.items():
            mine = live["namespace_id"] == namespace.namespace_id
            counted = (int(mine.sum()), int(sizes[mine].sum()), int(live["payload_bytes"][mine].sum(dtype=np.int64)))
            if counted != (namespace.entries, namespace.used_bytes, namespace.payload_bytes) or any(namespace.over()):
                wrong.append(name)
        return wrong


async def measure(path: Path, puts: int, namespaces: int, seed: int) -> int:
    device = open_device(str(path), write=True)
    engine = Engine(device, EngineOptions())
    await engine.start()
    run = Run(engine, puts, namespaces, seed)
    for name in run.names:
        await run.change(name)
    began = time.perf_counter()
    await asyncio.gather(*(run.client(puts // CLIENTS) for _ in range(CLIENTS)))
    seconds = time.perf_counter() - began
    await engine.flush()
    wrong, evictions = run.recount(), engine.counters.evictions
    sys.stdout.write(
        f"{puts} puts over {namespaces} namespaces in {seconds:.0f} s ({puts / seconds:.0f}/s), "
        f"{run.changes} changes of quotas, {run.refused} refused, {evictions['quota']} gone for a quota, "
        f"{evictions['evicted']} evicted for others; usage wrong: {len(wrong)}, above a quota: {len(run.above)}\n"
    )
    await engine.stop()
    device.close()
    return 1 if wrong or run.above or evictions["evicted"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--puts", type=int, default=1_000_000)
    parser.add_argument("--namespaces", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "device"
        format_device(str(path), size_bytes=DEVICE_BYTES)
        return asyncio.run(measure(path, options.puts, options.namespaces, options.seed))


if __name__ == "__main__":
    sys.exit(main())
