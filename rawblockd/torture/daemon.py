"""The daemon's process, as an operator would run it: started, asked, killed, and its log kept."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rawblockd.command_line.daemon_client import UnixConnection
from rawblockd.torture.load import TIMEOUT_SECONDS, TortureFailed, exchange

# Without -P a folder of the working directory could pass for a part of the daemon.
DAEMON = (sys.executable, "-P", "-m", "rawblockd", "serve")
FAULTY_DAEMON = (sys.executable, "-P", "-m", "rawblockd.torture.faulty_server")
FLAGS = ("--buffer-bytes", "32MiB", "--eviction", "none", "--log-format", "json")
START_SECONDS = 60.0
STOP_SECONDS = 60.0
SCRUB_SECONDS = 600.0
POLL_SECONDS = 0.01
LOG_TAIL_BYTES = 4000
SERVING = frozenset({"ready", "degraded", "read_only"})


class DaemonRefusedStart(Exception):
    """It ended before it served, with ``exit_code``."""

    def __init__(self, exit_code: int, log: str) -> None:
        super().__init__(f"the start ended with exit code {exit_code}: {log}")
        self.exit_code = exit_code


class TorturedDaemon:
    """One process; a context manager that leaves none behind."""

    def __init__(self, command: tuple[str, ...], device: str, folder: Path, *flags: str) -> None:
        self.socket_path = str(folder / "socket")
        self._log_path = folder / "log"
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("RAWBLOCKD_")}
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--device", device, "--uds", self.socket_path, *FLAGS, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def __enter__(self) -> TorturedDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process if it is still there. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STOP_SECONDS)

    def wait_serving(self) -> None:
        """Raises DaemonRefusedStart if the process ends first, TortureFailed if it takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            exit_code = self._process.poll()
            if exit_code is not None:
                raise DaemonRefusedStart(exit_code, self.log_tail())
            try:
                if self._ask("GET", "/v1/status")[1].get("state") in SERVING:
                    return
            except (OSError, http.client.HTTPException, ValueError):
                pass  # not listening yet, or gone: the next turn tells
            time.sleep(POLL_SECONDS)
        raise TortureFailed(f"not serving after {START_SECONDS:.0f} s: {self.log_tail()}")

    def wait_scrubbed(self) -> None:
        """Wait for a pass over everything on the device. Raises TortureFailed if it takes too long."""
        deadline = time.monotonic() + SCRUB_SECONDS
        while time.monotonic() < deadline:
            self.check_alive()
            if self.ask("GET", "/v1/status")[1]["scrub"]["passes"]:
                return
            time.sleep(POLL_SECONDS)
        raise TortureFailed(f"not scrubbed after {SCRUB_SECONDS:.0f} s: {self.log_tail()}")

    def connect(self) -> http.client.HTTPConnection:
        return UnixConnection(self.socket_path, TIMEOUT_SECONDS)

    def ask(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        """One request answered in JSON. Raises TortureFailed when there is no such answer."""
        try:
            return self._ask(method, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TortureFailed(f"{method} {path}: {error!r}; {self.log_tail()}") from error

    def _ask(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        connection = self.connect()
        try:
            code, body = exchange(connection, method, path)
        finally:
            connection.close()
        answer = json.loads(body)
        if not isinstance(answer, dict):
            raise ValueError(f"{path}: no object")
        return code, answer

    def check_alive(self) -> None:
        """Raises TortureFailed if the process ended by itself."""
        exit_code = self._process.poll()
        if exit_code is not None:
            raise TortureFailed(f"the daemon ended by itself with exit code {exit_code}: {self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL: it gets no chance to do anything any more."""
        self.check_alive()
        self._process.kill()
        if self._process.wait(STOP_SECONDS) != -signal.SIGKILL:
            raise TortureFailed(f"the daemon ended by itself, just before it was killed: {self.log_tail()}")

    def stop(self) -> None:
        """SIGTERM: it drains and ends with 0. Raises TortureFailed if it does anything else."""
        self._process.send_signal(signal.SIGTERM)
        try:
            exit_code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TortureFailed(f"the daemon did not stop within {STOP_SECONDS:.0f} s: {self.log_tail()}") from error
        if exit_code != 0:
            raise TortureFailed(f"the daemon stopped with exit code {exit_code}: {self.log_tail()}")

    def log_tail(self) -> str:
        return self._log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def logged(self, event: str) -> int:
        """How many lines of the log are of this event."""
        return self._log_path.read_bytes().count(json.dumps(event).encode())
