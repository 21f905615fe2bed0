"""A bare ASGI application that returns a constant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
BODY = bytes(range(256)) * 16
START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-length", b"%d" % len(BODY)), (b"content-type", b"application/octet-stream")],
}
ANSWER: Message = {"type": "http.response.body", "body": BODY}


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] == "http":
        await send(START)
        await send(ANSWER)
