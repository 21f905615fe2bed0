"""SIGKILL under load, again and again: at random moments and at the engine's named points (D1, D2, D3, R9).

After each restart every key holds an acknowledged value or a newer one, whole (B1, D2); what was deleted stays
deleted; nothing older comes back; no key appears that nobody put; every slot is accounted for (A1, A2).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rawblockd.torture.ledger import Ledger
from rawblockd.torture.load import Load, Mix, exchange
from rawblockd.torture.values import make_value, version_of
from storage import offline
from storage.format.geometry import Geometry
from storage.formatting import format_device
from storage.limits import JOURNAL_MIN_BLOCKS
from tests.crash.killer.checker import check_restarted
from tests.crash.killer.stopping_server import POINTS
from tests.support.daemon_process import DaemonProcess
from tests.support.forked_daemon import ForkedDaemon

MIB = 1 << 20
DEVICE_BYTES = 64 * MIB
CONNECTIONS = 6
LIFE_SECONDS = 30.0
SETTINGS = ("--buffer-bytes", "32MiB", "--eviction")


class StoppingDaemon(ForkedDaemon):
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
        kind = StoppingDaemon if stop_at else ForkedDaemon
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
            connection = daemon.connect()
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
        """One life that ends by itself at a named point under load."""
        with self.start(stop_at) as daemon:
            daemon.wait_ready()
            self.check(daemon)
            load = self._load(daemon, number)
            assert self.ledger.wait_for_answers(1 << 30, lambda: load.ended, LIFE_SECONDS), stop_at
            if load.errors:
                raise load.errors[0]
            self._bury(load)
            assert daemon.wait() == -9, daemon.log_text()

    def start_until(self, stop_at: str) -> None:
        """A start that ends by itself at a named point: it is never ready."""
        with self.start(stop_at) as daemon:
            assert daemon.wait() == -9, daemon.log_text()

    def _load(self, daemon: DaemonProcess, number: int) -> Load:
        self.ledger.begin_life()
        return Load(daemon.connect, self.ledger, self.mix, f"{self.seed}/{number}", CONNECTIONS)

    def _bury(self, load: Load) -> None:
        load.join()
        self.kills += 1
        self.kills_in_flight += self.ledger.unanswered() > 0

    def report(self) -> str:
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(self.ledger.counts.items()))
        return f"seed {self.seed}: {self.kills} kills, {self.kills_in_flight} with mutations in flight; {counts}"


def small_and_large(small: int, large: int, large_max_bytes: int) -> dict[str, tuple[int, int]]:
    """A few keys of up to 3 kB, a few from 4 KiB up to ``large_max_bytes``."""
    sizes = {f"small-{number}": (100, 3000) for number in range(small)}
    return sizes | {f"large-{number}": (4096, large_max_bytes) for number in range(large)}


def default_slabs(device: Path, log: Path, seed: str, eviction: str = "none", io_engine: str = "auto") -> KillLoop:
    """64 MiB as the daemon divides it: values up to 1 MB, three quarters of the device occupied for good."""
    geometry = format_device(str(device), size_bytes=DEVICE_BYTES).geometry
    mix = Mix(small_and_large(12, 6, MIB), wipe_share=0.01)
    return KillLoop(device, log, geometry, mix, seed, eviction, io_engine)


def large_slabs(device: Path, log: Path, seed: str, eviction: str = "none", io_engine: str = "auto") -> KillLoop:
    """64 MiB in slabs of 4 MiB: values up to 3 MiB, in a handful of slots."""
    geometry = format_device(str(device), size_bytes=DEVICE_BYTES, slab_bytes=4 * MIB).geometry
    mix = Mix(small_and_large(8, 3, 3 * MIB), evicting=eviction == "clock")
    return KillLoop(device, log, geometry, mix, seed, eviction, io_engine)


WRAPPING_CASE = "few slots"
WRAPPING_COMMITS = JOURNAL_MIN_BLOCKS - 500
"""The load's own commits are enough for the rest of the ring."""

