"""The engine's status as one consistent picture; field names are the contract of ``GET /v1/status``.

All times are seconds, all sizes bytes. The dataclasses are serialised as they stand.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class EngineState(enum.StrEnum):
    """States of the engine and the moves between them.

    ======== ==========================================
    from     to
    ======== ==========================================
    starting recovering, failed
    recovering ready, degraded, read_only, failed
    ready    degraded, read_only, draining
    degraded ready, read_only, draining
    read_only ready, degraded, draining
    draining stopped, failed
    ======== ==========================================
    """

    STARTING = "starting"
    RECOVERING = "recovering"
    READY = "ready"
    DEGRADED = "degraded"
    READ_ONLY = "read_only"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Reason(enum.StrEnum):
    """Why the engine is degraded or read-only."""

    PARTIAL_RECOVERY = "partial_recovery"
    CORRUPTION = "corruption"
    CHECKPOINT_OVERDUE = "checkpoint_overdue"
    CHECKPOINT_FAILING = "checkpoint_failing"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    DEVICE_ERRORS = "device_errors"
    SUPERBLOCK_DAMAGED = "superblock_damaged"
    COPY_DAMAGED = "copy_damaged"


def accepts_mutations(state: EngineState, reasons: Sequence[Reason]) -> bool:
    """True while reads and mutations are both accepted: in ready, and in degraded unless the journal refuses rows."""
    if state is EngineState.READY:
        return True
    return state is EngineState.DEGRADED and Reason.JOURNAL_UNAVAILABLE not in reasons


@dataclass(slots=True)
class AutoCheckpoint:
    enabled: bool = True
    paused_reason: str | None = None


@dataclass(slots=True)
class CopyStatus:
    copy: int
    seq: int
    verdict: str
    written_at: float = 0.0


@dataclass(slots=True)
class RecoveryStatus:
    progress_ratio: float = 0.0
    recovered_entries: int = 0
    repaired_entries: int = 0
    repaired_by_source: dict[str, int] = field(default_factory=dict)
    expired: int = 0
    superseded: int = 0
    lost_unflushed: int = 0
    duration_seconds: float = 0.0
    copies: list[CopyStatus] = field(default_factory=list)
    rebuilt: bool = False
    """No checkpoint copy could be used: the index was rebuilt from record headers."""
    journal: str = ""
    """``clean``, ``torn_tail`` or ``gap``."""
    unknown_loss: bool = False
    """True while a loss of unknown extent is unacknowledged."""
    acknowledged_at: float | None = None


@dataclass(slots=True)
class CheckpointStatus:
    seq: int = 0
    age_seconds: float = 0.0
    duration_seconds: float = 0.0
    bytes: int = 0
    dirty_pages: int = 0
    written_at: float = 0.0
    succeeded: int = 0
    failed: int = 0


@dataclass(slots=True)
class JournalStatus:
    used_ratio: float = 0.0
    seq: int = 0


@dataclass(slots=True)
class SlotCounts:
    """``free + live + quarantined + retired + limbo + in_flight = total``; at rest the last two are 0 (A1)."""

    free: int = 0
    live: int = 0
    quarantined: int = 0
    retired: int = 0
    limbo: int = 0
    in_flight: int = 0
    total: int = 0


@dataclass(slots=True)
class CapacityStatus:
    """``used_bytes`` are the bytes of live slots, ``total_bytes`` the bytes of all slabs."""

    slots: SlotCounts = field(default_factory=SlotCounts)
    used_bytes: int = 0
    payload_bytes: int = 0
    total_bytes: int = 0
    max_entries: int = 0
    max_value_bytes: int = 0
    reserved_bytes: int = 0
    memory_full_bytes: int = 0
    free_slabs: int = 0


@dataclass(slots=True)
class ClassStatus:
    slot_bytes: int
    slabs: int
    slots: SlotCounts


@dataclass(slots=True)
class NamespaceStatus:
    """Usage and settings; None: not set."""

    entries: int
    used_bytes: int
    payload_bytes: int
    quota_bytes: int | None = None
    quota_entries: int | None = None
    quota_mode: str = "soft"
    default_ttl_seconds: int | None = None
    sliding_ttl: bool = False
    ttl_jitter_percent: int = 0
    default_durability: str | None = None
    eviction_weight_percent: int = 100


@dataclass(slots=True)
class HoldStatus:
    """Slots that are not reused before a lease or a snapshot ends (L3)."""

    kind: str
    holder: str
    namespace: str
    slots: int
    held_bytes: int
    expires_in_seconds: float
    freed_bytes: int = 0
    """Of ``held_bytes``, those that would be free without the hold, where that is known."""


@dataclass(slots=True)
class DeviceStatus:
    path: str = ""
    uuid: str = ""
    size_bytes: int = 0
    direct_io: bool = False
    block_bytes: int = 0
    io_engine: str = ""


@dataclass(slots=True)
class BufferStatus:
    total_bytes: int = 0
    used_bytes: int = 0
    waiting: int = 0
    huge_bytes: int = 0
    """How much of the total really lies on huge pages; much less than all of it makes large values slower."""


@dataclass(slots=True)
class ScrubStatus:
    """Background verification: the pass under way, and what was found damaged since the start, per kind."""

    progress_ratio: float = 0.0
    passes: int = 0
    last_pass_age_seconds: float | None = None
    verified_bytes: int = 0
    damaged: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SelfTestStatus:
    """The direct write-read-compare on the scratch block."""

    passed: int = 0
    failed: int = 0
    failure: str | None = None


@dataclass(slots=True)
class EngineStatus:
    state: EngineState
    reasons: list[Reason]
    partial_recovery: bool
    skipped_entries: int
    skipped_by_reason: dict[str, int]
    auto_checkpoint: AutoCheckpoint
    recovery: RecoveryStatus
    checkpoint: CheckpointStatus
    journal: JournalStatus
    capacity: CapacityStatus
    classes: list[ClassStatus]
    namespaces: dict[str, NamespaceStatus]
    holds: list[HoldStatus]
    device: DeviceStatus
    buffers: BufferStatus
    scrub: ScrubStatus
    self_test: SelfTestStatus
    version: str
    uptime_seconds: float
