"""Limits on what one client may hold: heads, silence, unread answers, numbers of connections; and the drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import rawblockd.connection
import rawblockd.sweeping
from rawblockd.connection import FIELDS_MAX, HEAD_MAX_BYTES, TARGET_MAX_BYTES
from rawblockd.http_server import HttpServer
from rawblockd.listening import listen
from rawblockd.settings import Settings
from rawblockd.settings_sources import load_settings

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class EchoApplication:
    """Answers with what it got; ``/slow`` waits for ``go``; ``/big`` answers more than any socket buffers."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.events: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.begun.set()
        length = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.events.append("disconnect")
                return
            length += len(message["body"])
            if not message["more_body"]:
                break
        if scope["path"] == "/slow":
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.events.append("cancelled")
                raise
        body = b"x" * (64 << 20) if scope["path"] == "/big" else str(length).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
        self.events.append("answered")


class Served:
    def __init__(self, settings: Settings) -> None:
        self.application = EchoApplication()
        self.server = HttpServer(self.application, settings)
        self.port = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def answer(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of one request on a connection of its own, read until the server closes it."""
        reader, writer = await self.connect()
        writer.write(request)
        raw = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    loaded = load_settings({"port": 0, "drain_timeout_seconds": 0.2, **settings})
    listener = listen(loaded)
    one = Served(loaded)
    one.port = int(listener.url.rpartition(":")[2])
    serving = asyncio.create_task(one.server.serve(sockets=listener.sockets))
    try:
        yield one
    finally:
        one.server.should_exit = True
        await asyncio.wait_for(serving, 10)
        listener.close()


@pytest.fixture
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawblockd.sweeping, "SWEEP_SLACK_SECONDS", 0.0)


async def eventually(happened: Callable[[], bool]) -> None:
    """Wait until it has happened."""
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.01)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


async def test_a_request_is_answered() -> None:
    async with served() as one:
        assert await one.answer(get("/")) == (200, b"0")


@pytest.mark.parametrize("request_bytes", [b"nonsense\r\n\r\n", b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_what_is_no_http_is_answered_with_a_problem(request_bytes: bytes) -> None:
    async with served() as one:
        status, body = await one.answer(request_bytes)
        assert status == 400
        assert json.loads(body)["code"] == "bad_request"


async def test_a_head_that_never_ends_is_refused() -> None:
    async with served() as one:
        reader, writer = await one.connect()
        writer.write(b"GET / HTTP/1.1\r\n")
        for number in range(20):
            writer.write(f"x-{number}: {'a' * 8000}\r\n".encode())
        raw = await asyncio.wait_for(reader.read(), 20)
        assert raw.startswith(b"HTTP/1.1 431 ")
        assert json.loads(raw.partition(b"\r\n\r\n")[2])["code"] == "head_too_large"
        writer.close()


async def test_a_large_head_and_large_bodies_are_no_mistake() -> None:
    async with served() as one:
        filler = "a" * 60_000
        body = b"b" * 1_000_000
        rest = f"Host: x\r\nX: {filler}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        assert await one.answer(f"PUT / HTTP/1.1\r\n{rest}".encode() + body) == (200, b"1000000")


def head_with(*, target: int = 1, fields: int = 2, value: int = 1) -> bytes:
    """A whole head of these measures, and a body of ten bytes behind it."""
    lines = ["PUT /".ljust(target + 4, "a") + " HTTP/1.1", "Content-Length: 10", "Connection: close"]
    lines += [f"x-{number}: {'a' * value}" for number in range(fields - 2)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + b"0123456789"


@pytest.mark.parametrize(
    ("measures", "codes"),
    [
        ({"target": TARGET_MAX_BYTES}, set()),
        ({"target": TARGET_MAX_BYTES + 1}, {"target_too_long"}),
        ({"fields": FIELDS_MAX}, set()),
        ({"fields": FIELDS_MAX + 1}, {"head_too_large"}),
        ({"fields": 12, "value": HEAD_MAX_BYTES // 10}, {"head_too_large"}),
        # Both are true of it; which is seen first depends on how it arrives.
        ({"target": HEAD_MAX_BYTES + 100}, {"target_too_long", "head_too_large"}),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1000])
async def test_a_head_is_bounded_in_all_its_measures(
    measures: dict[str, int], codes: set[str], piece_bytes: int
) -> None:
    """In one piece and in many; it is refused once, and the application never hears of it."""
    async with served() as one:
        reader, writer = await one.connect()
        raw = head_with(**measures)
        for at in range(0, len(raw), piece_bytes):
            writer.write(raw[at : at + piece_bytes])
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert answer.count(b"HTTP/1.1 ") == 1
        status, body = int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]
        if not codes:
            assert (status, body) == (200, b"10")
        else:
            code = json.loads(body)["code"]
            assert code in codes
            assert status == {"target_too_long": 414, "head_too_large": 431}[code]
            assert one.application.events == []


async def test_a_large_head_behind_a_request_is_refused_after_its_answer() -> None:
    async with served() as one:
        reader, writer = await one.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + head_with(target=TARGET_MAX_BYTES + 1))
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 ") == 2
        assert b"target_too_long" in answer


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"])
async def test_a_silent_client_is_cut_off(sent: bytes, no_slack: None) -> None:
    async with served(body_timeout_seconds=0.5) as one:
        reader, writer = await one.connect()
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        if b"Content-Length" in sent:
            await eventually(lambda: one.application.events == ["disconnect"])


async def test_dripping_a_head_does_not_prolong_it(no_slack: None) -> None:
    async with served(body_timeout_seconds=0.5) as one:
        _, writer = await one.connect()

        async def drip() -> None:
            while True:
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.05)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(drip(), 20)
        writer.close()


async def test_a_slow_application_is_not_the_clients_fault(no_slack: None) -> None:
    async with served(body_timeout_seconds=0.3, drain_timeout_seconds=5) as one:
        waiting = asyncio.create_task(one.answer(get("/slow")))
        await asyncio.sleep(2)
        one.application.go.set()
        assert await waiting == (200, b"0")


async def test_an_answer_that_nobody_reads_is_cut_off(no_slack: None) -> None:
    async with served(send_timeout_seconds=0.5) as one:
        _, writer = await one.connect()
        writer.write(get("/big"))
        await one.application.begun.wait()
        await eventually(lambda: not one.server.server_state.connections)
        writer.close()


async def test_more_connections_than_allowed_are_told_so() -> None:
    async with served(max_connections=2) as one:
        held = [await one.connect() for _ in range(2)]
        status, body = await one.answer(get("/"))
        assert status == 503
        assert json.loads(body)["code"] == "too_many_connections"
        held[0][1].close()
        await eventually(lambda: len(one.server.server_state.connections) == 1)
        assert await one.answer(get("/")) == (200, b"0")
        held[1][1].close()


async def test_far_more_connections_are_closed_unheard() -> None:
    async with served(max_connections=1) as one:
        connections = [await one.connect() for _ in range(1 + rawblockd.connection.EXCESS_CONNECTIONS + 5)]
        closed = [asyncio.create_task(reader.read()) for reader, _ in connections]
        await eventually(lambda: sum(task.done() for task in closed) == 5)
        assert len(one.server.server_state.connections) == 1 + rawblockd.connection.EXCESS_CONNECTIONS
        for task, (_, writer) in zip(closed, connections, strict=True):
            task.cancel()
            writer.close()


async def test_the_drain_lets_requests_end() -> None:
    async with served(drain_timeout_seconds=5) as one:
        waiting = asyncio.create_task(one.answer(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        idle_reader, idle_writer = await one.connect()
        await one.application.begun.wait()
        one.server.should_exit = True
        assert await asyncio.wait_for(idle_reader.read(), 4) == b"", "an idle connection has nothing to drain"
        with pytest.raises(OSError, match="onnect"):
            await one.connect()
        one.application.go.set()
        assert await waiting == (200, b"0")
        idle_writer.close()


async def test_the_drain_ends_after_its_time() -> None:
    async with served(drain_timeout_seconds=0.2) as one:
        reader, writer = await one.connect()
        writer.write(get("/slow"))
        await one.application.begun.wait()
        one.server.should_exit = True
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
    assert one.application.events == ["cancelled"]
