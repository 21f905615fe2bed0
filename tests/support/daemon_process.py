"""A real daemon in a process of its own, for tests that send it signals and read its log."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

START_SECONDS = 30.0
POLL_SECONDS = 0.005
"""Between two looks at what has no event: crash tests wait for hundreds of starts."""


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without settings and without a supervisor of the test run itself."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("RAWBLOCKD_")}
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        kept.pop(name, None)
    return kept | extra


class Running(Protocol):
    """A process that was started, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...


class DaemonProcess:
    """``rawblockd serve`` with a JSON log; a context manager that leaves no process behind."""

    module = "rawblockd"
    """What Python runs; a test that prepares the daemon's process names a module of its own."""

    def __init__(self, log_path: Path, *arguments: str, **environment: str) -> None:
        self._log_path = log_path
        self.process = self._launch(("serve", "--port", "0", "--log-format", "json", *arguments), environment)

    def _launch(self, arguments: tuple[str, ...], environment: dict[str, str]) -> Running:
        with self._log_path.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                stdout=log,
                stderr=log,
                env=clean_environment(**environment),
            )

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    @cached_property
    def port(self) -> int:
        """The daemon took a free one: nobody else can take it between a look and the daemon's start."""
        return int(str(self.wait_logged("listening")["url"]).rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        """A connection for requests that may take long: large values, a load of many clients."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)

    def get(self, path: str, timeout_seconds: float = 10.0) -> tuple[int, bytes]:
        return self.request("GET", path, timeout_seconds=timeout_seconds)

    def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout_seconds: float = 10.0
    ) -> tuple[int, bytes]:
        """One request on a connection of its own: the answer's code and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)
        try:
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        code, answer = self.get("/v1/status")
        assert code == 200, answer
        document = json.loads(answer)
        assert isinstance(document, dict)
        return document

    def wait_at_rest(self) -> dict[str, Any]:
        """The status once nothing is on its way: no slot in flight, none freed that a flush still awaits."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            status = self.status()
            slots = status["capacity"]["slots"]
            if not (slots["in_flight"] or slots["limbo"] or status["buffers"]["used_bytes"]):
                return status
            time.sleep(POLL_SECONDS)
        raise AssertionError("the daemon does not come to rest")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log_text()
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"not ready:\n{self.log_text()}")

    def wait_logged(self, event: str) -> dict[str, Any]:
        """The first record of this event."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for record in self.records():
                if record["event"] == event:
                    return record
            assert self.process.poll() is None, self.log_text()
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"no {event!r} in:\n{self.log_text()}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_SECONDS)

    def kill(self) -> None:
        """SIGKILL: the daemon gets no chance to do anything any more."""
        self.process.kill()
        assert self.process.wait(START_SECONDS) == -signal.SIGKILL

    def wait(self) -> int:
        return self.process.wait(START_SECONDS)

    def log_text(self) -> str:
        return self._log_path.read_text(errors="replace")

    def records(self) -> list[dict[str, Any]]:
        """The complete lines of the log so far; a line that is no JSON fails the test."""
        return [json.loads(line) for line in self.log_text().split("\n")[:-1]]
