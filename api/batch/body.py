"""The body of a batch request as it comes, from a client that keeps up its pace."""

from __future__ import annotations

import asyncio

from api.batch.memory import MemoryShare
from api.limits import TRICKLE_BYTES
from api.value_request import BodyTimeout, ClientGone, ValueRequest
from storage.errors import BatchTooLarge


class BodyStream:
    """Hands out the pieces of a body. A client has the body timeout for each ``TRICKLE_BYTES``, as with a put."""

    __slots__ = ("_deadline", "_fresh_bytes", "_handed_at", "_loop", "_request", "ended")

    def __init__(self, request: ValueRequest) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._handed_at = self._loop.time()
        self._deadline = self._handed_at + request.settings.body_timeout_seconds
        self._fresh_bytes = 0
        self.ended = not request.body_unread

    async def next(self) -> bytes:
        """The next piece, empty only at the end of the body. Raises BodyTimeout, ClientGone."""
        # What happened since the last piece (a device that writes, memory that is waited for) is not the client's time.
        self._deadline += self._loop.time() - self._handed_at
        data = b""
        while not (data or self.ended):
            data = await self._receive()
        self._handed_at = self._loop.time()
        self._fresh_bytes += len(data)
        if self._fresh_bytes >= TRICKLE_BYTES:
            self._fresh_bytes = 0
            self._deadline = self._handed_at + self._request.settings.body_timeout_seconds
        return data

    async def _receive(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._request.receive()
        except TimeoutError:
            raise BodyTimeout() from None
        if message["type"] != "http.request":
            raise ClientGone()
        if not message.get("more_body", False):
            self.ended = True
            self._request.body_unread = False
        data = message.get("body", b"")
        assert isinstance(data, bytes)
        return data


async def read_whole(request: ValueRequest, limit_bytes: int, share: MemoryShare) -> bytes:
    """The whole body, at most ``limit_bytes``. Raises BatchTooLarge, Busy, BodyTimeout, ClientGone."""
    check_declared(request, limit_bytes)
    stream = BodyStream(request)
    parts: list[bytes] = []
    size_bytes = 0
    while data := await stream.next():
        size_bytes += len(data)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        share.take(len(data))
        parts.append(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_declared(request: ValueRequest, limit_bytes: int) -> None:
    """Refuse a body that is too large by its own account before the first byte of it. Raises BatchTooLarge."""
    declared = request.fields.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > 20 or int(declared) > limit_bytes:
        raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"this body may have {limit_bytes} bytes", max_body_bytes=limit_bytes)
