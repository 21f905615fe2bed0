"""A server that answers as it is told, connection by connection: what a real daemon does only in trouble."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

CLOSE = b""
"""In place of an answer: the connection ends."""


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def problem(status: int, code: str, **headers: str) -> bytes:
    body = b'{"code": "%s", "detail": "why", "status": %d}' % (code.encode(), status)
    return answer(status, body, Content_Type="application/problem+json", **headers)


class ScriptedServer:
    """Gives the answers in turn, whichever connection asks; ``requests`` are what it was asked."""

    def __init__(self, *answers: bytes, keep_open: bool = True) -> None:
        self._answers = list(answers)
        self._keep_open = keep_open
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        while True:
            request = _read_request(connection)
            if request is None:
                return
            self.requests.append(request)
            said = self._answers.pop(0) if self._answers else CLOSE
            if said:
                connection.sendall(said)
            if not said or not self._keep_open:
                connection.close()
                self.closed += 1
                return


def _read_request(connection: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            more = connection.recv(65536)
        except OSError:
            return None
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        body += connection.recv(65536)
    return head
