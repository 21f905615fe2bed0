"""A client that sends exactly the bytes it is given, for what no HTTP library would send."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from types import TracebackType
from typing import Any

from tests.support.tls_socket import TlsSocket

TIMEOUT_SECONDS = 60.0


@dataclass
class RawAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The one value of a field; None without it."""
        found = [value for other, value in self.headers if other == name]
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document, whose status must be the answer's."""
        assert self.header("content-type") == "application/problem+json", (self.status, self.headers)
        document = json.loads(self.body)
        assert document["status"] == self.status
        assert {"type", "title", "code"} <= document.keys()
        return dict(document)

    @property
    def code(self) -> str:
        code = self.problem["code"]
        assert isinstance(code, str)
        return code

    @property
    def closes(self) -> bool:
        return self.header("connection") == "close"


def head(method: str, path: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request(method: str, path: str, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None) -> bytes:
    """A whole request; with a body its Content-Length is declared."""
    if body is None:
        return head(method, path, headers)
    return head(method, path, [*headers, ("Content-Length", str(len(body)))]) + body


class RawClient:
    """One connection: to host and port, or to the path of a Unix socket; with ``context`` in TLS.

    ``receive_buffer_bytes`` bounds what the kernel takes for a client that doesn't read.
    """

    def __init__(
        self,
        address: tuple[str, int] | str,
        receive_buffer_bytes: int | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket: Any = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(address)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = TlsSocket(self.socket, context, "localhost")
        self._file: BufferedReader = self.socket.makefile("rb")
        self.answered_bytes = 0
        """Size of the last answer, its head included."""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def reset(self) -> None:
        """End the connection without a goodbye: what is on its way is lost, either way."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(
        self, method: str, path: str, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None
    ) -> RawAnswer:
        self.send(request(method, path, headers, body))
        return self.answer(method)

    def answer_head(self) -> RawAnswer:
        """The next answer up to its empty line."""
        line = self._file.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        status = int(line.split(b" ", 2)[1])
        headers = []
        self.answered_bytes = len(line)
        while (line := self._file.readline()) not in (b"\r\n", b""):
            self.answered_bytes += len(line)
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name.lower(), value.strip()))
        self.answered_bytes += len(line)
        return RawAnswer(status, headers, b"")

    def answer(self, method: str = "GET") -> RawAnswer:
        """The next whole answer; a body cut short fails."""
        answer = self.answer_head()
        if method == "HEAD" or answer.status in (100, 204, 304):
            return answer
        length = answer.header("content-length")
        assert length is not None, answer
        answer.body = self._file.read(int(length))
        assert len(answer.body) == int(length), "the body was cut short"
        self.answered_bytes += len(answer.body)
        return answer

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def read_to_end(self) -> bytes:
        """What comes until the server ends the connection, politely or not."""
        received = bytearray()
        try:
            while part := self._file.read1(1 << 16):
                received += part
        except ConnectionResetError:
            pass
        return bytes(received)

    def at_end(self) -> bool:
        """True once the server has ended the connection and nothing is left to read."""
        return self.read_to_end() == b""
