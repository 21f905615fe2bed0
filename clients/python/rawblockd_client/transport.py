"""Connections of the sync client: the standard library's HTTP over TCP, TLS or a Unix socket, kept in a pool."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rawblockd_client.codec import Buffer
from rawblockd_client.endpoint import Endpoint
from rawblockd_client.errors import BufferTooSmall, ClientClosed, ConnectionFailed, DeadlineExceeded
from rawblockd_client.exchange import Answer, Call

COALESCED_BYTES = 64 * 1024
"""Pieces of a body are gathered up to here, so that small ones don't take a packet each."""
READ_INTO = (200, 206)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Connection:
    """One connection; not for two threads at once."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, timeout_seconds: float) -> None:
        self.reusable = False
        self._http: http.client.HTTPConnection
        if endpoint.unix_path is not None:
            self._http = _UnixConnection(endpoint.unix_path, timeout_seconds)
        elif endpoint.tls:
            self._http = http.client.HTTPSConnection(
                endpoint.host, endpoint.port, timeout=timeout_seconds, context=context
            )
        else:
            self._http = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_seconds)

    def exchange(self, call: Call[Any], headers: dict[str, str], timeout_seconds: float) -> Answer:
        """Raises ConnectionFailed, DeadlineExceeded, BufferTooSmall. Afterwards ``reusable`` says if it can go on."""
        self.reusable = False
        try:
            return self._exchange(call, headers, timeout_seconds)
        except socket.timeout:  # its own class up to Python 3.9
            raise DeadlineExceeded(f"no answer within {timeout_seconds:.3g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error

    def _exchange(self, call: Call[Any], headers: dict[str, str], timeout_seconds: float) -> Answer:
        self._http.timeout = timeout_seconds
        if self._http.sock is not None:
            self._http.sock.settimeout(timeout_seconds)
        self._http.putrequest(call.method, call.target, skip_accept_encoding=True)
        for name, text in headers.items():
            self._http.putheader(name, text)
        for name, text in call.headers.items():
            self._http.putheader(name, text)
        if call.body is not None:
            self._http.putheader("Content-Length", str(call.body_bytes))
        self._http.endheaders()
        try:
            for piece in gathered(call.body or ()):
                self._http.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before the body was read: the answer may be there all the same
        return self._receive(call)

    def _receive(self, call: Call[Any]) -> Answer:
        response = self._http.getresponse()
        fields: dict[str, str] = {}
        for name, text in response.getheaders():
            fields[name.lower()] = text
        sink = call.sink if response.status in READ_INTO else None
        if sink is None:
            body = response.read()
            received = len(body)
        else:
            body = b""
            received = int(response.length or 0)
            if received > len(sink):
                raise BufferTooSmall(received, len(sink))
            _read_into(response, sink[:received])
            response.read()
        self.reusable = not response.will_close
        return Answer(response.status, fields, body, received)

    @property
    def is_stale(self) -> bool:
        """True if the daemon has closed it meanwhile: nothing is due on an idle connection but its end."""
        sock = self._http.sock
        if sock is None:
            return True
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock, select.POLLIN | select.POLLHUP | select.POLLERR)
            return bool(poll.poll(0))
        return bool(select.select([sock], [], [], 0)[0])

    def close(self) -> None:
        self._http.close()


class Pool:
    """Idle connections. As many are made as threads ask at once; ``idle_max`` of them are kept. Thread-safe."""

    def __init__(
        self, endpoint: Endpoint, context: ssl.SSLContext | None, timeout_seconds: float, idle_max: int
    ) -> None:
        self._endpoint = endpoint
        self._context = context
        self._timeout_seconds = timeout_seconds
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> _Taken:
        return _Taken(self)

    def get(self) -> Connection:
        while True:
            with self._lock:
                if self._closed:
                    raise ClientClosed("the client is closed")
                found = self._idle.pop() if self._idle else None
            if found is None:
                return Connection(self._endpoint, self._context, self._timeout_seconds)
            if not found.is_stale:
                return found
            found.close()

    def put(self, connection: Connection) -> None:
        with self._lock:
            if connection.reusable and not self._closed and len(self._idle) < self._idle_max:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _Taken:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> Connection:
        self._connection = self._pool.get()
        return self._connection

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._pool.put(self._connection)


def gathered(pieces: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in pieces that are worth a system call; large ones as they are."""
    found: list[Buffer] = []
    small = bytearray()
    for piece in pieces:
        if memoryview(piece).nbytes >= COALESCED_BYTES:
            if small:
                found.append(bytes(small))
                small.clear()
            found.append(piece)
            continue
        small += piece
        if len(small) >= COALESCED_BYTES:
            found.append(bytes(small))
            small.clear()
    if small:
        found.append(bytes(small))
    return found


def _read_into(response: http.client.HTTPResponse, sink: memoryview) -> None:
    at = 0
    while at < len(sink):
        count = response.readinto(sink[at:])
        if not count:
            raise http.client.IncompleteRead(b"", len(sink) - at)
        at += count
