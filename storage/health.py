"""Whether the device fails too often to be written to (R7, at run time)."""

from __future__ import annotations

import time
from collections import deque

WINDOW_SECONDS = 10.0
FAILURES_MAX = 16
"""More failed writes than this within the window, and the daemon only reads until the window has passed."""


class DeviceHealth:
    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX + 1)
        self.why = ""

    def note(self, why: str) -> None:
        """A write or flush of a request failed."""
        self._failures.append(time.monotonic())
        self.why = why

    @property
    def failing(self) -> bool:
        return len(self._failures) > FAILURES_MAX and time.monotonic() - self._failures[0] < WINDOW_SECONDS
