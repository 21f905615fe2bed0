"""Sending answers over plain ASGI."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Send

from api.headers import RawHeaders
from api.limits import LINGER_MAX_BYTES, LINGER_MAX_SECONDS
from api.problems import Problem

CLOSE = (b"connection", b"close")

Body = bytes | bytearray | memoryview
"""A piece of an answer; the server may still hold it when ``send`` returns, so it isn't changed any more."""


async def send_head(send: Send, status: int, headers: RawHeaders) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, body: Body, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, headers: RawHeaders, body: Body = b"") -> None:
    await send_head(send, status, headers)
    await send_body(send, body)


async def send_problem(send: Send, problem: Problem) -> None:
    body = problem.body()
    await send_whole(send, problem.status, problem.all_headers(body), body)


async def send_problem_unread(receive: Receive, send: Send, problem: Problem, *, linger: bool) -> None:
    """Answer a request whose body was not read, and end the connection.

    The connection can't go on: a client that stops sending after the answer would leave the rest of its body to be
    taken for the next request. With ``linger``, what it is still sending is thrown away for a moment before the close.
    """
    body = problem.body()
    await send_head(send, problem.status, [*problem.all_headers(body), CLOSE])
    await send_body(send, body, more=linger)
    if linger:
        await _discard(receive)
        await send_body(send, b"")


async def _discard(receive: Receive) -> None:
    """Throw away the body until it ends, the client leaves, or the limits of lingering are reached."""
    left_bytes = LINGER_MAX_BYTES
    try:
        async with asyncio.timeout(LINGER_MAX_SECONDS):
            while left_bytes > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left_bytes -= len(message.get("body", b""))
    except TimeoutError:
        return
