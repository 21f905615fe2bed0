"""The real daemon, but for one thing: it kills itself at a named point of the engine.

``STOP_AT=checkpoint_header:2 python -m tests.crash.killer.stopping_server serve …`` gets SIGKILL at the second time it
comes to ``checkpoint_header``.
"""

from __future__ import annotations

import os
import signal
from typing import Any
from unittest import mock

from rawblockd import lifecycle
from rawblockd.command_line import main
from storage.engine import Engine

POINTS = {
    "put": ("put_payload_written", "journal_written", "journal_published"),
    "batch": ("batch_written", "batch_joined"),
    "checkpoint pages": (
        "checkpoint_begin",
        "checkpoint_void",
        "checkpoint_pages",
        "checkpoint_streams",
        "checkpoint_flush",
    ),
    "checkpoint header": ("checkpoint_header", "checkpoint_header_flush", "checkpoint_tail", "checkpoint_done"),
    "start": ("start_recovered", "start_counted", "start_recorded"),
}
"""By what they are points of, in order. Another point that the engine names fails whatever comes to it."""
ALL_POINTS = frozenset(point for points in POINTS.values() for point in points)


class StoppingEngine(Engine):
    """An engine that is killed at the n-th hit of the point that the environment names."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._point, _, number = os.environ["STOP_AT"].partition(":")
        assert self._point in ALL_POINTS
        self._hits_left = int(number)
        self.step = self._hit

    def _hit(self, name: str) -> None:
        assert name in ALL_POINTS, name
        if name == self._point:
            self._hits_left -= 1
            if self._hits_left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with mock.patch.object(lifecycle, "Engine", StoppingEngine):
        main()
