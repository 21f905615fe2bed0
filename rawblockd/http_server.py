"""The HTTP server: uvicorn, driven by the lifecycle instead of by its own signals.

uvicorn raises a caught signal again when it ends, so that code behind it never runs; here the signals
belong to the lifecycle, and the engine is stopped after the last request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator
from typing import Any

import structlog
import uvicorn

from rawblockd.connection import Connection, ConnectionLimits, connection_class
from rawblockd.settings import Settings

log = structlog.stdlib.get_logger("rawblockd.http")

POLL_SECONDS = 0.02
TICKS_PER_SWEEP = 10  # uvicorn ticks every 0.1 s


class HttpServer(uvicorn.Server):
    def __init__(self, app: Any, settings: Settings) -> None:
        limits = ConnectionLimits(
            max_connections=settings.max_connections,
            body_timeout_seconds=settings.body_timeout_seconds,
            send_timeout_seconds=settings.send_timeout_seconds,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(limits),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_seconds,
            )
        )
        self._drain_timeout_seconds = settings.drain_timeout_seconds

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.sweep(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let requests end for the drain time, then cut off what is left."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        deadline = time.monotonic() + self._drain_timeout_seconds
        # uvicorn has no event for "the last connection has gone".
        while self._busy() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        tasks = list(self.server_state.tasks)
        if tasks:
            log.warning("requests cut off after the drain time", requests=len(tasks))
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        # The cancelled requests release their slots and buffers before the engine stops.
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)

    def _busy(self) -> bool:
        return bool(self.server_state.tasks or self.server_state.connections)
