"""Engines in states that a real one passes through in no time, for the page to show."""

from __future__ import annotations

from typing import Any, cast

from api.engine_face import EngineFace
from storage.counters import EngineCounters
from storage.errors import ReadOnly, Starting
from storage.events import EventFeed
from storage.recovery.report import RecoveryProgress, RecoveryReport, SkippedView
from storage.status import (
    AutoCheckpoint,
    BufferStatus,
    CapacityStatus,
    CheckpointStatus,
    DeviceStatus,
    EngineState,
    EngineStatus,
    HoldStatus,
    JournalStatus,
    NamespaceStatus,
    Reason,
    RecoveryStatus,
    ScrubStatus,
    SelfTestStatus,
)


class StandingEngine:
    """Stands still in one state. It has what the page asks of an engine, and refuses what an operator asks of it."""

    def __init__(self, state: EngineState, *reasons: Reason, step: str = "", ratio: float = 0.0) -> None:
        self.state = self.phase = state
        self.reasons = list(reasons)
        self.progress = RecoveryProgress(ratio, step)
        self.counters = EngineCounters()
        self.events = EventFeed(64 << 10)

    def status(self) -> EngineStatus:
        failing = Reason.DEVICE_ERRORS in self.reasons
        return EngineStatus(
            state=self.state,
            reasons=self.reasons,
            partial_recovery=False,
            skipped_entries=0,
            skipped_by_reason=RecoveryReport().by_reason(),
            auto_checkpoint=AutoCheckpoint(),
            recovery=RecoveryStatus(progress_ratio=self.progress.ratio),
            checkpoint=CheckpointStatus(),
            journal=JournalStatus(),
            capacity=CapacityStatus(),
            classes=[],
            namespaces={},
            holds=[],
            device=DeviceStatus(path="/dev/nvme1n1", size_bytes=1 << 40, direct_io=True, io_engine="uring"),
            buffers=BufferStatus(),
            scrub=ScrubStatus(),
            self_test=SelfTestStatus(failure="self test: write failed (EIO)" if failing else None),
            version="0.0.0",
            uptime_seconds=0.0,
        )

    def skipped(self, start: int, limit: int) -> list[SkippedView]:
        return []

    async def refuse(self) -> Any:
        raise Starting if self.state in (EngineState.STARTING, EngineState.RECOVERING) else ReadOnly

    acknowledge = retry = checkpoint = refuse


class CrowdedEngine(StandingEngine):
    """Quotas, some used up, and holds: more than the page has room for."""

    def __init__(self) -> None:
        super().__init__(EngineState.READY)

    def status(self) -> EngineStatus:
        status = super().status()
        mib = 1 << 20
        status.capacity = CapacityStatus(used_bytes=600 * mib, total_bytes=1000 * mib, max_entries=1000)
        status.namespaces = {f"tenant-{n:02}": NamespaceStatus(n, n * mib, n * mib) for n in range(1, 30)}
        status.namespaces["hard"] = NamespaceStatus(
            40, 80 * mib, 70 * mib, quota_bytes=100 * mib, quota_entries=50, quota_mode="hard"
        )
        status.namespaces["over"] = NamespaceStatus(40, 90 * mib, 70 * mib, quota_bytes=60 * mib)
        status.holds = [HoldStatus("lease", f"worker-{n}", "hard", n, n * 4096, 90.0) for n in range(1, 12)]
        return status


def face_of(engine: StandingEngine) -> EngineFace:
    """As the application takes it: values are never asked of it."""
    return cast(EngineFace, engine)
