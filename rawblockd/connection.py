"""One HTTP connection: uvicorn's protocol with limits on what a client may hold (L1).

The parser itself bounds nothing: neither the length of a request's head nor the time for it, nor how long
a client may stall an upload or leave an answer unread. A sweep once a second enforces the times, so
that they cost a request no timer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.events import ENDLESS

HEAD_MAX_BYTES = 64 * 1024
"""Request line and headers together. The largest legal: 3 KiB of escaped key, 8 KiB of metadata, the usual rest."""
TARGET_MAX_BYTES = 16 * 1024
"""Path and query: 3 KiB of escaped key, and as much again for a prefix and a cursor, with room to spare."""
FIELDS_MAX = 128
"""Header fields: 64 of metadata, and the usual rest."""
EXCESS_CONNECTIONS = 64
"""Connections above max_connections that still get an answer; those beyond are closed unheard."""
SWEEP_SLACK_SECONDS = 2.0
"""Time the application has to answer a stalled client itself before its connection is cut."""

LINGER_SECONDS = 2.0
LINGER_MAX_BYTES = 1 << 20
"""How long, and how much of what the client still sends, is thrown away behind a refusal before the connection goes."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int
    body_timeout_seconds: float
    send_timeout_seconds: float


def problem(status: int, title: str, code: str) -> bytes:
    """A problem document (RFC 9457) for what is refused before the application hears of it."""
    return f'{{"type":"about:blank","title":"{title}","status":{status},"code":"{code}"}}'.encode()


class Connection(HttpToolsProtocol):
    limits: ConnectionLimits

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_open = True
        self._head_bytes = 0
        self._refused = False
        self._refusal = b""
        self._running: RequestResponseCycle | None = None
        self._discarded_bytes = 0
        self._heard_at = self.loop.time()
        self._head_began_at = self._heard_at
        self._unsent_bytes = 0
        self._sent_at = self._heard_at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        excess = len(self.connections) - self.limits.max_connections
        if excess > EXCESS_CONNECTIONS:
            transport.abort()
        elif excess > 0:
            self.app = _too_many

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn tells only the newest request; of pipelined ones that isn't the one being answered.
        self.pipeline.clear()
        if self._running is not None:
            _disconnect(self._running)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal and self._is_idle():
            self._send_refusal()

    @property
    def is_stream(self) -> bool:
        """True if the newest answer is one that goes on until somebody ends it."""
        return self._running is not None and ENDLESS in self._running.scope

    def _is_idle(self) -> bool:
        """True if no answer is due any more."""
        return not self.pipeline and (self._running is None or self._running.response_complete)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self._refused:
            self._discard(len(data))
            return
        if self._head_open:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_open and self._head_bytes > HEAD_MAX_BYTES and not self._refused:
            self._refuse(431, "The head of the request is too large.", "head_too_large")

    def on_message_begin(self) -> None:
        self._head_open = True
        self._head_began_at = self._heard_at
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_open = False
        head_bytes, self._head_bytes = self._head_bytes, 0
        if self._refused or self._refuse_large_head(head_bytes):
            return
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            # Raised inside a callback it would end as a log line with a traceback: it is the client's mistake.
            self._refuse(400, "The request line is not valid.", "bad_request")

    def on_body(self, body: bytes) -> None:
        # The parser goes on with what it has although the request was refused: there is no cycle for it.
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def _refuse_large_head(self, received_bytes: int) -> bool:
        """True if the head is complete and too large in one of its measures. Only what was received is quick to know:
        it holds some of the body too.
        """
        if len(self.url) > TARGET_MAX_BYTES:
            self._refuse(414, "The target of the request is too long.", "target_too_long")
        elif len(self.headers) > FIELDS_MAX:
            self._refuse(431, "The request has too many header fields.", "head_too_large")
        elif received_bytes > HEAD_MAX_BYTES and self._head_size_bytes() > HEAD_MAX_BYTES:
            self._refuse(431, "The head of the request is too large.", "head_too_large")
        return self._refused

    def _head_size_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "bad_request")

    def sweep(self, now: float) -> None:
        """Cut the connection if the client has stalled for too long. ``now`` is the loop's time."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0 or unsent_bytes != self._unsent_bytes:
            self._sent_at = now
        self._unsent_bytes = unsent_bytes
        unread = now - self._sent_at > self.limits.send_timeout_seconds + SWEEP_SLACK_SECONDS
        if unread or now - self._silent_since(now) > self.limits.body_timeout_seconds + SWEEP_SLACK_SECONDS:
            self.transport.abort()

    def _silent_since(self, now: float) -> float:
        """Since when the next move has been the client's; ``now`` while it isn't.

        A head counts from its beginning: dripping bytes does not prolong it. A body counts from its last piece.
        Between two requests uvicorn's own keep-alive timer runs.
        """
        if self.timeout_keep_alive_task is not None or self.flow.read_paused or self._refused:
            return now
        if self._head_open:
            return self._head_began_at
        return self._heard_at if self.cycle.more_body else now

    def _discard(self, size_bytes: int) -> None:
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > LINGER_MAX_BYTES:
            self.transport.abort()

    def _refuse(self, status: int, title: str, code: str) -> None:
        if self._refused:
            return
        body = problem(status, title, code)
        head = (
            f"HTTP/1.1 {status} \r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._refused = True
        self._refusal = head.encode() + body
        newest = self.pipeline[0][0] if self.pipeline else self._running
        if newest is not None and newest.more_body:
            # It was refused in mid-body, so its own answer is this one.
            if self.pipeline:
                self.pipeline.popleft()
            elif not newest.response_started:
                self._running = None
            _disconnect(newest)
        # Answers that are due come first: written now, this one would be taken for one of theirs.
        if self._is_idle():
            self._send_refusal()

    def _send_refusal(self) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.transport.write(self._refusal)
        self._refusal = b""
        # Closing with bytes unread would reset the connection, and the client might never see the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            # TLS has no half-closed connections; its own goodbye waits for the client's.
            self.transport.close()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Let the application know that nothing it sends for this request arrives any more."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


async def _too_many(_scope: Any, _receive: Any, send: Any) -> None:
    body = problem(503, "Too many connections.", "too_many_connections")
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def connection_class(limits: ConnectionLimits) -> type[Connection]:
    """The protocol class for a server: uvicorn makes the instances itself, so the limits go into the class."""
    return type("Connection", (Connection,), {"limits": limits})
