"""What a checkpoint of many entries costs those who read meanwhile, and what it writes when little has changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgpack

from bench.service.batches import many_puts, put_body, with_head
from bench.service.daemon import Daemon
from bench.service.generator.running import Generator, Load, Requests, checked, write_canned
from bench.service.measuring import say
from bench.service.server import Place
from bench.service.work import Work

SPACE = "/v1/kv/many"
VALUE = bytes(64)
VALUES_A_REQUEST = 250
ROWS_A_PAGE = 63
READ_SIZE, READ_KEYS = 4 << 10, 8192
CONNECTIONS = 32
WITHOUT_SECONDS = 2.0
WARMUP_SECONDS = 0.5
LONGEST_SECONDS = 120.0
COPIES = 3
CHANGED_SHARE = 0.01
SLOT_BYTES = 4096
ROOM = 1.3
"""Device bytes per byte of slots: reserved areas and the slabs' headers."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Lists are by repetition."""

    entries: int
    p99_without_microseconds: list[float]
    p99_during_microseconds: list[float]
    reads_during: list[int]
    duration_seconds: list[float]
    full_bytes: list[int]
    small_bytes: list[int]
    small_share: list[float]
    """Of the pages, those that had changed before the small checkpoint."""


class ManyEntries:
    """A daemon with so many entries in the smallest slots, which writes checkpoints when it is told to."""

    def __init__(self, place: Place, tree: Path, entries: int, stack: ExitStack) -> None:
        self.entries = entries
        self.pages = -(-entries // ROWS_A_PAGE)
        self._generator: Generator = place.generator
        device = place.folder / "many.device"
        with open(device, "wb") as file:
            file.truncate(int(entries * SLOT_BYTES * ROOM) + (512 << 20))
        self.daemon = QuietDaemon(place, device, tree=tree, name="many")
        stack.callback(self.daemon.stop)
        self._requests = self.daemon.folder / "puts.requests"
        self._send(many_puts(entries, VALUES_A_REQUEST, VALUE), -(-entries // VALUES_A_REQUEST))
        self._requests.unlink()
        self.daemon.fill(READ_SIZE, READ_KEYS)

    def checkpoint(self) -> int:
        """Bytes that it wrote."""
        self.daemon.call("POST", "/v1/checkpoint")
        return int(self.daemon.status()["checkpoint"]["bytes"])

    def change_all_pages(self, offset: int) -> None:
        """Replace one entry of each page: its row changes, and so does the one of the slot that it gets."""
        keys = range(offset % ROWS_A_PAGE, self.entries, ROWS_A_PAGE)
        batches = [keys[begin : begin + VALUES_A_REQUEST] for begin in range(0, len(keys), VALUES_A_REQUEST)]
        bodies = (put_body([(b"%08x" % key, VALUE) for key in batch]) for batch in batches)
        self._send(bodies, len(batches))

    def change_few_pages(self, share: float, offset: int) -> None:
        """Delete entries of different pages, as many as this share of the pages."""
        count = max(1, int(self.pages * share))
        step = self.entries // count
        keys = [b"%08x" % (number * step + offset) for number in range(count)]
        for begin in range(0, count, 5000):
            body = msgpack.packb({"keys": keys[begin : begin + 5000]})
            self.daemon.call("POST", f"{SPACE}:mdelete", body, kind="application/msgpack")

    def reads(self) -> Requests:
        return self.daemon.requests(Work("get", READ_SIZE), READ_KEYS)

    def p99_without(self) -> float:
        load = self._generator.run(
            self.daemon.address,
            self.reads(),
            connections=CONNECTIONS,
            seconds=WITHOUT_SECONDS,
            warmup=WARMUP_SECONDS,
        )
        return checked(load).reads.p99

    def during_checkpoint(self) -> tuple[Load, float, int]:
        """Reads while a checkpoint is written, its seconds, its bytes."""
        running = self._generator.start(
            self.daemon.address, self.reads(), connections=CONNECTIONS, seconds=LONGEST_SECONDS
        )
        try:
            time.sleep(WARMUP_SECONDS)
            running.begin_window()
            began = time.monotonic()
            written = self.checkpoint()
            seconds = time.monotonic() - began
            return checked(running.end()), seconds, written
        finally:
            running.kill()

    def _send(self, bodies: Iterator[bytes], count: int) -> None:
        write_canned(self._requests, (with_head(SPACE, "mput", body) for body in bodies))
        requests = Requests(canned=self._requests, write="x", options=("--sequence",))
        checked(self._generator.run(self.daemon.address, requests, connections=4, count=count))


class QuietDaemon(Daemon):
    """Without checkpoints by age: each one that is measured is asked for."""

    options = ("--checkpoint-interval-seconds", "3600")


def measure_checkpoints(place: Place, tree: Path, entries: int, runs: int) -> Checkpoints:
    """Raises ``ServerFailed`` and ``LoadFailed``."""
    began = time.monotonic()
    found = Checkpoints(entries, [], [], [], [], [], [], [])
    with ExitStack() as stack:
        stack.callback((place.folder / "many.device").unlink, missing_ok=True)
        many = ManyEntries(place, tree, entries, stack)
        for _ in range(COPIES):
            many.checkpoint()
        say(f"checkpoint: {entries:,} entries after {time.monotonic() - began:.0f} s")
        for repetition in range(runs):
            many.change_all_pages(7 * repetition)
            found.p99_without_microseconds.append(many.p99_without())
            load, seconds, written = many.during_checkpoint()
            found.p99_during_microseconds.append(load.reads.p99)
            found.reads_during.append(load.reads.count)
            found.duration_seconds.append(seconds)
            found.full_bytes.append(written)
        for _ in range(COPIES):
            many.checkpoint()
        for repetition in range(runs):
            many.change_few_pages(CHANGED_SHARE, 11 * repetition + 3)
            dirty = int(many.daemon.status()["checkpoint"]["dirty_pages"])
            found.small_share.append(dirty / many.pages)
            found.small_bytes.append(many.checkpoint())
            for _ in range(COPIES - 1):
                many.checkpoint()
    say(f"checkpoint: {time.monotonic() - began:.0f} s")
    return found
