"""An answer that is sent as it comes into being, to a client that may take its time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from api.answers import send_body, send_head, send_whole
from api.headers import RawHeaders
from api.limits import BATCH_SEND_BYTES, PROMPT_SEND_SECONDS, SEND_MAX_BYTES
from api.value_request import ClientGone, ValueRequest


class AnswerStream:
    """Collects bytes in ``pending``; whoever writes there sends once ``is_full``.

    ``send_promptly`` comes back after a moment, sent or not, so that a slow client's wait can be spent without the
    buffers of what was read ahead for it. All methods raise ClientGone once the client has left or was cut off.
    """

    def __init__(self, request: ValueRequest, headers: RawHeaders) -> None:
        self._request = request
        self._headers = headers
        self.pending = bytearray()
        self._sending: asyncio.Task[None] | None = None
        self._departure: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= BATCH_SEND_BYTES

    async def send_promptly(self) -> bool:
        """Send what is pending. False if the client hasn't taken it yet: then ``sent`` must be awaited."""
        data, self.pending = self.pending, bytearray()
        if self._departure is None:
            self._departure = asyncio.create_task(_departure(self._request.receive))
        self._sending = asyncio.create_task(self._send(data, more=True))
        done, _ = await asyncio.wait({self._sending}, timeout=PROMPT_SEND_SECONDS)
        if done:
            await self.sent()
        return bool(done)

    async def sent(self) -> None:
        """Wait until the client has taken what ``send_promptly`` began to send."""
        if self._sending is not None:
            await self._sending
            self._sending = None

    async def end(self) -> None:
        """Send the rest and end the answer."""
        if self._request.answered:
            await self._send(self.pending, more=False)
            return
        self._request.answered = True
        length = (b"content-length", b"%d" % len(self.pending))
        await send_whole(self._request.send, 200, [*self._headers, length], self.pending)

    def close(self) -> None:
        """Leave nothing running. Idempotent."""
        for task in (self._sending, self._departure):
            if task is not None and not task.cancel() and not task.cancelled():
                task.exception()  # it has ended by itself, and nobody waits for it any more

    async def _send(self, data: bytearray, *, more: bool) -> None:
        request = self._request
        if not request.answered:
            request.answered = True
            await send_head(request.send, 200, self._headers)
        view = memoryview(data)
        for at in range(0, max(len(view), 1), SEND_MAX_BYTES):
            # A connection that is gone takes everything at once: without a pause here, its end would never be heard of.
            await asyncio.sleep(0)
            if self._departure is not None and self._departure.done():
                raise ClientGone()
            part = view[at : at + SEND_MAX_BYTES]
            try:
                async with asyncio.timeout(request.settings.send_timeout_seconds):
                    await send_body(request.send, part, more=more or at + len(part) < len(view))
            except TimeoutError:
                raise ClientGone() from None


async def _departure(receive: Receive) -> None:
    """Return when the client has left: servers swallow what is sent afterwards without a word."""
    while (await receive())["type"] != "http.disconnect":
        pass
