"""Bodies on their way straight to a buffer when memory runs out, and when the server is to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from api.application import create_app
from api.settings import ApiSettings
from rawblockd.http_server import HttpServer
from rawblockd.settings_sources import load_settings
from storage.buffers import Buffer
from storage.engine import Engine
from tests.http.local_client import LocalClient
from tests.http.raw_client import head
from tests.support.engines import OPTIONS, Rig, check_accounts, formatted_image, get, payload_of, short_journal

PATH = "/v1/kv/n/key"


async def until(condition: Callable[[], bool]) -> None:
    """Poll: sockets and the server's ticks take time, not turns of the loop."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def running(wait_timeout_seconds: float = 60.0) -> AsyncIterator[Rig]:
    with short_journal():
        options = replace(OPTIONS, wait_timeout_seconds=wait_timeout_seconds)
        rig = Rig(formatted_image(slabs=8), options=options)
        await rig.start()
        yield rig
        await until(lambda: not rig.engine.status().buffers.used_bytes)
        check_accounts(rig.engine)
        await rig.stop()


def put_of(body: bytes) -> bytes:
    return head("PUT", PATH, [("Content-Length", str(len(body)))])


def rest_of_memory(engine: Engine) -> list[Buffer]:
    """All that is left of the arena."""
    arena = engine._arena
    held: list[Buffer] = []
    for size_bytes in (2 << 20, 1 << 20, 1 << 18, 1 << 16, 1 << 14, 1 << 12):
        while (buffer := arena.try_acquire(size_bytes)) is not None:
            held.append(buffer)
    return held


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(60):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(lines[0].split()[1]), fields, await reader.readexactly(int(fields.get("content-length", "0")))


async def half_sent(rig: Rig, client: LocalClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A put of the largest value, half of which has arrived; and the value."""
    body = payload_of(1, rig.engine.status().capacity.max_value_bytes)
    reader, writer = await client.connect()
    writer.write(put_of(body) + body[: len(body) // 2])
    await writer.drain()
    await until(lambda: rig.engine.status().buffers.used_bytes > 0)
    return reader, writer, body


async def test_l1_a_body_waits_in_the_socket_until_there_is_memory_for_it() -> None:
    async with running() as rig:
        client = LocalClient(rig.engine)
        reader, writer, body = await half_sent(rig, client)
        held = rest_of_memory(rig.engine)
        assert held
        writer.write(body[len(body) // 2 :])
        await until(lambda: rig.engine._arena.waiting > 0)
        assert not reader._buffer  # type: ignore[attr-defined]
        for buffer in held:
            buffer.release()
        assert (await answer_of(reader))[0] == 201
        writer.close()
        assert await get(rig.engine, b"key") == body


async def test_a_body_that_gets_no_memory_is_refused_and_leaves_nothing() -> None:
    async with running(wait_timeout_seconds=0.05) as rig:
        client = LocalClient(rig.engine)
        reader, writer, body = await half_sent(rig, client)
        held = rest_of_memory(rig.engine)
        writer.write(body[len(body) // 2 :])
        status, fields, document = await answer_of(reader)
        assert (status, json.loads(document)["code"], fields["connection"]) == (503, "busy", "close")
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        for buffer in held:
            buffer.release()
        writer.close()
        assert (await client.ask("GET", PATH)).status == 404


@contextlib.asynccontextmanager
async def served(rig: Rig, **settings: float) -> AsyncIterator[tuple[HttpServer, int]]:
    """A whole server, and its port. Its end is the test's to begin, and awaited."""
    app = create_app(rig.engine, ApiSettings(), lambda _: (b"", "text/plain"))
    server = HttpServer(app, load_settings(dict(settings)), value_path=app.value_path)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await until(lambda: server.started)
    yield server, listening.getsockname()[1]
    async with asyncio.timeout(60):
        await serving


@pytest.mark.parametrize("ends", [True, False])
async def test_a_body_under_way_has_the_drain_time_to_end(ends: bool) -> None:
    """One that ends in time is stored and answered; of one that doesn't, nothing is left."""
    async with running() as rig:
        drain_seconds = 60.0 if ends else 0.05
        async with served(rig, drain_timeout_seconds=drain_seconds) as (server, port):
            body = payload_of(1, rig.engine.status().capacity.max_value_bytes)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(put_of(body) + body[: len(body) // 2])
            await until(lambda: rig.engine.status().buffers.used_bytes > 0)
            server.should_exit = True
            if ends:
                await until(lambda: not server.servers or not server.servers[0].is_serving())
                writer.write(body[len(body) // 2 :])
                status, fields, _ = await answer_of(reader)
                assert (status, fields["connection"]) == (201, "close")
            async with asyncio.timeout(60):
                assert await _to_end(reader) == b""
            writer.close()
        if ends:
            assert await get(rig.engine, b"key") == body
        else:
            assert not rig.engine.status().capacity.slots.in_flight


async def _to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
