"""The HTTP server: uvicorn, driven by the lifecycle instead of by its own signals.

uvicorn raises a caught signal again when it ends, so that code behind it never runs; here the signals
belong to the lifecycle, and the engine is stopped after the last request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Generator
from typing import Any

import structlog
import uvicorn

from api.access.permissions import Room
from api.value_path import ValuePath
from rawblockd.connection import Connection, ConnectionLimits, connection_class
from rawblockd.exchange import ConnectionExchange
from rawblockd.settings import Settings
from rawblockd.sweeping import sweep
from rawblockd.tls import TlsAcceptor

log = structlog.stdlib.get_logger("rawblockd.http")

POLL_SECONDS = 0.02
STREAM_GRACE_SECONDS = 1.0
RELEASE_SECONDS = 5.0
TICKS_PER_SWEEP = 10  # uvicorn ticks every 0.1 s


class HttpServer(uvicorn.Server):
    """Serves the sockets of one listener. With ``tls`` those of TCP speak TLS; Unix sockets never do.

    What leads to ``value_path`` goes there, with the listener's ``room``; everything else to ``application``.

    Each server counts its own connections: what clients do at one leaves room at the operators' own.
    """

    def __init__(
        self,
        application: Any,
        settings: Settings,
        *,
        value_path: ValuePath | None = None,
        room: Room | None = None,
        max_connections: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        limits = ConnectionLimits(
            max_connections=settings.max_connections if max_connections is None else max_connections,
            body_timeout_seconds=settings.body_timeout_seconds,
            send_timeout_seconds=settings.send_timeout_seconds,
            keep_alive_seconds=settings.keep_alive_seconds,
        )
        self._connection_class = connection_class(limits, value_path, room)
        super().__init__(
            uvicorn.Config(
                application,
                http=self._connection_class,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )
        self._drain_timeout_seconds = settings.drain_timeout_seconds
        self._handshake_timeout_seconds = settings.body_timeout_seconds
        self._tls = tls
        self._acceptors: list[TlsAcceptor] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    sweep(connection, now)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        given = sockets or []
        speaking_tls = [one for one in given if self._tls is not None and one.family != socket.AF_UNIX]
        await super().startup([one for one in given if one not in speaking_tls])
        for one in speaking_tls:
            assert self._tls is not None
            acceptor = TlsAcceptor(one, self._make_connection, self._tls, self._handshake_timeout_seconds)
            acceptor.start()
            self._acceptors.append(acceptor)

    def _make_connection(self) -> asyncio.Protocol:
        return self._connection_class(self.config, self.server_state, self.lifespan.state)

    def exchange_tls(self, context: ssl.SSLContext) -> None:
        """Use another certificate from the next handshake on. Does nothing for a server without TLS."""
        if self._tls is not None:
            self._tls = context
        for acceptor in self._acceptors:
            acceptor.context = context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let requests end for the drain time, then cut off what is left."""
        for server in self.servers:
            server.close()
        for acceptor in self._acceptors:
            acceptor.stop()
        for listening in sockets or ():
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        began = time.monotonic()
        deadline = began + self._drain_timeout_seconds
        # uvicorn has no event for "the last connection has gone".
        while self._busy() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            if time.monotonic() - began > STREAM_GRACE_SECONDS:
                self._cut_streams()
        tasks = self._tasks()
        if tasks:
            log.warning("requests cut off after the drain time", requests=len(tasks))
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        # The cancelled requests release their slots and buffers before the engine stops.
        await self._until_released(time.monotonic() + RELEASE_SECONDS)

    async def _until_released(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if not self._tasks():
                return
            await asyncio.sleep(POLL_SECONDS)

    def _tasks(self) -> list[asyncio.Task[None] | ConnectionExchange]:
        return [*self.server_state.tasks, *self._connection_class.unended]

    def _cut_streams(self) -> None:
        """Streams of events have ended; whoever has not read the end by now missed nothing that it can't ask for."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and connection.is_stream:
                connection.transport.abort()

    def _busy(self) -> bool:
        return bool(self._tasks() or self.server_state.connections)
