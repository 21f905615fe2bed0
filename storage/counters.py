"""What the engine counts since it started. Plain numbers; label values are a closed set, all present from the start."""

from __future__ import annotations

from bisect import bisect_left

from storage.format.row import FreeReason

DURATION_BOUNDS_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)

FREE_REASON_LABELS = {
    FreeReason.CLIENT: "client",
    FreeReason.REPLACED: "replaced",
    FreeReason.EVICTED: "evicted",
    FreeReason.EXPIRED: "expired",
    FreeReason.QUOTA: "quota",
    FreeReason.WIPED: "wiped",
    FreeReason.CORRUPT: "corrupt",
    FreeReason.RECOVERY: "recovery",
}


class Histogram:
    """``counts`` are per bucket, not cumulative, with one more than ``bounds`` for what lies above."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.count += 1


class EngineCounters:
    """Label value → count. Only the engine adds to them."""

    def __init__(self) -> None:
        self.lookups = dict.fromkeys(("hit", "miss", "expired", "corrupt", "error"), 0)
        self.puts = dict.fromkeys(("created", "replaced", "refused", "failed", "lost"), 0)
        self.deletes = dict.fromkeys(("deleted", "missing", "failed"), 0)
        self.evictions = dict.fromkeys(("evicted", "expired", "quota", "wiped"), 0)
        self.corruptions = dict.fromkeys(("read", "recovery", "scrub"), 0)
        self.checkpoints = dict.fromkeys(("success", "failed"), 0)
        self.checkpoint_duration = Histogram(DURATION_BOUNDS_SECONDS)
        self.journal_blocks = 0
        self.journal_rows = 0
        self.journal_failures = 0
        self.flushes = 0
        self.last_checkpoint_bytes = 0
