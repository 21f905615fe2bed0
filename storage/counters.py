"""What the engine counts since it started. Plain numbers; label values are a closed set, all present from the start."""

from __future__ import annotations

from bisect import bisect_left

from storage.errors import (
    Busy,
    DeviceFailed,
    DeviceGone,
    Draining,
    FlushFailed,
    Full,
    JournalUnavailable,
    KeyInvalid,
    MetadataInvalid,
    NamespaceInvalid,
    NamespacesFull,
    NamespaceWiped,
    NotAdmitted,
    PreconditionFailed,
    QuotaExceeded,
    ReadFailed,
    ReadOnly,
    SpaceHeld,
    Starting,
    ValueTooLarge,
    WriteBudgetSpent,
    WriteFailed,
)
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


PUT_REJECTIONS = (
    *(kind.code for kind in (KeyInvalid, NamespaceInvalid, MetadataInvalid, ValueTooLarge, PreconditionFailed)),
    *(kind.code for kind in (QuotaExceeded, SpaceHeld, Full, NamespacesFull, NamespaceWiped, NotAdmitted)),
    *(kind.code for kind in (Busy, JournalUnavailable, ReadOnly, Draining, Starting, WriteBudgetSpent)),
    *(kind.code for kind in (DeviceFailed, ReadFailed, WriteFailed, FlushFailed, DeviceGone)),
    "other",
)
"""Codes of the errors with which a put is refused before its body is read."""


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
        self.put_rejections = dict.fromkeys(PUT_REJECTIONS, 0)
        self.deletes = dict.fromkeys(("deleted", "missing", "failed"), 0)
        self.evictions = dict.fromkeys(("evicted", "expired", "quota", "wiped"), 0)
        self.eviction_failures = 0
        self.slabs_taken = 0
        """Slabs that one slot class had to give to another."""
        self.corruptions = dict.fromkeys(("read", "recovery", "scrub"), 0)
        self.checkpoints = dict.fromkeys(("success", "failed"), 0)
        self.checkpoint_duration = Histogram(DURATION_BOUNDS_SECONDS)
        self.journal_blocks = 0
        self.journal_rows = 0
        self.journal_failures = 0
        self.flushes = 0
        self.last_checkpoint_bytes = 0

    def put_refused(self, code: str) -> None:
        """Count a put that was refused with the error of this code."""
        self.puts["refused"] += 1
        self.put_rejections[code if code in self.put_rejections else "other"] += 1
