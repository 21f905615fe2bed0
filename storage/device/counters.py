"""Counts of device operations: how many, how many bytes, how long, which errors.

Names are closed sets, present from the start at 0, so that they can become label values of metrics.
"""

from __future__ import annotations

import enum
import errno
import threading
import time
from bisect import bisect_left
from typing import Final


class OpKind(enum.StrEnum):
    READ = "read"
    WRITE = "write"
    FLUSH = "flush"


READ: Final = OpKind.READ
WRITE: Final = OpKind.WRITE
FLUSH: Final = OpKind.FLUSH
# Names of their own: to look one up in its class takes 0.15 µs, and so does its hash.

SHORT: Final = -1
"""Outcome of an operation that transferred nothing more without an error; not an errno."""

_NAMED_ERRNOS: Final = ("EIO", "ENOSPC", "EINVAL", "ETIMEDOUT", "ENODEV", "ENXIO", "EREMOTEIO", "EROFS", "EBADF")
ERROR_NAMES: Final = (*_NAMED_ERRNOS, "other", "short")
_NAME_OF: Final = {getattr(errno, name): name for name in _NAMED_ERRNOS} | {SHORT: "short"}

DURATION_BOUNDS_SECONDS: Final = (
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the duration buckets; one more bucket takes what is above the last."""


def error_name(outcome: int) -> str:
    """The counter's name of an errno, or of SHORT."""
    return _NAME_OF.get(outcome, "other")


class OpCounters:
    """One kind of operation. ``operations`` counts finished ones, failed too; ``bytes`` only whole successes."""

    __slots__ = ("bytes", "duration_buckets", "duration_seconds", "errors", "operations")

    def __init__(self) -> None:
        self.operations = 0
        self.bytes = 0
        self.duration_seconds = 0.0
        """Sum over all finished operations."""
        self.duration_buckets = [0] * (len(DURATION_BOUNDS_SECONDS) + 1)
        """Not cumulative: bucket i counts durations above bound i-1 and up to bound i."""
        self.errors = dict.fromkeys(ERROR_NAMES, 0)

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class IoCounters:
    """Counters of one device, since it was opened.

    Durations run from the call to the completion, waiting in the engine's queue included: what a caller waits.
    """

    def __init__(self) -> None:
        self.pending: dict[object, float] = {}
        """Asynchronous operations that have not ended, oldest first, with when each was asked for (perf_counter)."""
        self.read, self.write, self.flush = OpCounters(), OpCounters(), OpCounters()
        self.by_op: dict[OpKind, OpCounters] = {READ: self.read, WRITE: self.write, FLUSH: self.flush}
        # Blocking calls come from any thread; an uncontended lock costs 0.1 µs and keeps the counts exact.
        self._lock = threading.Lock()

    @property
    def completed(self) -> int:
        """Operations that have ended, failed ones too."""
        return sum(one.operations for one in self.by_op.values())

    def oldest_pending_seconds(self) -> float:
        """For how long the oldest asynchronous operation has been under way; 0 without one. On the loop's thread."""
        for asked_at in self.pending.values():
            return time.perf_counter() - asked_at
        return 0.0

    def record(self, kind: OpKind, length_bytes: int, seconds: float, outcome: int = 0) -> None:
        """Count one finished operation; ``outcome`` is 0, an errno, or SHORT."""
        counters = self.read if kind is READ else self.write if kind is WRITE else self.flush
        bucket = bisect_left(DURATION_BOUNDS_SECONDS, seconds)
        with self._lock:
            counters.operations += 1
            counters.duration_seconds += seconds
            counters.duration_buckets[bucket] += 1
            if outcome:
                counters.errors[error_name(outcome)] += 1
            else:
                counters.bytes += length_bytes

    def record_reads(self, count: int, total_bytes: int, seconds: float) -> None:
        """Count reads that ended well together; ``seconds`` is what each of them took."""
        counters = self.read
        bucket = bisect_left(DURATION_BOUNDS_SECONDS, seconds)
        with self._lock:
            counters.operations += count
            counters.bytes += total_bytes
            counters.duration_seconds += seconds * count
            counters.duration_buckets[bucket] += count

    def record_each(self, kind: OpKind, seconds: list[float], total_bytes: int) -> None:
        """Count operations that ended well at the same time, and what each of them took."""
        counters = self.read if kind is READ else self.write
        buckets = counters.duration_buckets
        with self._lock:
            counters.operations += len(seconds)
            counters.bytes += total_bytes
            counters.duration_seconds += sum(seconds)
            for one in seconds:
                buckets[bisect_left(DURATION_BOUNDS_SECONDS, one)] += 1
