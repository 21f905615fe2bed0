"""A real Prometheus on the loopback, scraping one daemon in short intervals."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

START_SECONDS = 30.0
WAIT_SECONDS = 30.0
POLL_SECONDS = 0.1
STARTS = 5

CONFIGURATION = """\
global:
  scrape_interval: 500ms
  scrape_timeout: 500ms
  evaluation_interval: 250ms
rule_files: ["{rules}"]
scrape_configs:
  - job_name: rawblockd
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


def free_port() -> int:
    """A port that is free now. Prometheus can't take one by itself and say which."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_patience(rules: str) -> str:
    """The rules, word for word, but each ``for:`` is half a second: a test can't wait for an hour."""
    text, count = re.subn(r"^( +for:) \S+$", r"\1 500ms", rules, flags=re.MULTILINE)
    assert count > 10, "the rules write their durations in another way"
    return text


class Prometheus:
    """A context manager that leaves no process behind. ``target`` is the daemon's port."""

    def __init__(self, folder: Path, target: int, rules: str) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "alerts.yml").write_text(rules)
        configuration = CONFIGURATION.format(rules=folder / "alerts.yml", port=target)
        (folder / "prometheus.yml").write_text(configuration)
        for _ in range(STARTS):
            self._port = free_port()
            self._process = self._start()
            if self._began():
                return
            self.stop()
        raise AssertionError(f"prometheus does not start:\n{self._log_text()}")

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("wb") as log:
            return subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )

    def _began(self) -> bool:
        """True once it is ready, False if it has ended because somebody else took the port."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                if self._get("/-/ready")[0] == 200:
                    return self._process.poll() is None
            except OSError:
                pass
            time.sleep(POLL_SECONDS)
        return False

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)

    def _log_text(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _api(self, path: str, **parameters: str) -> Any:
        code, body = self._get(f"/api/v1/{path}?{urlencode(parameters)}")
        answer = json.loads(body)
        assert (code, answer["status"]) == (200, "success"), (path, parameters, answer)
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector: objects with ``metric`` and ``value``."""
        data = self._api("query", query=expression)
        assert data["resultType"] == "vector", (expression, data["resultType"])
        return list(data["result"])

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._api("rules")["groups"] for rule in group["rules"]]

    def alerts(self, state: str = "firing") -> set[str]:
        """Names of the alerts in this state."""
        return {alert["labels"]["alertname"] for alert in self._api("alerts")["alerts"] if alert["state"] == state}

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; firing: {sorted(self.alerts())}"
            time.sleep(POLL_SECONDS)
