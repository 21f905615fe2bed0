"""A small HTTP server that keeps what is put and can misbehave, for the load generator to count."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

DEADLINE_SECONDS = 30.0


class ToyServer:
    """``/kept/KEY`` is put and got, ``/chunked/KEY`` got in chunks; ``/broken/KEY`` is answered 500."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.posted: list[bytes] = []
        self.requests = 0
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ToyServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, requests: int) -> None:
        """Until so many have arrived. Raises ``AssertionError``."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= requests, DEADLINE_SECONDS), self.requests

    def _count(self) -> None:
        with self._changed:
            self.requests += 1
            self._changed.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        toy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

            def answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                toy._count()
                kind, key = self.path.strip("/").split("/")
                value = toy.values.get(key)
                if kind == "broken":
                    self.answer(500, b"no")
                elif value is None:
                    self.answer(404, b"not here")
                elif kind == "chunked":
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for begin in range(0, len(value), 1000):
                        piece = value[begin : begin + 1000]
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    self.answer(200, value)

            def do_PUT(self) -> None:
                toy._count()
                toy.values[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(201)

            def do_POST(self) -> None:
                toy._count()
                toy.posted.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(200, b"done")

        return Handler
