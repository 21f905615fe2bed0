"""The application under uvicorn in a thread, over a real engine that is never started."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import uvicorn

from api.application import create_app
from api.engine_face import EngineFace
from api.health import RenderMetrics
from api.settings import ApiSettings
from storage.device.opening import open_device
from storage.engine import Engine
from storage.formatting import format_device
from storage.options import EngineOptions

MIB = 1 << 20
START_TIMEOUT_SECONDS = 60.0


class _Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
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
    app = create_app(engine, settings, render_metrics)
    server = _Server(uvicorn.Config(app, port=0, lifespan="off", ws="none", log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.listening.wait(START_TIMEOUT_SECONDS)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
