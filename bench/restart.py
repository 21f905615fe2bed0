"""How long a start takes with many entries, against reading the same bytes without looking at them.

    python -m bench.restart [--entries 1000000] [--path FILE]

Makes a sparse file, gives every slab to the smallest class, writes rows with random digests as a checkpoint would, then
starts the engine several times. The figure to quote is the ratio: seconds of recovery per second of reading the copy's
pages and the journal from the same file; absolute seconds stand beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import statistics
import sys
import tempfile
import time

import numpy as np

from storage.device.opening import open_device
from storage.engine import Engine
from storage.format.geometry import Geometry
from storage.format.row import SlotState, checksums_of
from storage.formatting import format_device
from storage.options import EngineOptions
from storage.slab_headers import SlabHeaders

SLOT_BYTES = 4096
ROOM = 1.3
"""Device bytes per byte of slots: reserved areas and the slabs' headers."""
OPTIONS = EngineOptions(buffer_bytes=64 << 20, background=False)


async def fill(path: str, entries: int) -> Geometry:
    """Make ``entries`` live rows without records in a fresh cache: a start reads rows only."""
    device = open_device(path, write=True)
    engine = Engine(device, OPTIONS)
    await engine.start()
    put = await engine.begin_put("bench", b"first", 0)
    await put.commit()
    index, commit = engine._index, engine._commit
    headers = SlabHeaders(device, index.geometry, engine._identity, engine._internal, 5.0)
    while (slab := index.slots.spare_slab(0)) >= 0:
        unit = commit.give_slab(slab, 0, await headers.write(slab, 0))
        assert unit.done is not None
        await unit.done
    row_ids = index.table.row_ids()
    row_ids = row_ids[index.table.lines["state"][row_ids] == SlotState.FREE][:entries]
    rows = index.table.lines[row_ids]
    rows["state"], rows["namespace_id"], rows["payload_bytes"], rows["header_units"] = SlotState.LIVE, 1, 100, 3
    rows["seq"] = engine._journal.draw_seq()
    rows["write_id"] = np.arange(len(rows)) + 1
    rows["digest"] = np.frombuffer(os.urandom(16 * len(rows)), dtype="V16")
    rows["checksum"] = checksums_of(index.seed, rows)
    index.table.lines[row_ids] = rows
    index.table.refresh_page_seqs()
    index.derive()
    engine._journal.published_seq = int(rows["seq"][0])
    await engine.checkpoint()
    await engine.stop(checkpoint=False)
    device.close()
    return index.geometry


async def start_once(path: str) -> tuple[float, int]:
    device = open_device(path, write=True)
    engine = Engine(device, OPTIONS)
    await engine.start()
    recovery = engine.status().recovery
    await engine.stop(checkpoint=False)
    device.close()
    return recovery.duration_seconds, recovery.recovered_entries


def read_once(path: str, geometry: Geometry) -> float:
    """Read what a start must read at least: one copy and the journal."""
    device = open_device(path, write=False, exclusive=False)
    view = memoryview(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    started = time.perf_counter()
    for offset, size in (
        (geometry.copy_offset(1), geometry.copy_bytes),
        (geometry.journal_offset, geometry.journal_bytes),
    ):
        for begin in range(0, size, len(view)):
            device.read_now(offset + begin, view[: min(len(view), size - begin)])
    seconds = time.perf_counter() - started
    device.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--path", default=os.path.join(tempfile.gettempdir(), "rawblockd-restart.device"))
    arguments = parser.parse_args()
    with open(arguments.path, "wb") as file:
        file.truncate(int(arguments.entries * SLOT_BYTES * ROOM) + (256 << 20))
    format_device(arguments.path, smallest_slot_bytes=SLOT_BYTES, force=True)
    geometry = asyncio.run(fill(arguments.path, arguments.entries))
    found = 0
    try:
        seconds, ratios = [], []
        for _ in range(arguments.runs):
            reading = read_once(arguments.path, geometry)
            recovery, found = asyncio.run(start_once(arguments.path))
            seconds.append(recovery)
            ratios.append(recovery / reading)
    finally:
        os.unlink(arguments.path)
    median = statistics.median(seconds)
    result = {
        "entries": found,
        "recovery_seconds": round(median, 3),
        "rows_per_second": round(found / median),
        "ratio_to_reading": round(statistics.median(ratios), 2),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
