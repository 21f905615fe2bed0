"""What systemd is told while the daemon runs: status sentences, watchdog pings, more time for a long recovery.

The pings come from the loop, so they stop exactly when the loop does. A degraded engine or a
paused checkpoint is no reason to withhold them: a restart would not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from rawblockd.sd_notify import SystemdNotifier
from storage.recovery.report import RecoveryProgress
from storage.status import EngineState, Reason

TICK_SECONDS = 1.0
EXTENSION_SECONDS = 120.0
"""Time asked for whenever the recovery has moved on; one that stands still for longer is ended by systemd."""
STOP_EXTENSIONS_MAX = 600
"""Ticks of a stop for which more time is asked: the last checkpoint is bounded, and so is the patience with it."""


class SupervisedEngine(Protocol):
    @property
    def state(self) -> EngineState: ...
    @property
    def reasons(self) -> Sequence[Reason]: ...
    @property
    def progress(self) -> RecoveryProgress: ...


class Supervision:
    def __init__(self, engine: SupervisedEngine, systemd: SystemdNotifier) -> None:
        self._engine = engine
        self._systemd = systemd
        self._progress: tuple[str, float] = ("", -1.0)
        self._ready = False
        self._stop_ticks = 0
        self._stopping = False
        self._tick_seconds = min(TICK_SECONDS, systemd.watchdog_seconds / 2 or TICK_SECONDS)

    def ready(self) -> None:
        self._ready = True
        self._tell_state()
        self._systemd.ready()

    def stopping(self) -> None:
        self._stopping = True
        self._systemd.status("Stopping: draining requests, then the last checkpoint")

    async def run(self) -> None:
        """Tell systemd until cancelled."""
        while True:
            self._tick()
            await asyncio.sleep(self._tick_seconds)

    def _tick(self) -> None:
        if self._systemd.watchdog_seconds:
            self._systemd.watchdog()
        if self._stopping:
            self._stop_ticks += 1
            if self._stop_ticks <= STOP_EXTENSIONS_MAX:
                self._systemd.extend_timeout(EXTENSION_SECONDS)
        elif self._ready:
            self._tell_state()
        else:
            self._tell_progress()

    def _tell_progress(self) -> None:
        progress = self._engine.progress
        now = (progress.step, progress.ratio)
        if now != self._progress:
            self._progress = now
            self._systemd.extend_timeout(EXTENSION_SECONDS)
            self._systemd.status(f"Recovering: {progress.step}, {progress.ratio:.0%}")

    def _tell_state(self) -> None:
        state = self._engine.state
        sentence = state.value.replace("_", " ").capitalize()
        if state in (EngineState.DEGRADED, EngineState.READ_ONLY):
            sentence += ": " + ", ".join(reason.value for reason in self._engine.reasons)
        self._systemd.status(sentence)
