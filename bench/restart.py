"""How long a start takes with many entries and what memory they need, in fresh processes of the daemon.

    python -m bench.restart [--entries 1000000] [--runs 3] [--path FILE]

Makes a sparse file and fills a cache in it as far as a start reads it: rows with random digests and seqs in random
order, in a checkpoint, with as many slabs as they need; 1,000 of the entries are real ones. Then it starts
``rawblockd serve`` several times, each time killed, so that each start finds the same device; of the last one the real
entries are read back and compared. Figures to quote are the ratio (seconds of recovery per second of reading the copy
and the journal from the same file) and the memory per entry: what the settled process has more than one with the same
settings on an empty device of the same size. Absolute seconds, and the processor's, stand beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from storage.device.opening import open_device
from storage.engine import Engine
from storage.format.geometry import Geometry
from storage.format.row import Rows, SlotState, checksums_of
from storage.formatting import format_device
from storage.options import EngineOptions
from storage.slab_headers import SlabHeaders

SLOT_BYTES = 4096
ROOM = 1.1
"""Device bytes per byte of slots: reserved areas and the slabs' headers."""
REAL = 1000
"""Entries with records."""
OPTIONS = EngineOptions(buffer_bytes=64 << 20, background=False)
FILL_STEP = 1 << 18
START_TIMEOUT_SECONDS = 300.0
SETTLED_SECONDS = 0.5
"""Memory has settled when it did not change for so long."""


# -- the device -----------------------------------------------------------------------------------------------------


def make(path: str, entries: int) -> None:
    """A blank cache with room for ``entries``."""
    with open(path, "wb") as file:
        file.truncate(int(entries * SLOT_BYTES * ROOM) + (256 << 20))
    format_device(path, smallest_slot_bytes=SLOT_BYTES, force=True)


