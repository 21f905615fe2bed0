"""A small client of a running daemon, over TCP or a Unix socket, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from rawblockd.errors import DaemonRefused, DaemonUnreachable
from storage.errors import SettingsInvalid

ANSWER_MAX_BYTES = 64 << 20
"""A status with 4096 namespaces has 1 MiB; whoever sends more is no daemon of ours."""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def call(url: str, method: str, path: str, timeout_seconds: float) -> tuple[int, Any]:
    """Status and decoded JSON of one request (None for an empty answer).

    Raises ``DaemonUnreachable`` if nobody answers, ``DaemonRefused`` for a problem the daemon answered with.
    """
    status, answer = exchange(url, method, path, timeout_seconds)
    if status >= 400:
        problem = answer if isinstance(answer, dict) else {}
        # The detail of many problems is their title again.
        text = " ".join(dict.fromkeys(str(problem[name]) for name in ("title", "detail") if problem.get(name)))
        raise DaemonRefused(text or f"status {status}", status=status, problem_code=problem.get("code"))
    return status, answer


def exchange(url: str, method: str, path: str, timeout_seconds: float) -> tuple[int, Any]:
    """As ``call``, but a refusal is returned like any other answer."""
    connection = _connection(url, timeout_seconds)
    try:
        headers = {"Accept": "application/json", "Connection": "close"}
        connection.request(method, path, body=b"" if method == "POST" else None, headers=headers)
        response = connection.getresponse()
        raw = response.read(ANSWER_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DaemonUnreachable(f"{url}: {str(error) or type(error).__name__}", url=url) from error
    finally:
        connection.close()
    if not raw:
        return response.status, None
    try:
        return response.status, json.loads(raw)
    except ValueError:
        return response.status, raw.decode(errors="replace")


def _connection(url: str, timeout_seconds: float) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsInvalid(f"url is {url!r}: {error}", settings=["url"]) from error
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return UnixConnection(parts.path, timeout_seconds)
    if parts.scheme == "http" and parts.hostname and parts.path in ("", "/") and not parts.query:
        return http.client.HTTPConnection(parts.hostname, port or 80, timeout=timeout_seconds)
    raise SettingsInvalid(f"url is {url!r}; allowed: http://HOST:PORT or unix:///PATH", settings=["url"])
