"""A server that the run starts, lets rest while others are measured, and stops by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


class ServerFailed(Exception):
    pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """``words`` in a session of its own, so that Ctrl-C reaches only the harness; it dies with the harness."""

    def __init__(
        self, name: str, words: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait_for_port(self, port: int) -> None:
        """Until it accepts connections. Raises ``ServerFailed``."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {self._process.returncode}: {self.log_tail()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise ServerFailed(f"{self.name} does not listen after {START_TIMEOUT_SECONDS:.0f} s: {self.log_tail()}")

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:].strip()

    def alive(self) -> bool:
        return self._process.poll() is None

    def rest(self) -> None:
        """Stand still: what it does by itself must not cost the others anything."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """What the process and its children have used of the processors so far."""
        return sum(_cpu_ticks(pid) for pid in [self.pid, *_children(self.pid)]) / TICKS

    def stop(self) -> None:
        """SIGTERM; SIGKILL for what does not heed it in time."""
        if self._process.poll() is not None:
            return
        self.go_on()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        # It leads a process group of its own: its children are meant too.
        if self._process.poll() is None:
            os.killpg(self.pid, number)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
