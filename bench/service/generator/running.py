"""Run the load generator and understand what it reports."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SLACK_SECONDS = 60.0
"""How much longer than asked a run may take before it is ended: it fills its pool, and answers may be slow."""


class LoadFailed(Exception):
    """Answers were wrong, refused or missing: no figure may come of such a run."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds."""

    count: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of the generator measured."""

    seconds: float
    ok: int
    misses: int
    failed: int
    wrong: int
    broken: int
    values: int
    total_requests: int
    """With those before the measured window."""
    bytes_in: int
    reads: Latency
    writes: Latency
    first_failure: str


@dataclass(frozen=True, slots=True)
class Requests:
    """What the generator sends: heads with ``{key}`` in them, or a file of complete requests."""

    protocol: str = "http"
    read: str = ""
    write: str = ""
    read_weight: int = 1
    write_weight: int = 1
    tail: str = ""
    """What follows a body."""
    canned: Path | None = None
    values: int = 1
    bytes: int = 0
    keys: int = 1
    first_key: int = 0
    options: Sequence[str] = field(default_factory=tuple)

    def with_options(self, *options: str) -> Requests:
        return replace(self, options=(*self.options, *options))

    def arguments(self) -> list[str]:
        words = ["--protocol", self.protocol, "--bytes", str(self.bytes), "--keys", str(self.keys)]
        words += ["--first-key", str(self.first_key), "--values", str(self.values)]
        if self.read:
            words += ["--read", f"{self.read_weight}:{self.read}"]
        if self.write:
            words += ["--write", f"{self.write_weight}:{self.write}"]
        if self.tail:
            words += ["--tail", self.tail]
        if self.canned is not None:
            words += ["--canned", str(self.canned)]
        return words + list(self.options)


def understood(text: str) -> Load:
    """The generator's report. Raises ``LoadFailed`` if there is none."""
    try:
        report: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise LoadFailed(f"no report of the load generator: {text!r}") from error

    def latency(kind: str) -> Latency:
        return Latency(report[kind]["count"], report[kind]["p50_us"], report[kind]["p99_us"])

    return Load(
        seconds=report["seconds"],
        ok=report["ok"],
        misses=report["misses"],
        failed=report["failed"],
        wrong=report["wrong"],
        broken=report["broken"],
        values=report["values"],
        total_requests=report["total_requests"],
        bytes_in=report["bytes_in"],
        reads=latency("reads"),
        writes=latency("writes"),
        first_failure=report["first_failure"],
    )


def checked(load: Load, *, misses_allowed: bool = False) -> Load:
    """Raises ``LoadFailed`` unless every request was answered as it should be."""
    faults = {"failed": load.failed, "wrong": load.wrong, "broken": load.broken}
    if not misses_allowed:
        faults["missed"] = load.misses
    found = ", ".join(f"{count} {name}" for name, count in faults.items() if count)
    if found:
        first = f"; the first failure: {load.first_failure}" if load.first_failure else ""
        raise LoadFailed(f"{load.ok} right, {found}{first}")
    if not load.ok:
        raise LoadFailed("no request was answered")
    return load


class Generator:
    def __init__(self, program: Path) -> None:
        self._program = program

    def run(
        self,
        address: str,
        requests: Requests,
        *,
        connections: int,
        seconds: float = 3600.0,
        warmup: float = 0.0,
        count: int = 0,
        seed: int = 1,
    ) -> Load:
        """Load ``address`` for so many seconds, or with ``count`` requests. Raises ``LoadFailed``."""
        words = [*self._words(address, requests, connections), "--seconds", str(seconds), "--warmup", str(warmup)]
        words += ["--requests", str(count), "--seed", str(seed)]
        limit = (600.0 if count else seconds + warmup) + SLACK_SECONDS
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as error:
            raise LoadFailed(f"the load generator did not end within {limit:.0f} s") from error
        if done.returncode:
            raise LoadFailed(f"the load generator ended with {done.returncode}: {done.stderr.strip()}")
        return understood(done.stdout)

    def start(self, address: str, requests: Requests, *, connections: int, seconds: float) -> RunningLoad:
        """Load that goes on until it is told to end, at most ``seconds``."""
        words = [*self._words(address, requests, connections), "--seconds", str(seconds)]
        return RunningLoad(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True), seconds)

    def _words(self, address: str, requests: Requests, connections: int) -> list[str]:
        guard = ["setpriv", "--pdeathsig", "KILL"]
        words = [*guard, str(self._program), "--connect", address, "--connections", str(connections)]
        return words + requests.arguments()


class RunningLoad:
    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._process = process
        self._seconds = seconds

    def begin_window(self) -> None:
        """What is reported begins now."""
        self._process.send_signal(signal.SIGUSR1)

    def end(self) -> Load:
        """Raises ``LoadFailed``."""
        self._process.send_signal(signal.SIGTERM)
        text, _ = self._process.communicate(timeout=self._seconds + SLACK_SECONDS)
        if self._process.returncode:
            raise LoadFailed(f"the load generator ended with {self._process.returncode}")
        return understood(text)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def write_canned(path: Path, requests: Iterable[bytes]) -> None:
    """A file of complete requests, as the generator reads it."""
    with open(path, "wb") as file:
        for request in requests:
            file.write(struct.pack("<Q", len(request)))
            file.write(request)
