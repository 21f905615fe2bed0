"""The daemon's life in order: listen, make or open the device, serve, recover, ready, drain, stop.

::

    bind → (create) → open the device → HTTP answers → engine.start → READY … SIGTERM → drain → engine.stop → exit 0

HTTP answers while the engine recovers, so that probes and operators see the progress. Before the engine is ready
nothing was promised to anybody: a stop leaves at once, even in the middle of formatting or recovery, which
leave a device that can be formatted or recovered again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
import uvloop

from api.application import create_app
from api.counters import HttpCounters
from api.settings import ApiSettings
from metrics.collector import MetricsPage
from metrics.sources import MetricsSources
from rawblockd.device_preparation import prepare_device
from rawblockd.http_server import HttpServer
from rawblockd.listening import Listener, listen
from rawblockd.logs import set_log_level
from rawblockd.open_files import allow_open_files
from rawblockd.sd_notify import SystemdNotifier
from rawblockd.settings import Settings
from rawblockd.signals import StopRequest, leave_at_once
from rawblockd.supervision import Supervision
from storage.device.interface import BlockDevice
from storage.engine import Engine
from storage.errors import RawblockdError, SettingsInvalid

log = structlog.stdlib.get_logger("rawblockd")


def run_daemon(settings: Settings, reload_settings: Callable[[], Settings]) -> int:
    """Serve until a signal; the exit code. ``reload_settings`` reads the sources again, for SIGHUP."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Daemon(settings, reload_settings).run())


def api_settings(settings: Settings) -> ApiSettings:
    return ApiSettings(
        default_durability=settings.default_durability,
        body_timeout_seconds=settings.body_timeout_seconds,
        send_timeout_seconds=settings.send_timeout_seconds,
    )


class Daemon:
    def __init__(self, settings: Settings, reload_settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._reload_settings = reload_settings
        self._systemd = SystemdNotifier()
        self._stop = StopRequest()
        self._began = time.monotonic()
        self._ready = False

    async def run(self) -> int:
        self._stop.install(asyncio.get_running_loop(), self._reload)
        allow_open_files(self._settings.max_connections)
        try:
            listener = listen(self._settings)
            try:
                await self._serve(listener)
            finally:
                listener.close()
        except RawblockdError as error:
            # One line, no traceback: these are answers to the operator, with the code that the table documents.
            fields = {"code": error.code, "detail": error.detail, "exit_code": error.exit_code}
            log.error(error.sentence, **{**error.fields, **fields})
            self._systemd.status(f"Failed: {error.sentence} {error.detail}")
            return error.exit_code
        finally:
            self._systemd.close()
        log.info("stopped")
        return 0

    async def _serve(self, listener: Listener) -> None:
        self._systemd.status("Opening the device")
        preparing = asyncio.create_task(asyncio.to_thread(prepare_device, self._settings))
        await self._or_leave(preparing, listener)
        device = preparing.result()
        try:
            await self._serve_device(listener, device)
        finally:
            # Also where the engine's own stop was never reached: a refused recovery, a write that failed at the start.
            await device.stop()
            device.close()

    async def _serve_device(self, listener: Listener, device: BlockDevice) -> None:
        engine = Engine(device, self._settings.engine_options())
        http_counters = HttpCounters()
        page = MetricsPage(MetricsSources(engine, device.counters, http_counters))
        app = create_app(engine, api_settings(self._settings), page.render, http_counters)
        server = HttpServer(app, self._settings)
        serving = asyncio.create_task(server.serve(sockets=[listener.socket]))
        supervision = Supervision(engine, self._systemd)
        supervising = asyncio.create_task(supervision.run())
        log.info("listening", url=listener.url, device=device.path)
        try:
            try:
                starting = asyncio.create_task(engine.start())
                await self._or_leave(starting, listener)
                starting.result()
                status = engine.status()
                log.info(
                    "ready",
                    state=status.state.value,
                    entries=status.capacity.slots.live,
                    seconds=round(time.monotonic() - self._began, 3),
                )
                self._ready = True
                supervision.ready()
                await self._until_stop(serving)
                self._systemd.stopping()
                supervision.stopping()
            finally:
                server.should_exit = True
                await serving
            log.info("requests drained")
            await engine.stop(checkpoint=True)
        finally:
            supervising.cancel()
            await asyncio.wait([supervising])

    async def _until_stop(self, serving: asyncio.Task[None]) -> None:
        """Wait for the signal. A server that ends without one takes the daemon down with its error."""
        asked = asyncio.create_task(self._stop.asked.wait())
        await asyncio.wait([asked, serving], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()

    async def _or_leave(self, work: asyncio.Task[object], listener: Listener) -> None:
        """Wait until ``work`` has ended, or leave the process if a stop is asked for before."""
        asked = asyncio.create_task(self._stop.asked.wait())
        await asyncio.wait([asked, work], return_when=asyncio.FIRST_COMPLETED)
        if self._stop.asked.is_set():
            # Its thread can't be cancelled, and nothing needs saving.
            self._systemd.stopping()
            listener.close()
            log.info("stopped before it was ready")
            leave_at_once(0)
        asked.cancel()

    def _reload(self) -> None:
        """SIGHUP: read the sources again and take the log level from them. What is wrong changes nothing."""
        if self._ready:
            self._systemd.reloading()
        try:
            level = self._reload_settings().log_level
        except SettingsInvalid as error:
            log.warning("settings not reloaded", code=error.code, detail=error.detail)
        else:
            set_log_level(level)
            log.info("settings reloaded", log_level=level.value)
        finally:
            # READY before the engine is would start the units that wait for us.
            if self._ready:
                self._systemd.ready()
