"""Refusals over plain ASGI: what is answered in front of the framework."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Send

from api.headers import RawHeaders
from api.limits import LINGER_MAX_BYTES, LINGER_MAX_SECONDS
from api.problems import Problem

CLOSE = (b"connection", b"close")


async def send_problem(send: Send, problem: Problem) -> None:
    body = problem.body()
    await _send_head(send, problem, body)
    await _send_body(send, body)


async def send_problem_unread(receive: Receive, send: Send, problem: Problem, *, linger: bool) -> None:
    """Answer a request whose body was not read, and end the connection, as ``Exchange.refuse`` does."""
    body = problem.body()
    await _send_head(send, problem, body, CLOSE)
    await _send_body(send, body, more=linger)
    if linger:
        await _discard(receive)
        await _send_body(send, b"")


async def _send_head(send: Send, problem: Problem, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers: RawHeaders = [*problem.all_headers(), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})


async def _send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


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
