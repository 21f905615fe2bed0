"""A small client of a running daemon, over TCP, TLS or a Unix socket, with the standard library alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rawblockd.errors import DaemonRefused, DaemonUnreachable
from storage.errors import SettingsInvalid

ANSWER_MAX_BYTES = 64 << 20
"""A status with 4096 namespaces has 1 MiB; whoever sends more is no daemon of ours."""

LINE_MAX_BYTES = 64 * 1024


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class Target:
    """A daemon, and what is shown to be let in. ``ca`` and ``certificate`` are PEM files, for https."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None


def call(target: Target, method: str, path: str, timeout_seconds: float) -> tuple[int, Any]:
    """Status and decoded JSON of one request (None for an empty answer).

    Raises ``DaemonUnreachable`` if nobody answers, ``DaemonRefused`` for a problem the daemon answered with.
    """
    status, answer = exchange(target, method, path, timeout_seconds)
    if status >= 400:
        problem = answer if isinstance(answer, dict) else {}
        # The detail of many problems is their title again.
        text = " ".join(dict.fromkeys(str(problem[name]) for name in ("title", "detail") if problem.get(name)))
        raise DaemonRefused(text or f"status {status}", status=status, problem_code=problem.get("code"))
    return status, answer


def exchange(target: Target, method: str, path: str, timeout_seconds: float) -> tuple[int, Any]:
    """As ``call``, but a refusal is returned like any other answer."""
    connection = _connection(target, timeout_seconds)
    try:
        headers = {"Accept": "application/json", "Connection": "close", **_authorization(target)}
        connection.request(method, path, body=b"" if method == "POST" else None, headers=headers)
        response = connection.getresponse()
        raw = response.read(ANSWER_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DaemonUnreachable(f"{target.url}: {str(error) or type(error).__name__}", url=target.url) from error
    finally:
        connection.close()
    if not raw:
        return response.status, None
    try:
        return response.status, json.loads(raw)
    except ValueError:
        return response.status, raw.decode(errors="replace")


def check_target(target: Target) -> None:
    """Raises SettingsInvalid for a target that nobody could be asked at."""
    _connection(target, 1.0).close()


class EventStream:
    """An answer that goes on: its lines, until the daemon ends it, nothing came for too long, or ``interrupt``."""

    def __init__(self, target: Target, path: str, silence_seconds: float) -> None:
        """Raises DaemonUnreachable, DaemonRefused."""
        self._url = target.url
        self._connection = _connection(target, silence_seconds)
        try:
            self._connection.request("GET", path, headers={"Accept": "text/event-stream", **_authorization(target)})
            self._response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise DaemonUnreachable(f"{self._url}: {str(error) or type(error).__name__}", url=self._url) from error
        if self._response.status != 200:
            self.close()
            raise DaemonRefused(f"status {self._response.status}", status=self._response.status)

    def lines(self) -> Iterator[str]:
        """Without their ends. Raises DaemonUnreachable if the connection breaks."""
        try:
            while line := self._response.readline(LINE_MAX_BYTES):
                yield line.decode(errors="replace").rstrip("\r\n")
        except (OSError, ValueError, http.client.HTTPException) as error:
            # ValueError: interrupted, so that there is no file to read from any more.
            raise DaemonUnreachable(f"{self._url}: {str(error) or type(error).__name__}", url=self._url) from error

    def interrupt(self) -> None:
        """End it from another thread."""
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def _authorization(target: Target) -> dict[str, str]:
    return {} if target.token is None else {"Authorization": f"Bearer {target.token}"}


def _connection(target: Target, timeout_seconds: float) -> http.client.HTTPConnection:
    url = target.url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsInvalid(f"url is {url!r}: {error}", settings=["url"]) from error
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return UnixConnection(parts.path, timeout_seconds)
    if parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and not parts.query:
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, port or 80, timeout=timeout_seconds)
        context = _tls_context(target)
        return http.client.HTTPSConnection(parts.hostname, port or 443, timeout=timeout_seconds, context=context)
    allowed = "http://HOST:PORT, https://HOST:PORT or unix:///PATH"
    raise SettingsInvalid(f"url is {url!r}; allowed: {allowed}", settings=["url"])


def _tls_context(target: Target) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=target.ca)
        if target.certificate is not None:
            context.load_cert_chain(target.certificate)
    except OSError as error:
        reason = error.strerror or getattr(error, "reason", None) or str(error)
        raise SettingsInvalid(f"ca or certificate can't be used: {reason}", settings=["ca", "certificate"]) from error
    return context
