"""Bare ASGI: reads of a file past the page cache, in the loop's default executor."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
FILE = os.open(os.environ["BENCH_FILE"], os.O_RDONLY | os.O_DIRECT)
BUFFERS: list[mmap.mmap] = []
"""Aligned ones that no request uses, all of the size that was asked for last."""


def read(buffer: mmap.mmap, offset: int) -> None:
    os.preadv(FILE, [buffer], offset)


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    _, size_text, key = scope["path"].split("/")
    size = int(size_text)
    buffer = BUFFERS.pop() if BUFFERS else mmap.mmap(-1, size)
    if len(buffer) != size:
        buffer = mmap.mmap(-1, size)
    await asyncio.get_running_loop().run_in_executor(None, read, buffer, int(key, 16) * size)
    body = bytes(buffer)
    BUFFERS.append(buffer)
    headers = [(b"content-length", b"%d" % size), (b"content-type", b"application/octet-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
