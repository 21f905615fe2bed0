"""The engine's picture of itself: one status from all its machine (``GET /v1/status``, metrics)."""

from __future__ import annotations

import time
import uuid

from storage.assembly import Machine
from storage.buffers import BufferArena
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.namespaces import Namespace
from storage.recovery.report import RecoveryReport
from storage.scrubber import ScrubProgress
from storage.status import (
    AutoCheckpoint,
    BufferStatus,
    CapacityStatus,
    CheckpointStatus,
    ClassStatus,
    CopyStatus,
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
from storage.version import VERSION


def engine_status(
    machine: Machine | None,
    device: BlockDevice,
    counters: EngineCounters,
    *,
    state: EngineState,
    reasons: list[Reason],
    progress_ratio: float,
) -> EngineStatus:
    """Everything that is known of an engine; ``machine`` is None until the recovery has ended."""
    if machine is None:
        return _status_without_machine(device, state, reasons, progress_ratio)
    partial = machine.partial.open
    classes = machine.index.class_statuses()
    _count_wiped_as_limbo(machine, classes)
    capacity = machine.index.capacity(classes)
    capacity.max_value_bytes = machine.write_path.max_value_bytes
    return EngineStatus(
        state=state,
        reasons=reasons,
        partial_recovery=partial,
        skipped_entries=len(machine.report.skipped) if partial else 0,
        skipped_by_reason=machine.report.by_reason() if partial else RecoveryReport().by_reason(),
        auto_checkpoint=AutoCheckpoint(not partial, "partial_recovery" if partial else None),
        recovery=recovery_status(machine, progress_ratio),
        checkpoint=checkpoint_status(machine, counters),
        journal=JournalStatus(machine.journal.used_ratio, machine.journal.published_seq),
        capacity=capacity,
        classes=classes,
        namespaces={name: _namespace_status(namespace) for name, namespace in machine.index.namespaces.by_name.items()},
        holds=_hold_statuses(machine),
        device=_device_status(device, machine.uuid, machine.index.geometry.block_bytes),
        buffers=_buffer_status(machine.arena),
        scrub=_scrub_status(machine),
        self_test=_self_test_status(machine),
        version=VERSION,
        uptime_seconds=time.monotonic() - machine.started_monotonic,
    )


def _status_without_machine(
    device: BlockDevice, state: EngineState, reasons: list[Reason], progress_ratio: float
) -> EngineStatus:
    """Before the recovery has ended only state, progress and device are known; the rest is zero."""
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
        device=_device_status(device, None, 0),
        buffers=BufferStatus(),
        scrub=ScrubStatus(damaged=dict(ScrubProgress().damaged)),
        self_test=SelfTestStatus(),
        version=VERSION,
        uptime_seconds=0.0,
    )


def recovery_status(machine: Machine | None, progress_ratio: float) -> RecoveryStatus:
    if machine is None:
        return RecoveryStatus(progress_ratio=progress_ratio)
    report = machine.report
    return RecoveryStatus(
        progress_ratio=1.0,
        recovered_entries=report.recovered,
        repaired_entries=sum(report.repaired.values()),
        repaired_by_source=dict(report.repaired),
        expired=report.expired,
        superseded=report.superseded,
        lost_unflushed=report.lost_unflushed,
        duration_seconds=report.duration_seconds,
        copies=_copies(machine),
        rebuilt=report.rebuilt,
        journal=report.journal,
        unknown_loss=bool(report.unknown_loss) and machine.partial.open,
        acknowledged_at=report.acknowledged_ms / 1000 if report.acknowledged_ms else None,
    )


def _scrub_status(machine: Machine) -> ScrubStatus:
    progress = machine.maintenance.scrubber.progress
    age = max(0.0, machine.clock() - progress.last_pass_at) if progress.passes else None
    return ScrubStatus(progress.ratio, progress.passes, age, progress.bytes, dict(progress.damaged))


