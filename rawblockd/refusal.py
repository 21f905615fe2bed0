"""What a connection answers by itself, without the application: a request that is no request, or beyond its limits."""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_SECONDS = 2.0
LINGER_MAX_BYTES = 1 << 20
"""How long, and how much of what the client still sends, is thrown away behind a refusal before the connection goes."""


class Refusal:
    """The last answer of a connection. What comes from the client meanwhile is thrown away."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, status: int, title: str, code: str
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._discarded_bytes = 0
        body = problem(status, title, code)
        head = (
            f"HTTP/1.1 {status} \r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._unsent = head.encode() + body

    def send(self) -> None:
        """Send it, once, when it is its turn, and end the connection."""
        unsent, self._unsent = self._unsent, b""
        if not unsent or self._transport.is_closing():
            return
        self._transport.write(unsent)
        # Closing with bytes unread would reset the connection, and the client might never see the answer.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            # TLS has no half-closed connections; its own goodbye waits for the client's.
            self._transport.close()
        self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def discard(self, size_bytes: int) -> None:
        """So much came from the client."""
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > LINGER_MAX_BYTES:
            self._transport.abort()


def problem(status: int, title: str, code: str) -> bytes:
    """A problem document (RFC 9457) for what is refused before the application hears of it."""
    return f'{{"type":"about:blank","title":"{title}","status":{status},"code":"{code}"}}'.encode()


async def too_many_connections(_scope: Any, _receive: Any, send: Any) -> None:
    """An application for connections above the limit."""
    body = problem(503, "Too many connections.", "too_many_connections")
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
