"""SIGKILL under load, again and again: at random moments and at the engine's named points (D1, D2, D3, R9).

After each restart every key holds an acknowledged value or a newer one, whole (B1, D2); what was deleted stays
deleted; nothing older comes back; no key appears that nobody put; every slot is accounted for (A1, A2).
"""

from __future__ import annotations

import http.client
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage import offline
from storage.format.geometry import Geometry
from storage.formatting import format_device
from storage.limits import JOURNAL_MIN_BLOCKS
from tests.crash.killer.checker import check_restarted
from tests.crash.killer.ledger import Ledger
from tests.crash.killer.load import Load, Mix, exchange, small_and_large
from tests.crash.killer.stopping_server import POINTS
from tests.crash.killer.values import make_value, version_of
from tests.support.daemon_process import DaemonProcess

MIB = 1 << 20
DEVICE_BYTES = 64 * MIB
CONNECTIONS = 6
LIFE_SECONDS = 30.0
SETTINGS = ("--buffer-bytes", "32MiB", "--eviction")


class StoppingDaemon(DaemonProcess):
    module = "tests.crash.killer.stopping_server"


@dataclass
class KillLoop:
    """One device, its load, and what came of its lives."""

    device: Path
    log: Path
    geometry: Geometry
    mix: Mix
    seed: str
    eviction: str = "none"
    io_engine: str = "auto"
    ledger: Ledger = field(default_factory=Ledger)
    kills: int = 0
    kills_in_flight: int = 0
    fillers: int = 0

    def start(self, stop_at: str = "") -> DaemonProcess:
        kind = StoppingDaemon if stop_at else DaemonProcess
        environment = {"STOP_AT": stop_at} if stop_at else {}
        flags = ("--device", str(self.device), *SETTINGS, self.eviction, "--io-engine", self.io_engine)
        return kind(self.log, *flags, **environment)

    def fill(self, spare_slabs: int, commits: int) -> None:
        """Occupy all but ``spare_slabs`` slabs for good, so that the load uses each of its few slots again and again.

        ``commits`` more, one after the other, bring the journal near the end of its ring.
        """
        size_bytes = self.geometry.slab_bytes - 16384
        self.fillers = self.geometry.slabs - spare_slabs
        with self.start() as daemon:
            daemon.wait_ready()
            connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
            for number in range(self.fillers):
                value = make_value(f"filler-{number}", number + 1, size_bytes)
                assert exchange(connection, "PUT", f"/v1/kv/fill/{number}", value)[0] == 201
            for _ in range(commits):
                assert exchange(connection, "PUT", "/v1/kv/fill/again", b"again")[0] in (201, 204)
            connection.close()
            daemon.kill()

    def check(self, daemon: DaemonProcess) -> None:
        check_restarted(daemon, self.ledger, self.mix)

    def check_end(self) -> None:
        """Once more all keys; the fillers are what they were (D2); a stop in order; no damage on the device."""
        with self.start() as daemon:
            daemon.wait_ready()
            self.check(daemon)
            for number in range(self.fillers):
                code, value = daemon.get(f"/v1/kv/fill/{number}")
                assert code == 200
                assert version_of(f"filler-{number}", value) == number + 1
            assert daemon.stop() == 0
        report = offline.check(str(self.device), True, lambda _ratio, _step: None)
        assert not report.damaged, report

    def journal_blocks(self) -> int:
        """How many blocks the journal has had; more than its ring has means that it wrapped."""
        last: int = offline.copies(str(self.device))["journal"]["last_block"]
        return last

    def live_and_kill(self, number: int, answers: int) -> None:
        """One life: start, check what is there, load, SIGKILL when so many requests have been answered."""
        with self.start() as daemon:
            daemon.wait_ready()
            self.check(daemon)
            load = self._load(daemon, number)
            assert self.ledger.wait_for_answers(answers, lambda: load.ended, LIFE_SECONDS)
            if not load.errors:
                assert daemon.process.poll() is None, daemon.log_text()
                daemon.kill()
            self._bury(load)

    def live_until(self, number: int, stop_at: str) -> None:
        """One life that ends by itself at a named point; a point of the start is never ready."""
        with self.start(stop_at) as daemon:
            if not stop_at.startswith("start_"):
                daemon.wait_ready()
                self.check(daemon)
                load = self._load(daemon, number)
                assert self.ledger.wait_for_answers(1 << 30, lambda: load.ended, LIFE_SECONDS), stop_at
                if load.errors:
                    raise load.errors[0]
                self._bury(load)
            assert daemon.wait() == -9, daemon.log_text()

    def _load(self, daemon: DaemonProcess, number: int) -> Load:
        self.ledger.begin_life()
        return Load(daemon.port, self.ledger, self.mix, f"{self.seed}/{number}", CONNECTIONS)

    def _bury(self, load: Load) -> None:
        load.join()
        self.kills += 1
        self.kills_in_flight += self.ledger.unanswered() > 0

    def report(self) -> str:
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(self.ledger.counts.items()))
        return f"seed {self.seed}: {self.kills} kills, {self.kills_in_flight} with mutations in flight; {counts}"


