"""A client's socket in TLS that one thread may write to while another reads: the standard library's can't be shared so.

OpenSSL's state of a connection is not safe to use by two threads at once, and an ``SSLSocket`` keeps no lock. Here the
network is waited for outside the lock.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

_READ_BYTES = 1 << 16


class TlsSocket:
    """What isn't here is the plain socket's."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, server_hostname: str) -> None:
        self._plain = plain
        self._arrived = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._to_send, server_hostname=server_hostname)
        self._lock = threading.Lock()
        while not self._is_done(self._tls.do_handshake):
            self._flush()
            self._receive()
        self._flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def sendall(self, data: bytes) -> None:
        """For one thread at a time."""
        with self._lock:
            self._tls.write(data)
        self._flush()

    def receive_into(self, buffer: Any) -> int:
        """Bytes read; 0 at the end of what the server sends. For one thread at a time. It sends nothing: whoever reads
        must not wait for whoever writes."""
        found: list[bytes] = []
        try:
            while not self._is_done(lambda: found.append(self._tls.read(len(buffer)))):
                self._receive()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0
        buffer[: len(found[0])] = found[0]
        return len(found[0])

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def _is_done(self, step: Callable[[], object]) -> bool:
        """False if more must arrive first."""
        try:
            with self._lock:
                step()
        except ssl.SSLWantReadError:
            return False
        return True

    def _receive(self) -> None:
        arrived = self._plain.recv(_READ_BYTES)
        with self._lock:
            if arrived:
                self._arrived.write(arrived)
            else:
                self._arrived.write_eof()

    def _flush(self) -> None:
        with self._lock:
            data = self._to_send.read()
        self._plain.sendall(data)


class _Reader(io.RawIOBase):
    def __init__(self, tls: TlsSocket) -> None:
        self._tls = tls

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._tls.receive_into(memoryview(buffer))
