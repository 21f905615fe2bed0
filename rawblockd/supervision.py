"""What systemd is told while the daemon runs: status sentences, watchdog pings, more time for a long start or stop.

A ping says: the loop turns, and the device completes what it is asked. It comes from the loop, so it stops with the
loop, and it is withheld while an operation of the device has been under way for ``HANG_INTERVALS`` watchdog intervals.
A degraded engine, a paused or failing checkpoint, a device that *fails* operations are no reasons to withhold it: a
restart would not help.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from rawblockd.sd_notify import SystemdNotifier
from rawblockd.state_sentence import recovering_sentence, state_sentence
from storage.recovery.report import RecoveryProgress
from storage.status import EngineState, EngineStatus, Reason

log = logging.getLogger("rawblockd.supervision")

TICK_SECONDS = 1.0
TICKS_PER_INTERVAL = 4
"""Pings per watchdog interval: one that comes late by half an interval does no harm."""
HANG_INTERVALS = 2
"""Watchdog intervals after which an operation that has not ended counts as one that never will."""
EXTENSION_SECONDS = 300.0
"""Time asked for whenever the start has moved on; one that stands still for longer is ended by systemd."""
STOP_EXTENSIONS_MAX = 600
"""Ticks of a stop for which more time is asked: the last checkpoint is bounded, and so is the patience with it."""


class SupervisedEngine(Protocol):
    @property
    def state(self) -> EngineState: ...
    @property
    def reasons(self) -> Sequence[Reason]: ...
    @property
    def progress(self) -> RecoveryProgress: ...
    def status(self) -> EngineStatus: ...


class Pulse(Protocol):
    @property
    def waited_seconds(self) -> float: ...
    @property
    def completed(self) -> int: ...
    def beat(self) -> None: ...


class Supervision:
    def __init__(self, engine: SupervisedEngine, systemd: SystemdNotifier, pulse: Pulse) -> None:
        self._engine = engine
        self._systemd = systemd
        self._pulse = pulse
        self._progress: tuple[str, float, int] = ("", -1.0, -1)
        self._ready = False
        self._hanging = False
        self._stop_ticks = 0
        self._stopping = False
        self._tick_seconds = min(TICK_SECONDS, systemd.watchdog_seconds / TICKS_PER_INTERVAL or TICK_SECONDS)

    def ready(self) -> None:
        """The start is over: from now on systemd's watchdog runs."""
        self._ready = True
        self._tell_state()
        self._systemd.ready()

    def stopping(self) -> None:
        self._stopping = True
        self._systemd.status("stopping: draining requests, then the last checkpoint")

    async def run(self) -> None:
        """Tell systemd until cancelled."""
        while True:
            self._tick()
            await asyncio.sleep(self._tick_seconds)

    def _tick(self) -> None:
        self._look_at_device()
        if self._systemd.watchdog_seconds and not self._hanging:
            self._systemd.watchdog()
        if self._stopping:
            self._stop_ticks += 1
            if self._stop_ticks <= STOP_EXTENSIONS_MAX and not self._hanging:
                self._systemd.extend_timeout(EXTENSION_SECONDS)
        elif self._ready:
            self._tell_state()
        else:
            self._tell_progress()

    def _look_at_device(self) -> None:
        """Notice a device that has stopped to answer, and one that answers again."""
        interval = self._systemd.watchdog_seconds
        if not interval:
            return
        waited = self._pulse.waited_seconds
        if self._ready and not self._stopping:
            self._pulse.beat()
        hanging = waited > HANG_INTERVALS * interval
        if hanging and not self._hanging:
            log.error("device I/O hangs: the watchdog is not fed", extra={"fields": {"seconds": round(waited, 1)}})
        elif self._hanging and not hanging:
            log.warning("device I/O goes on: the watchdog is fed again", extra={"fields": {}})
        self._hanging = hanging

    def _tell_progress(self) -> None:
        progress = self._engine.progress
        # A step that reads for long without another percent moves on as long as its reads complete.
        now = (progress.step, progress.ratio, self._pulse.completed)
        if now != self._progress:
            self._progress = now
            self._systemd.extend_timeout(EXTENSION_SECONDS)
            self._systemd.status(recovering_sentence(progress))

    def _tell_state(self) -> None:
        if self._hanging:
            waited = int(self._pulse.waited_seconds)
            self._systemd.status(f"device I/O hangs: an operation has not ended for {waited} s")
        elif self._engine.reasons:
            self._systemd.status(state_sentence(self._engine.status()))
        else:
            self._systemd.status(self._engine.state.value.replace("_", "-"))