def default_slabs(device: Path, log: Path, seed: str, eviction: str = "none", io_engine: str = "auto") -> KillLoop:
    """64 MiB as the daemon divides it: values up to 1 MB, three quarters of the device occupied for good."""
    geometry = format_device(str(device), size_bytes=DEVICE_BYTES).geometry
    return KillLoop(device, log, geometry, small_and_large(12, 6, MIB), seed, eviction, io_engine)


def large_slabs(device: Path, log: Path, seed: str, eviction: str = "none", io_engine: str = "auto") -> KillLoop:
    """64 MiB in slabs of 4 MiB: values up to 3 MiB, in a handful of slots."""
    geometry = format_device(str(device), size_bytes=DEVICE_BYTES, slab_bytes=4 * MIB).geometry
    mix = small_and_large(8, 3, 3 * MIB, evicting=eviction == "clock")
    return KillLoop(device, log, geometry, mix, seed, eviction, io_engine)


WRAPPING_CASE = "few slots"
WRAPPING_COMMITS = JOURNAL_MIN_BLOCKS - 1000
"""The load's own commits are enough for the rest of the ring."""

CASES: dict[str, tuple[Callable[..., KillLoop], dict[str, str], int, int]] = {
    "few slots": (default_slabs, {"eviction": "none"}, 10, 8),
    "large values": (large_slabs, {"eviction": "none"}, 6, 6),
    "evicting": (large_slabs, {"eviction": "clock"}, 4, 0),
    "threads": (default_slabs, {"eviction": "none", "io_engine": "threads"}, 4, 8),
}
"""Name → layout, settings, kills, slabs that the load has (0: all). 24 kills in all."""


@pytest.mark.parametrize("case", CASES)
def test_sigkill_at_random_moments(case: str, device: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D2, B1, A1, A2: nothing acknowledged is lost, whatever moment the process is killed at."""
    make, options, lives, spare_slabs = CASES[case]
    loop = make(device, log, f"kill-loop/{case}", **options)
    if spare_slabs:
        loop.fill(spare_slabs, commits=WRAPPING_COMMITS if case == WRAPPING_CASE else 0)
    rng = random.Random(loop.seed)
    for number in range(lives):
        loop.live_and_kill(number, rng.randrange(50, 900))
    loop.check_end()
    with capsys.disabled():
        print(f"\n{case}: {loop.report()}")  # noqa: T201
    assert case != WRAPPING_CASE or loop.journal_blocks() > loop.geometry.journal_blocks
    assert loop.kills == lives
    assert loop.kills_in_flight * 2 >= loop.kills
    puts = sum(count for name, count in loop.ledger.counts.items() if name.startswith("put "))
    refused = sum(count for name, count in loop.ledger.counts.items() if name.startswith("put refused"))
    assert puts > 2 * refused, "the load must get its values in"


def test_sigkill_at_named_points(device: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D3, D4, R1, R9: killed between the steps of a put, of a checkpoint and of a start, five times at each."""
    loop = default_slabs(device, log, "named-points", eviction="none")
    loop.fill(8, commits=0)
    rng = random.Random(loop.seed)
    hits: Counter[str] = Counter()
    for number in range(5):
        for point in POINTS:
            # A start may write a checkpoint at once, before the load: the second is the load's.
            hit = {"start_recovered": 1, "put_payload_written": rng.randrange(1, 200)}.get(point, rng.randrange(2, 4))
            loop.live_until(number, f"{point}:{hit}")
            hits[point] += 1
    loop.check_end()
    with capsys.disabled():
        print(f"\nnamed points: {dict(hits)}; {loop.report()}")  # noqa: T201
    assert all(hits[point] >= 5 for point in POINTS)