CASES: dict[str, tuple[Callable[..., KillLoop], dict[str, str], int, int]] = {
    "few slots": (default_slabs, {"eviction": "none"}, 32, 8),
    "large values": (large_slabs, {"eviction": "none"}, 32, 6),
    "evicting": (large_slabs, {"eviction": "clock"}, 32, 0),
    "threads": (default_slabs, {"eviction": "none", "io_engine": "threads"}, 32, 8),
}
"""Name → layout, settings, kills, slabs that the load has (0: all)."""
TIMES_AT_EACH_POINT = 5
KILLS_MIN = 200
"""In all cases together, and at the named points."""


@pytest.mark.parametrize("case", CASES)
def test_sigkill_at_random_moments(case: str, device: Path, log: Path, told: Callable[[str], None]) -> None:
    """D2, B1, A1, A2: nothing acknowledged is lost, whatever moment the process is killed at."""
    make, options, lives, spare_slabs = CASES[case]
    loop = make(device, log, f"kill-loop/{case}", **options)
    if spare_slabs:
        loop.fill(spare_slabs, commits=WRAPPING_COMMITS if case == WRAPPING_CASE else 0)
    rng = random.Random(loop.seed)
    for number in range(lives):
        loop.live_and_kill(number, rng.randrange(1, 150))
    loop.check_end()
    told(f"{case}: {loop.report()}")
    assert case != WRAPPING_CASE or loop.journal_blocks() > loop.geometry.journal_blocks
    assert loop.kills == lives
    assert loop.kills_in_flight * 2 >= loop.kills
    puts = sum(count for name, count in loop.ledger.counts.items() if name.startswith("put "))
    refused = sum(count for name, count in loop.ledger.counts.items() if name.startswith("put refused"))
    assert puts > 2 * refused, "the load must get its values in"


@pytest.mark.parametrize("of", ["put", "batch", "checkpoint pages", "checkpoint header"])
def test_sigkill_at_named_points(of: str, device: Path, log: Path, told: Callable[[str], None]) -> None:
    """D3, D4, R1: killed between the steps of a put, of a batch and of a checkpoint, five times at each."""
    loop = default_slabs(device, log, f"named-points/{of}", eviction="none")
    if of.startswith("checkpoint"):
        loop.mix = replace(loop.mix, checkpoint_share=0.1)
    loop.fill(8, commits=0)
    rng = random.Random(loop.seed)
    hits: Counter[str] = Counter()
    for number in range(TIMES_AT_EACH_POINT):
        for point in POINTS[of]:
            # The start itself may write a checkpoint at once, and writes a few journal blocks: later ones are the
            # load's.
            hit = rng.randrange(8, 100) if of == "put" else rng.randrange(2, 4)  # of a batch or a checkpoint
            loop.live_until(number, f"{point}:{hit}")
            hits[point] += 1
    loop.check_end()
    told(f"named points: {dict(hits)}; {loop.report()}")
    assert all(hits[point] >= TIMES_AT_EACH_POINT for point in POINTS[of])
    assert loop.kills == sum(hits.values())
    assert loop.kills_in_flight * 2 >= loop.kills


def test_sigkill_at_named_points_of_a_start(device: Path, log: Path, told: Callable[[str], None]) -> None:
    """R9: killed under load, then between the steps of the start, of which the next start begins anew."""
    loop = default_slabs(device, log, "named-points/start", eviction="none")
    loop.fill(8, commits=0)
    rng = random.Random(loop.seed)
    hits: Counter[str] = Counter()
    for number in range(TIMES_AT_EACH_POINT):
        loop.live_and_kill(number, rng.randrange(1, 150))
        # Each of the two superblocks is counted by itself.
        for point in ("start_recovered:1", "start_counted:1", "start_counted:2", "start_recorded:1"):
            loop.start_until(point)
            hits[point.partition(":")[0]] += 1
    loop.check_end()
    told(f"named points: {dict(hits)}; {loop.report()}")
    assert all(hits[point] >= TIMES_AT_EACH_POINT for point in POINTS["start"])
    assert loop.kills_in_flight * 2 >= loop.kills


def test_the_kills_are_enough() -> None:
    """So many that what goes wrong once in a hundred times is seen."""
    under_load = sum(lives for _, _, lives, _ in CASES.values())
    at_points = TIMES_AT_EACH_POINT * sum(len(points) for points in POINTS.values())
    assert under_load + at_points >= KILLS_MIN
