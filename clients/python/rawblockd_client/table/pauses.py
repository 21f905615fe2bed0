"""Pauses between attempts on buckets that others are changing."""

from __future__ import annotations

import random
import time

from rawblockd_client.errors import DeadlineExceeded

PATIENCE_SECONDS = 120.0
"""So long without any success is no contention any more."""
_FREE_ROUNDS = 2
_FIRST_SECONDS = 0.001
_MOST_SECONDS = 0.25


class Pauses:
    """Full jitter, from the third attempt on."""

    def __init__(self) -> None:
        self._rounds = 0
        self._ends_at = time.monotonic() + PATIENCE_SECONDS

    def progressed(self) -> None:
        self._rounds = 0
        self._ends_at = time.monotonic() + PATIENCE_SECONDS

    def wait(self) -> None:
        """Raises DeadlineExceeded."""
        self._rounds += 1
        if time.monotonic() > self._ends_at:
            raise DeadlineExceeded(f"no bucket could be written for {PATIENCE_SECONDS:.0f} s")
        if self._rounds > _FREE_ROUNDS:
            bound = min(_MOST_SECONDS, _FIRST_SECONDS * 2.0 ** min(self._rounds, 20))
            time.sleep(random.uniform(0.0, bound))
