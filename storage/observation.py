"""The engine's picture of itself: one status from all its parts (``GET /v1/status``, metrics)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from storage.buffers import BufferArena
from storage.checkpoint import Checkpointer
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.health import DeviceHealth
from storage.index import Index
from storage.journal import Journal
from storage.maintenance import Maintenance
from storage.recovery.report import RecoveryReport
from storage.scrubber import ScrubProgress
from storage.status import (
    AutoCheckpoint,
    BufferStatus,
    CapacityStatus,
    CheckpointStatus,
    CopyStatus,
    DeviceStatus,
    EngineState,
    EngineStatus,
    JournalStatus,
    NamespaceStatus,
    Reason,
    RecoveryStatus,
    ScrubStatus,
    SelfTestStatus,
)
from storage.version import VERSION


@dataclass(slots=True)
class Parts:
    """What a running engine consists of, as far as it is looked at."""

    index: Index
    journal: Journal
    checkpointer: Checkpointer
    maintenance: Maintenance
    arena: BufferArena
    health: DeviceHealth
    report: RecoveryReport
    counts_before: dict[str, int]
    partial: Callable[[], bool]
    max_value_bytes: int
    started_monotonic: float
    clock: Callable[[], float]


def recovery_status(parts: Parts | None, progress_ratio: float) -> RecoveryStatus:
    if parts is None:
        return RecoveryStatus(progress_ratio=progress_ratio)
    report = parts.report
    return RecoveryStatus(
        progress_ratio=1.0,
        recovered_entries=report.recovered,
        repaired_entries=sum(report.repaired.values()),
        repaired_by_source=dict(report.repaired),
        expired=report.expired,
        superseded=report.superseded,
        lost_unflushed=report.lost_unflushed,
        duration_seconds=report.duration_seconds,
        copies=_copies(parts),
        rebuilt=report.rebuilt,
        journal=report.journal,
        unknown_loss=bool(report.unknown_loss) and parts.partial(),
        acknowledged_at=report.acknowledged_ms / 1000 if report.acknowledged_ms else None,
    )


def _scrub_status(parts: Parts) -> ScrubStatus:
    progress = parts.maintenance.scrubber.progress
    age = max(0.0, parts.clock() - progress.last_pass_at) if progress.passes else None
    return ScrubStatus(progress.ratio, progress.passes, age, progress.bytes, dict(progress.damaged))


def _copies(parts: Parts) -> list[CopyStatus]:
    """As found at the start, or as written since."""
    found = {status.copy: status for status in parts.report.copies}
    for state in parts.checkpointer.copies:
        if state.header is not None:
            header = state.header
            found[state.copy] = CopyStatus(state.copy, header.seq, "valid", header.written_ms / 1000)
    return [found[copy] for copy in sorted(found)]


def device_status(device: BlockDevice, superblock_uuid: bytes | None, block_bytes: int) -> DeviceStatus:
    return DeviceStatus(
        path=device.path,
        uuid=str(uuid.UUID(bytes=superblock_uuid)) if superblock_uuid else "",
        size_bytes=device.size_bytes,
        direct_io=device.direct_io,
        block_bytes=block_bytes,
        io_engine=device.io_engine,
    )


def checkpoint_status(parts: Parts, counters: EngineCounters) -> CheckpointStatus:
    newest = parts.checkpointer.newest
    header = newest.header if newest is not None else None
    written_at = header.written_ms / 1000 if header is not None else 0.0
    duration = counters.checkpoint_duration
    return CheckpointStatus(
        seq=header.seq if header is not None else 0,
        age_seconds=max(0.0, parts.clock() - written_at),
        duration_seconds=parts.checkpointer.last_duration_seconds,
        bytes=counters.last_checkpoint_bytes,
        dirty_pages=parts.checkpointer.dirty_pages(),
        written_at=written_at,
        succeeded=duration.count,
        failed=counters.checkpoints["failed"],
    )


def engine_status(
    parts: Parts | None,
    device: BlockDevice,
    counters: EngineCounters,
    *,
    state: EngineState,
    reasons: list[Reason],
    progress_ratio: float,
    uuid_bytes: bytes | None,
) -> EngineStatus:
    """Before the recovery has ended only state, progress and device are known; the rest is zero."""
    if parts is None:
        return EngineStatus(
            state=state,
            reasons=reasons,
            partial_recovery=False,
            skipped_entries=0,
            skipped_by_reason=RecoveryReport().by_reason(),
            auto_checkpoint=AutoCheckpoint(),
            recovery=recovery_status(None, progress_ratio),
            checkpoint=CheckpointStatus(),
            journal=JournalStatus(),
            capacity=CapacityStatus(),
            classes=[],
            namespaces={},
            holds=[],
            device=device_status(device, None, 0),
            buffers=BufferStatus(),
            scrub=ScrubStatus(damaged=dict(ScrubProgress().damaged)),
            self_test=SelfTestStatus(),
            version=VERSION,
            uptime_seconds=0.0,
        )
    partial = parts.partial()
    classes = parts.index.class_statuses()
    capacity = parts.index.capacity(classes)
    capacity.max_value_bytes = parts.max_value_bytes
    return EngineStatus(
        state=state,
        reasons=reasons,
        partial_recovery=partial,
        skipped_entries=len(parts.report.skipped) if partial else 0,
        skipped_by_reason=parts.report.by_reason() if partial else RecoveryReport().by_reason(),
        auto_checkpoint=AutoCheckpoint(not partial, "partial_recovery" if partial else None),
        recovery=recovery_status(parts, progress_ratio),
        checkpoint=checkpoint_status(parts, counters),
        journal=JournalStatus(parts.journal.used_ratio, parts.journal.published_seq),
        capacity=capacity,
        classes=classes,
        namespaces={
            n.name: NamespaceStatus(n.entries, n.used_bytes, n.payload_bytes)
            for n in parts.index.namespaces.by_id.values()
        },
        holds=[],
        device=device_status(device, uuid_bytes, parts.index.geometry.block_bytes),
        buffers=BufferStatus(parts.arena.total_bytes, parts.arena.used_bytes, parts.arena.waiting),
        scrub=_scrub_status(parts),
        self_test=SelfTestStatus(
            parts.health.self_tests["passed"], parts.health.self_tests["failed"], parts.health.self_test_failure or None
        ),
        version=VERSION,
        uptime_seconds=time.monotonic() - parts.started_monotonic,
    )
