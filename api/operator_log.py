"""What happened to the daemon and what its operators did: the last lines, for the page at ``/`` (L1)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

LOG_MAX = 100
"""Most lines kept; older ones are in the daemon's own log."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """``number`` counts lines since the start of the process; ``at`` is seconds since 1970."""

    number: int
    at: float
    text: str
    failed: bool = False


class OperatorLog:
    """The last lines of what happened, newest last."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._count = 0
        self._lines: deque[LogLine] = deque(maxlen=LOG_MAX)

    def add(self, text: str, *, failed: bool = False) -> LogLine:
        self._count += 1
        line = LogLine(self._count, self._clock(), text, failed)
        self._lines.append(line)
        return line

    def newest(self, count: int) -> list[LogLine]:
        """Up to ``count`` lines, newest first."""
        return list(self._lines)[: -count - 1 : -1]

    def line(self, number: int) -> LogLine | None:
        """A line by its number, None if it was never written or is forgotten."""
        return next((line for line in self._lines if line.number == number), None)
