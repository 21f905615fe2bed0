"""Contenders take turns, and whoever is not measured stands still."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.service.daemon import Daemon
from bench.service.fio import Fio
from bench.service.generator.running import LoadFailed, Requests
from bench.service.measuring import Contenders, measure
from bench.service.processes import ServerFailed, ServerProcess
from bench.service.series import all_series
from bench.service.server import Server
from bench.service.work import Figures, Work

SERIES = {series.name: series for series in all_series()}


class StillProcess(ServerProcess):
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self._calls = calls
        self.running = True

    def rest(self) -> None:
        self.running = False

    def go_on(self) -> None:
        self.running = True

    def stop(self) -> None:
        self._calls.append(f"{self.name} stops")


class FakeServer(Server):
    """Notes what is asked of it; its first ``failures`` turns fail."""

    def __init__(self, name: str, calls: list[str], others: dict[str, FakeServer], failures: int = 0) -> None:
        self.name = name
        self._calls = calls
        self._others = others
        self._failures = failures
        self.process = self.start()
        others[name] = self

    def start(self) -> ServerProcess:
        return StillProcess(self.name, self._calls)

    @property
    def address(self) -> str:
        return "nowhere"

    def requests(self, work: Work, keys: int) -> Requests:
        return Requests()

    def fill(self, size: int, wanted: int) -> None:
        self._calls.append(f"fill {self.name}")

    def measure(self, work: Work, seconds: float, seed: int) -> Figures:
        running = [name for name, other in self._others.items() if getattr(other.process, "running", False)]
        assert running == [self.name]
        self._calls.append(self.name + work.durability)
        if self._failures:
            self._failures -= 1
            raise LoadFailed("it stumbled")
        return Figures(1, 1, 1, 1, 1)


class FakeFio(Fio):
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def measure(self, work: Work, seconds: float) -> Figures:
        self._calls.append("fio")
        return Figures(2, 2, 2, 2, 2)


class FakeDaemon(Daemon):
    """What was wiped becomes free at the third look."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._filled: dict[int, int] = {}
        self._limbo = [8, 3, 0]

    def call(self, method: str, target: str, body: bytes | None = None, *, kind: str = "application/json") -> bytes:
        self.calls.append(f"{method} {target}")
        status = {"capacity": {"slots": {"limbo": self._limbo.pop(0)}}} if target == "/v1/status" else {}
        return json.dumps(status).encode()

    def _run(self, work: Work, keys: int, *options: str) -> None:
        self.calls.append(f"{work.operation} {work.size}")


def turns(*, failures: int = 0, peer_failures: int = 0, problems: list[str] | None = None) -> list[str]:
    calls: list[str] = []
    others: dict[str, FakeServer] = {}
    makers = {
        "rawblockd": lambda: FakeServer("rawblockd", calls, others, failures),
        "nginx": lambda: FakeServer("nginx", calls, others, peer_failures),
        "redis": lambda: FakeServer("redis", calls, others),
    }
    with ExitStack() as stack:
        series = SERIES["put-64k"]
        told: list[str] = [] if problems is None else problems
        contenders = Contenders(FakeFio(calls), makers, {64 << 10: 5}, stack)
        found = measure(series, contenders, 2, 0.1, told.append)
        counts = {name: len(figures) for name, figures in found.figures.items()}
        expected = {"fio": 3, "rawblockd": 2, "rawblockd?none": 2, "nginx": 2, "redis": 2}
        assert counts == {name: count for name, count in expected.items() if not told or name != "nginx"}
        assert found.ratios("rawblockd", "fio") == [0.5, 0.5]
    return calls


def test_turns_and_fio_before_and_after_each() -> None:
    calls = turns()
    fills = ["fill rawblockd", "fill rawblockd", "fill nginx", "fill redis"]
    turn = ["fio", "rawblockd", "rawblockdnone", "nginx", "redis"]
    stops = ["redis stops", "nginx stops", "rawblockd stops"]
    assert calls == [*fills, *turn, *turn, "fio", *stops]


def test_a_turn_that_fails_once_is_repeated_and_twice_is_an_error() -> None:
    assert turns(failures=1).count("rawblockd") == 3
    with pytest.raises(LoadFailed, match="rawblockd, PUT 64 KiB: it stumbled"):
        turns(failures=2)


def test_a_peer_that_fails_leaves_the_series_and_is_told_of() -> None:
    problems: list[str] = []
    calls = turns(peer_failures=2, problems=problems)
    assert problems == ["put-64k, nginx: nginx, PUT 64 KiB: it stumbled"]
    assert calls.count("nginx") == 2
    assert calls.count("redis") == 2


def test_a_server_rests_goes_on_and_stops(tmp_path: Path) -> None:
    process = ServerProcess("sleeper", ["sleep", "600"], tmp_path)
    try:
        process.rest()
        process.go_on()
        assert process.alive()
        assert process.cpu_seconds() < 60
    finally:
        process.stop()
    assert not process.alive()
    process.stop()


def test_a_server_that_ends_by_itself_is_told_of(tmp_path: Path) -> None:
    process = ServerProcess("talker", ["sh", "-c", "echo no such luck; exit 3"], tmp_path)
    with pytest.raises(ServerFailed, match="talker ended with 3: no such luck"):
        process.wait_for_port(1)


def test_the_daemon_forgets_other_sizes_before_it_is_filled() -> None:
    """Else a series might evict what another one, or itself, was filled with."""
    daemon = FakeDaemon()
    for size in (4096, 65536, 65536):
        daemon.fill(size, 8)
    wiping = ["DELETE /v1/namespaces/values-4096", *["GET /v1/status"] * 3]
    assert daemon.calls == ["put 4096", "get 4096", *wiping, "put 65536", "get 65536"]