def _self_test_status(machine: Machine) -> SelfTestStatus:
    tests = machine.health.self_tests
    return SelfTestStatus(tests["passed"], tests["failed"], machine.health.self_test_failure or None)


def _copies(machine: Machine) -> list[CopyStatus]:
    """As found at the start, or as written since."""
    found = {status.copy: status for status in machine.report.copies}
    for state in machine.checkpointer.copies:
        header = state.header
        verdict = "header: damaged" if state.damaged_header else f"pages: {state.damaged_pages} damaged"
        if header is not None:
            verdict = verdict if state.damaged else "valid"
            found[state.copy] = CopyStatus(state.copy, header.seq, verdict, header.written_ms / 1000)
        elif state.damaged:
            found[state.copy] = CopyStatus(state.copy, 0, verdict)
    return [found[copy] for copy in sorted(found)]


def _device_status(device: BlockDevice, superblock_uuid: bytes | None, block_bytes: int) -> DeviceStatus:
    return DeviceStatus(
        path=device.path,
        uuid=str(uuid.UUID(bytes=superblock_uuid)) if superblock_uuid else "",
        size_bytes=device.size_bytes,
        direct_io=device.direct_io,
        block_bytes=block_bytes,
        io_engine=device.io_engine,
    )


def checkpoint_status(machine: Machine, counters: EngineCounters) -> CheckpointStatus:
    newest = machine.checkpointer.newest
    header = newest.header if newest is not None else None
    written_at = header.written_ms / 1000 if header is not None else 0.0
    duration = counters.checkpoint_duration
    return CheckpointStatus(
        seq=header.seq if header is not None else 0,
        age_seconds=max(0.0, machine.clock() - written_at),
        duration_seconds=machine.checkpointer.last_duration_seconds,
        bytes=counters.last_checkpoint_bytes,
        dirty_pages=machine.checkpointer.dirty_pages(),
        written_at=written_at,
        succeeded=duration.count,
        failed=counters.checkpoints["failed"],
    )


def _namespace_status(namespace: Namespace) -> NamespaceStatus:
    settings = namespace.settings
    return NamespaceStatus(
        entries=namespace.entries,
        used_bytes=namespace.used_bytes,
        payload_bytes=namespace.payload_bytes,
        quota_bytes=settings.quota_bytes,
        quota_entries=settings.quota_entries,
        quota_mode=settings.quota_mode.value,
        default_ttl_seconds=settings.default_ttl_seconds,
        sliding_ttl=settings.sliding_ttl,
        ttl_jitter_percent=settings.ttl_jitter_percent,
        default_durability=settings.default_durability.value if settings.default_durability is not None else None,
        eviction_weight_percent=settings.eviction_weight_percent,
    )


def _count_wiped_as_limbo(machine: Machine, classes: list[ClassStatus]) -> None:
    """Slots of a wiped namespace are freed by its one record; that their own rows follow later is nobody's concern."""
    for slot_class, status in enumerate(classes):
        dying = machine.index.namespaces.dying_slots(slot_class)
        status.slots.live -= dying
        status.slots.limbo += dying


def _buffer_status(arena: BufferArena) -> BufferStatus:
    return BufferStatus(arena.total_bytes, arena.used_bytes, arena.waiting, arena.huge_bytes)


def _hold_statuses(machine: Machine) -> list[HoldStatus]:
    leases = [
        HoldStatus("lease", v.owner, v.namespace, v.entries, v.held_bytes, v.expires_in_seconds)
        for v in machine.leases.views()
    ]
    snapshots = [
        HoldStatus("snapshot", v.owner, v.namespace, v.entries, v.held_bytes, v.expires_in_seconds, v.freed_bytes)
        for v in machine.snapshots.views()
    ]
    imports = [
        HoldStatus("import", v.owner, v.namespace, 0, v.held_bytes, v.expires_in_seconds)
        for v in machine.imports.views()
    ]
    return leases + snapshots + imports
