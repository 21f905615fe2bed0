"""Requests over real connections within one loop: what arrives, and when the client leaves, is the test's to say."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from api.application import create_app
from api.engine_face import EngineFace
from api.settings import ApiSettings
from rawblockd.connection import ConnectionLimits, connection_class

PATIENCE_SECONDS = 60.0


@dataclass
class LocalAnswer:
    """``status`` 0: there was none. ``complete``: all of it came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    pieces: int = 0

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body)
        return str(json.loads(self.body)["code"])

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data
        self.pieces += 1

    def on_message_complete(self) -> None:
        self.complete = True


class LocalClient:
    """A connection for each request, to a server of its own over ``engine``."""

    def __init__(self, engine: EngineFace, settings: ApiSettings | None = None) -> None:
        settings = settings or ApiSettings()
        app = create_app(engine, settings, lambda _: (b"", "text/plain"))
        limits = ConnectionLimits(100, settings.body_timeout_seconds, settings.send_timeout_seconds, 75.0)
        self._class = connection_class(limits, app.value_path, None)
        self._config = Config(app, ws="none", lifespan="off", log_config=None, access_log=False, http=self._class)
        self._config.load()
        self._state = ServerState()

    async def ask(
        self,
        method: str,
        target: str,
        pieces: bytes | Sequence[bytes] = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        leaves: bool = False,
        goes_behind: int | None = None,
    ) -> LocalAnswer:
        """One request, its body in the pieces given. Returns when the server is through with it.

        With ``leaves`` the client is gone behind the last piece; with ``goes_behind`` once it has got so many pieces of
        the answer.
        """
        reader, writer = await self.connect()
        answer = LocalAnswer()
        async with asyncio.timeout(PATIENCE_SECONDS):
            sending = asyncio.create_task(_send(writer, method, target, pieces, headers, ends=not leaves))
            if leaves:
                await sending
            else:
                await _receive(reader, answer, goes_behind)
                sending.cancel()
            writer.transport.abort()
            while self._state.connections or self._class.unended:
                await asyncio.sleep(0)
        return answer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection; the client's end of it."""
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self._class(self._config, self._state, {}, loop), theirs)
        return await asyncio.open_connection(sock=ours)

    async def batch(self, verb: str, body: bytes | Sequence[bytes], **more: Any) -> LocalAnswer:
        """A batch call to namespace ``n`` in msgpack."""
        return await self.ask("POST", f"/v1/kv/n:{verb}", body, [("Content-Type", "application/msgpack")], **more)


async def _send(
    writer: asyncio.StreamWriter,
    method: str,
    target: str,
    pieces: bytes | Sequence[bytes],
    headers: Iterable[tuple[str, str]],
    *,
    ends: bool,
) -> None:
    parts = [pieces] if isinstance(pieces, bytes) else list(pieces)
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers)]
    has_body = any(parts) or not ends
    if has_body:
        lines.append("Transfer-Encoding: chunked")
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    for part in filter(None, parts):
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await writer.drain()
    if has_body and ends:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _receive(reader: asyncio.StreamReader, answer: LocalAnswer, goes_behind: int | None) -> None:
    parser = httptools.HttpResponseParser(answer)
    while not answer.complete and (goes_behind is None or answer.pieces < goes_behind):
        data = await reader.read(1 << 16)
        if not data:
            return
        parser.feed_data(data)
        if answer.status == 0:
            answer.status = parser.get_status_code()