async def fill(path: str, entries: int, values: dict[bytes, bytes]) -> Geometry:
    """Put ``values``, then make rows without records beside them until there are ``entries``."""
    device = open_device(path, write=True)
    engine = Engine(device, OPTIONS)
    await engine.start()
    for key, value in values.items():
        put = await engine.begin_put("bench", key, len(value))
        await put.write(value)
        await put.commit()
    index, commit = engine._index, engine._commit
    headers = SlabHeaders(device, index.geometry, engine._identity, engine._internal, 5.0)
    for _ in range(-(-entries // index.geometry.slots_per_slab(0)) - index.slots.slabs_of_class[0]):
        slab = index.slots.spare_slab(0)
        unit = commit.give_slab(slab, 0, await headers.write(slab, 0))
        assert unit.done is not None
        await unit.done
    row_ids = index.table.row_ids()
    row_ids = row_ids[index.table.lines["state"][row_ids] == SlotState.FREE][: entries - len(values)]
    first_seq = engine._journal.published_seq + 1
    seqs = np.random.default_rng().permutation(len(row_ids)).astype(np.uint64) + np.uint64(first_seq)
    for begin in range(0, len(row_ids), FILL_STEP):
        part = row_ids[begin : begin + FILL_STEP]
        index.table.lines[part] = invented(index.seed, index.table.rows(part), seqs[begin : begin + FILL_STEP])
    index.derive()
    engine._journal._next_seq = first_seq + len(row_ids)
    engine._journal.published_seq = first_seq + len(row_ids) - 1
    await engine.checkpoint()
    await engine.stop(checkpoint=False)
    device.close()
    return index.geometry


def invented(seed: int, rows: Rows, seqs: np.ndarray[Any, np.dtype[np.uint64]]) -> Rows:
    """Live rows in place of free ones."""
    rows["state"], rows["reason"], rows["namespace_id"], rows["header_units"] = SlotState.LIVE, 0, 1, 3
    rows["payload_bytes"], rows["seq"], rows["write_id"] = 100, seqs, seqs
    rows["digest"] = np.frombuffer(os.urandom(16 * len(rows)), dtype="V16")
    rows["checksum"] = checksums_of(seed, rows)
    return rows


def read_once(path: str, geometry: Geometry) -> float:
    """Seconds for what a start must read at least: one copy and the journal."""
    device = open_device(path, write=False, exclusive=False)
    view = memoryview(mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
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


# -- the daemon -----------------------------------------------------------------------------------------------------


class Daemon:
    """``rawblockd serve`` on a device; ``ready_seconds`` after its process was started ``/readyz`` said 200.

    Without background verification: it would find that most entries have no record.
    """

    def __init__(self, path: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        words = [sys.executable, "-m", "rawblockd", "serve", "--device", path, "--port", str(self._port)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAWBLOCKD_")}
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [*words, "--log-level", "error", "--scrub-bytes-per-second", "0"], env=environment
        )
        try:
            self._wait_ready(started + START_TIMEOUT_SECONDS)
        except BaseException:
            self.kill()
            raise
        self.ready_seconds = time.perf_counter() - started
        self.processor_seconds = self._processor_seconds()

    def _wait_ready(self, deadline: float) -> None:
        while True:
            with suppress(OSError, http.client.HTTPException):
                if self.get("/readyz")[0] == 200:
                    return
            if self.process.poll() is not None:
                raise SystemExit(f"the daemon ended with {self.process.returncode}")
            if time.perf_counter() > deadline:
                raise SystemExit("the daemon did not get ready")
            time.sleep(0.01)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def recovery(self) -> dict[str, Any]:
        recovery: dict[str, Any] = json.loads(self.get("/v1/status")[1])["recovery"]
        return recovery

    def _processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self, name: str) -> int:
        """``VmRSS`` or ``VmHWM`` of the process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise SystemExit(f"no {name} in /proc")

    def settled_bytes(self) -> int:
        """Resident memory once it no longer changes."""
        while True:
            before = self.memory_bytes("VmRSS")
            time.sleep(SETTLED_SECONDS)
            if abs(self.memory_bytes("VmRSS") - before) < 1 << 20:
                return self.memory_bytes("VmRSS")

    def read_back(self, values: dict[bytes, bytes]) -> int:
        """How many values come back as they were put."""
        return sum(self.get(f"/v1/kv/bench/{key.decode()}") == (200, value) for key, value in values.items())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(path: str) -> Iterator[Daemon]:
    daemon = Daemon(path)
    try:
        yield daemon
    finally:
        daemon.kill()


def measure(
    path: str, geometry: Geometry, runs: int, values: dict[bytes, bytes], empty: tuple[int, int]
) -> dict[str, Any]:
    """``empty`` are settled and peak memory of a daemon without entries."""
    found = back = 0
    series: dict[str, list[float]] = {
        name: [] for name in ("recovery", "ready", "processor", "ratio", "settled", "peak")
    }
    for run in range(runs):
        reading = read_once(path, geometry)
        with running(path) as daemon:
            recovery = daemon.recovery()
            found = recovery["recovered_entries"]
            series["recovery"].append(recovery["duration_seconds"])
            series["ready"].append(daemon.ready_seconds)
            series["processor"].append(daemon.processor_seconds)
            series["ratio"].append(recovery["duration_seconds"] / reading)
            series["settled"].append((daemon.settled_bytes() - empty[0]) / found)
            series["peak"].append((daemon.memory_bytes("VmHWM") - empty[1]) / found)
            if run == runs - 1:
                back = daemon.read_back(values)
    medians = {name: statistics.median(values) for name, values in series.items()}
    return {
        "entries": found,
        "recovery_seconds": round(medians["recovery"], 3),
        "rows_per_second": round(found / medians["recovery"]),
        "ratio_to_reading": round(medians["ratio"], 2),
        "ready_seconds": round(medians["ready"], 3),
        "ready_processor_seconds": round(medians["processor"], 2),
        "bytes_per_entry": round(medians["settled"], 1),
        "peak_bytes_per_entry": round(medians["peak"], 1),
        "read_back": back,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--path", default=os.path.join(tempfile.gettempdir(), "rawblockd-restart.device"))
    arguments = parser.parse_args()
    values = {b"real-%04d" % number: os.urandom(100 + number) for number in range(min(REAL, arguments.entries))}
    try:
        make(arguments.path, arguments.entries)
        with running(arguments.path) as daemon:
            empty = daemon.settled_bytes(), daemon.memory_bytes("VmHWM")
        geometry = asyncio.run(fill(arguments.path, arguments.entries, values))
        result = measure(arguments.path, geometry, arguments.runs, values, empty)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(arguments.path)
    sys.stdout.write(json.dumps(result) + "\n")
    if result["read_back"] != len(values) or result["entries"] != arguments.entries:
        raise SystemExit("not everything came back")


if __name__ == "__main__":
    main()
