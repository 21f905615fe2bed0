"""Watches the daemon for its operator: a sample for the charts every two seconds, and a log of what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from api.counters import HttpCounters
from api.engine_face import EngineFace
from api.operator_log import OperatorLog
from api.operator_page.history import SAMPLE_SECONDS, History
from storage.status import EngineState, Reason


class Observer:
    """``run`` is a task of the process; ``look`` is what it does each time."""

    def __init__(self, engine: EngineFace, counters: HttpCounters, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock
        self.history = History(engine.counters.lookups, counters)
        self.log = OperatorLog(clock)
        self._seen: tuple[EngineState, Sequence[Reason]] | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_SECONDS)

    def look(self) -> None:
        self.history.take(self._clock())
        self.note_state()

    def note_state(self) -> None:
        """One line for each change of the state or its reasons."""
        found = (self._engine.state, list(self._engine.reasons))
        if found != self._seen:
            self._seen = found
            state, reasons = found
            why = ", ".join(reason.value.replace("_", " ") for reason in reasons)
            self.log.add(f"State: {state.value.replace('_', ' ')}" + (f" ({why})" if why else ""))
