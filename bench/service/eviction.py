"""A full device: puts that must evict, against the same puts where there is room."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.service.batches import many_puts, with_head
from bench.service.daemon import Daemon
from bench.service.files import write_whole
from bench.service.generator.running import Requests, checked, write_canned
from bench.service.measuring import say
from bench.service.processes import ServerFailed
from bench.service.server import Place
from bench.service.work import Figures, Work

DEVICE_BYTES = 512 << 20
OVERFILL = 1.5
"""How often the device is filled over before anything is measured: then its policy has all its queues."""
SIZES = (4 << 10, 64 << 10, 1 << 20)
BATCH_BYTES = 1 << 20
"""Of values in a request that fills."""


@dataclass(frozen=True, slots=True)
class FullDevice:
    """By size of the values: puts with room, and puts that evict."""

    size: int
    with_room: list[Figures]
    full: list[Figures]
    evicted: int


def measure_full_device(place: Place, tree: Path, runs: int, seconds: float) -> list[FullDevice]:
    """Raises ``ServerFailed`` and ``LoadFailed``."""
    began = time.monotonic()
    found = []
    for size in SIZES:
        with ExitStack() as stack:
            roomy, full = (_started(place, tree, name, stack) for name in ("roomy", "full"))
            found.append(_measure(roomy, full, size, runs, seconds))
    say(f"eviction: {time.monotonic() - began:.0f} s")
    return found


def _started(place: Place, tree: Path, name: str, stack: ExitStack) -> Daemon:
    device = place.folder / f"{name}.device"
    stack.callback(device.unlink, missing_ok=True)
    write_whole(device, DEVICE_BYTES)
    daemon = Daemon(place, device, tree=tree, name=name)
    stack.callback(daemon.stop)
    return daemon


def _measure(roomy: Daemon, full: Daemon, size: int, runs: int, seconds: float) -> FullDevice:
    few = max(64, DEVICE_BYTES // 16 // size)
    roomy.fill(size, few)
    overfill(full, size)
    before = evictions(full)
    with_room: list[Figures] = []
    evicting: list[Figures] = []
    roomy.process.rest()
    full.process.rest()
    for repetition in range(runs):
        for daemon, figures, keys, first_key in (
            (roomy, with_room, few, 0),
            (full, evicting, 1 << 28, (repetition + 1) << 28),
        ):
            daemon.process.go_on()
            work = Work("put", size, keys=keys, first_key=first_key)
            figures.append(daemon.measure(work, seconds, repetition + 1))
            daemon.process.rest()
    full.process.go_on()
    evicted = evictions(full) - before
    if not evicted:
        raise ServerFailed("the full device evicted nothing: it is not full")
    return FullDevice(size, with_room, evicting, evicted)


def overfill(daemon: Daemon, size: int) -> None:
    """Put more values than the device holds, in batches: it's not them that are measured."""
    many, values = int(OVERFILL * DEVICE_BYTES / size), max(1, BATCH_BYTES // size)
    file = daemon.folder / "filling.requests"
    value = os.urandom(size)
    write_canned(file, (with_head(f"/v1/kv/values-{size}", "mput", body) for body in many_puts(many, values, value)))
    requests = Requests(canned=file, write="x", options=("--sequence",))
    checked(daemon.place.generator.run(daemon.address, requests, connections=4, count=-(-many // values)))
    file.unlink()


def evictions(daemon: Daemon) -> int:
    """Entries that made room for others, from the metrics."""
    for line in daemon.call("GET", "/metrics").decode().splitlines():
        if line.startswith("rawblockd_evictions_total{") and 'reason="evicted"' in line:
            return int(float(line.rpartition(" ")[2]))
    raise ServerFailed("the metrics have no evictions")
