"""A token's rate of requests: a bucket that fills evenly and holds one second's worth."""

from __future__ import annotations

import math


class Bucket:
    """``rate`` requests a second on average, and up to a second's worth (at least one) at once."""

    __slots__ = ("_capacity", "_filled_at", "_left", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._capacity = max(1.0, rate)
        self._left = self._capacity
        self._filled_at = -math.inf

    def take(self, now: float) -> int:
        """Take one request at ``now`` (seconds of a monotonic clock): 0, or the whole seconds until one is left."""
        self._left = min(self._capacity, self._left + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0
        return math.ceil((1.0 - self._left) / self.rate)
