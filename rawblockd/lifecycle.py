"""The daemon's life in order: listen, make or open the device, serve, recover, ready, drain, stop.

::

    bind → (create) → open the device → HTTP answers → engine.start → READY … SIGTERM → drain → engine.stop → exit 0

HTTP answers while the engine recovers, so that probes and operators see the progress. Before the engine is ready
nothing was promised to anybody: a stop leaves at once, even in the middle of formatting or recovery, which
leave a device that can be formatted or recovered again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import time
from collections.abc import Callable

import structlog
import uvloop

from api.application import create_app
from api.counters import HttpCounters
from api.doors.selection import parse_doors
from api.settings import ApiSettings
from metrics.collector import MetricsPage
from metrics.sources import MetricsSources
from rawblockd.device_preparation import prepare_device
from rawblockd.entrance import Entrance
from rawblockd.logs import set_log_level
from rawblockd.open_files import allow_open_files
from rawblockd.sd_notify import SystemdNotifier
from rawblockd.settings import Settings
from rawblockd.signals import StopRequest, leave_at_once
from rawblockd.socket_activation import inherited_sockets
from rawblockd.supervision import Supervision
from storage.buffers import BufferArena
from storage.device.interface import BlockDevice
from storage.device.pulse import DevicePulse
from storage.engine import Engine
from storage.errors import RawblockdError, SettingsInvalid

log = structlog.stdlib.get_logger("rawblockd")


def run_daemon(
    settings: Settings, reload_settings: Callable[[], Settings], make_arena: Callable[[], BufferArena] | None = None
) -> int:
    """Serve until a signal; the exit code. ``reload_settings`` reads the sources again, for SIGHUP.

    ``make_arena`` gives the engine's memory for I/O where somebody is making it already.
    """
    # The watchdog ends a daemon that hangs with SIGABRT: where it hung is then in the log, for every thread.
    faulthandler.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Daemon(settings, reload_settings, make_arena).run())


def api_settings(settings: Settings) -> ApiSettings:
    return ApiSettings(
        default_durability=settings.default_durability,
        body_timeout_seconds=settings.body_timeout_seconds,
        send_timeout_seconds=settings.send_timeout_seconds,
        doors=parse_doors(settings.doors) if settings.doors else (),
    )


class Daemon:
    def __init__(
        self,
        settings: Settings,
        reload_settings: Callable[[], Settings],
        make_arena: Callable[[], BufferArena] | None = None,
    ) -> None:
        self._settings = settings
        self._reload_settings = reload_settings
        self._make_arena = make_arena
        self._systemd = SystemdNotifier()
        self._stop = StopRequest()
        self._began = time.monotonic()
        self._ready = False
        self._entrance: Entrance | None = None

    async def run(self) -> int:
        self._stop.install(asyncio.get_running_loop(), self._reload)
        try:
            entrance = self._entrance = Entrance(self._settings, inherited_sockets())
            try:
                allow_open_files(entrance.connections_max)
                await self._serve(entrance)
            finally:
                entrance.close()
        except RawblockdError as error:
            # One line, no traceback: these are answers to the operator, with the code that the table documents.
            fields = {"code": error.code, "detail": error.detail, "exit_code": error.exit_code}
            log.error(error.sentence, **{**error.fields, **fields})
            self._systemd.status(f"failed: {error.sentence} {error.detail}".rstrip())
            return error.exit_code
        finally:
            self._systemd.close()
        log.info("stopped")
        return 0

    async def _serve(self, entrance: Entrance) -> None:
        self._systemd.status("opening the device")
        preparing = asyncio.create_task(asyncio.to_thread(prepare_device, self._settings))
        await self._or_leave(preparing, entrance)
        device = preparing.result()
        try:
            await self._serve_device(entrance, device)
        finally:
            # Also where the engine's own stop was never reached: a refused recovery, a write that failed at the start.
            await device.stop()
            device.close()

    async def _serve_device(self, entrance: Entrance, device: BlockDevice) -> None:
        engine = Engine(device, self._settings.engine_options())
        if self._make_arena is not None:
            engine.make_arena = self._make_arena
        http_counters = HttpCounters()
        page = MetricsPage(MetricsSources(engine, device.counters, http_counters))
        app = create_app(engine, api_settings(self._settings), page.render, http_counters, entrance.admission)
        # What is there now is never looked at again, garbage or not: there is little of it.
        gc.freeze()
        gc.enable()
        serving = asyncio.create_task(entrance.serve(app))
        supervision = Supervision(engine, self._systemd, DevicePulse(device))
        supervising = asyncio.create_task(supervision.run())
        observing = asyncio.create_task(app.observer.run())
        log.info("listening", **entrance.urls, device=device.path)
        try:
            try:
                starting = asyncio.create_task(engine.start())
                await self._or_leave(starting, entrance)
                starting.result()
                # What the start has made stays. A full collection looks from now on at what came since: 1 ms, not 30.
                gc.collect()
                gc.freeze()
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
                engine.events.close()  # who follows the events would not end by itself
                entrance.finish()
                await serving
            log.info("requests drained")
            await engine.stop(checkpoint=True)
        finally:
            supervising.cancel()
            observing.cancel()
            await asyncio.wait([supervising, observing])

    async def _until_stop(self, serving: asyncio.Task[None]) -> None:
        """Wait for the signal. A server that ends without one takes the daemon down with its error."""
        asked = asyncio.create_task(self._stop.asked.wait())
        await asyncio.wait([asked, serving], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()

    async def _or_leave(self, work: asyncio.Task[object], entrance: Entrance) -> None:
        """Wait until ``work`` has ended, or leave the process if a stop is asked for before."""
        asked = asyncio.create_task(self._stop.asked.wait())
        await asyncio.wait([asked, work], return_when=asyncio.FIRST_COMPLETED)
        if self._stop.asked.is_set():
            # Its thread can't be cancelled, and nothing needs saving.
            self._systemd.stopping()
            entrance.close()
            log.info("stopped before it was ready")
            leave_at_once(0)
        asked.cancel()

    def _reload(self) -> None:
        """SIGHUP: read the sources again and take the log level from them; read tokens and certificate again.

        What is wrong changes nothing.
        """
        if self._ready:
            self._systemd.reloading()
        try:
            self._reload_log_level()
            if self._entrance is not None:
                self._entrance.reload()
        finally:
            # READY before the engine is would start the units that wait for us.
            if self._ready:
                self._systemd.ready()

    def _reload_log_level(self) -> None:
        try:
            level = self._reload_settings().log_level
        except SettingsInvalid as error:
            log.warning("settings not reloaded", code=error.code, detail=error.detail)
        else:
            set_log_level(level)
            log.info("settings reloaded", log_level=level.value)
