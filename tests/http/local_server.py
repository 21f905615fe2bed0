"""The HTTP server in a thread, over a real engine that is never started."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2

from api.application import Application, create_app
from api.engine_face import EngineFace
from api.health import RenderMetrics
from api.settings import ApiSettings
from rawblockd.http_server import HttpServer
from rawblockd.settings import Settings
from storage.device.opening import open_device
from storage.engine import Engine
from storage.formatting import format_device
from storage.options import EngineOptions

MIB = 1 << 20
START_TIMEOUT_SECONDS = 60.0


class _Server(HttpServer):
    """Tells when it listens."""

    def __init__(self, application: Application) -> None:
        super().__init__(application, Settings(), value_path=application.value_path)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@contextlib.contextmanager
def server_over_unstarted_engine(
    folder: Path, settings: ApiSettings, render_metrics: RenderMetrics
) -> Iterator[httpx2.Client]:
    """A client of a server whose engine stays in ``starting``."""
    path = str(folder / "cache.img")
    format_device(path, size_bytes=64 * MIB)
    device = open_device(path, write=True)
    try:
        engine = Engine(device, EngineOptions(buffer_bytes=16 * MIB))
        with (
            server_over(engine, settings, render_metrics) as url,
            httpx2.Client(base_url=url, timeout=60) as client,
        ):
            yield client
    finally:
        device.close()


@contextlib.contextmanager
def server_over(engine: EngineFace, settings: ApiSettings, render_metrics: RenderMetrics) -> Iterator[str]:
    """The address of a server over any engine."""
    server = _Server(create_app(engine, settings, render_metrics))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert server.listening.wait(START_TIMEOUT_SECONDS)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
