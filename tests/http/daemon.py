"""A real daemon for the HTTP tests: ``python -m rawblockd serve`` on a fresh file, at a free port.

The file is large enough for values that no socket buffers hold: a device of 2 GiB has slabs of 16 MiB.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

ROOT = Path(__file__).parents[2]
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 60.0
VALUES = "/v1/kv/{namespace}/{key}"
POLLS_MAX = 20_000
"""Most requests while waiting for a state that the daemon reaches by itself; each is a round trip."""


class Daemon:
    """The process, running from ``__enter__`` to ``__exit__``. ``arguments`` are further flags of ``serve``.

    With ``uds`` it listens there too, and ``http`` goes that way.
    """

    def __init__(self, device: Path, *arguments: str, size: str = "2GiB", uds: str | None = None) -> None:
        self._uds = uds
        arguments = (*arguments, "--uds", uds, "--tcp") if uds else arguments
        self.device = device
        self._arguments = ["serve", "--device", str(device), "--create", "--size", size, "--port", "0", *arguments]
        self._arguments += ["--log-format", "json"]
        self.log: list[dict[str, Any]] = []
        self.host = "127.0.0.1"
        self.port = 0
        self._ready = threading.Event()

    def __enter__(self) -> Daemon:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rawblockd", *self._arguments],
            cwd=self.device.parent,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        if not self._ready.wait(START_TIMEOUT_SECONDS) or self._process.poll() is not None:
            self._process.kill()
            self._end()
            raise AssertionError(f"the daemon did not start: {self.log[-5:]}")
        transport = None if self._uds is None else httpx2.HTTPTransport(uds=self._uds)
        self.http = httpx2.Client(base_url=self.url, timeout=60.0, transport=transport)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._end()
        assert code == 0, self.log[-5:]
        mistakes = [line for line in self.log if "Exception in ASGI" in line["event"] or "exception" in line]
        assert not mistakes, mistakes

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def status(self) -> dict[str, Any]:
        answer = self.http.get("/v1/status")
        assert answer.status_code == 200
        document = answer.json()
        assert isinstance(document, dict)
        return document

    def wait_at_rest(self) -> dict[str, Any]:
        """The status once no request holds anything: no buffer, no slot in flight, none freed that a flush awaits."""
        for _ in range(POLLS_MAX):
            status = self.status()
            slots = status["capacity"]["slots"]
            if not (status["buffers"]["used_bytes"] or slots["in_flight"] or slots["limbo"]):
                return status
        raise AssertionError("the daemon does not come to rest")

    def wait_for_count(self, method: str, code: int, at_least: int, route: str = VALUES) -> None:
        """Wait until so many requests to values, or of another route, have ended with ``code``."""
        for _ in range(POLLS_MAX):
            if self.request_count(method, code, route) >= at_least:
                return
        raise AssertionError(f"no {at_least} requests {method} ended with {code}")

    def request_count(self, method: str, code: int, route: str = VALUES) -> int:
        """How many requests to values, or of another route, were counted so far, from the metrics."""
        text = self.http.get("/metrics").text
        labels = f'code="{code}",method="{method}",route="{route}"'
        for line in text.splitlines():
            match = re.fullmatch(r"rawblockd_http_requests_total\{(.*)\} (.*)", line)
            if match and ",".join(sorted(match[1].split(","))) == labels:
                return int(float(match[2]))
        return 0

    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def huge_bytes_by_mapping(self) -> list[int]:
        """What lies on huge pages, for each mapping of the process."""
        with open(f"/proc/{self._process.pid}/smaps", encoding="ascii", errors="replace") as lines:
            return [int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages:")]

    def wait_for_open_files(self, at_most: int) -> None:
        """Wait until the daemon has no more files and connections open than that."""
        for _ in range(POLLS_MAX):
            self.status()
            if self.open_files() <= at_most:
                return
        raise AssertionError("the daemon keeps a connection")

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            try:
                line = json.loads(text)
            except ValueError:
                line = {"event": text.rstrip()}
            self.log.append(line)
            if line["event"] == "listening":
                self.port = int(re.findall(r":([0-9]+)", line["url"])[0])
            elif line["event"] == "ready":
                self._ready.set()
        self._ready.set()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        # The folders of the last runs are kept; their devices would fill a disk.
        self.device.unlink(missing_ok=True)
