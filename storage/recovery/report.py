"""What a recovery found, counted exactly (R2)."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from storage.format.row import ROW_STRUCT, Row
from storage.status import CopyStatus


class SkipReason(enum.StrEnum):
    """Why an entry, or what may have been one, could not be settled."""

    CHECKSUM = "checksum"
    STALE_PAGE = "stale_page"
    UNREADABLE = "unreadable"
    WRONG_PLACE = "wrong_place"
    WRONG_DEVICE = "wrong_device"
    INVALID_ROW = "invalid_row"
    OUT_OF_RANGE = "out_of_range"
    DUPLICATE_KEY = "duplicate_key"
    HEADER_MISMATCH = "header_mismatch"
    JOURNAL_GAP = "journal_gap"


class RepairSource(enum.StrEnum):
    """What settled a damaged row."""

    OLDER_COPY = "older_copy"
    JOURNAL = "journal"
    ROW = "row"
    RECORD_HEADER = "record_header"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """One skipped entry. ``copy`` is -1 where the row stood in the journal; ``raw`` is the row as found, 64 bytes."""

    reason: SkipReason
    copy: int
    page: int
    slab: int
    slot: int
    raw: bytes
    namespace_id: int = 0
    write_id: int = 0
    digest: bytes = b""
    key: bytes = b""
    """What is known of the key: 0 and empty where nothing is."""

    def claimed(self) -> Row:
        """What the raw row claims; evidence, not truth."""
        return Row._make(ROW_STRUCT.unpack(self.raw))


@dataclass(frozen=True, slots=True)
class SkippedView:
    """A skipped entry as shown: what its raw row claims of the key, where it claims anything possible."""

    reason: str
    copy: int | None
    page: int | None
    slab: int | None
    slot: int | None
    superseded: bool
    """The key was put or deleted since: a retry never brings this entry back."""
    namespace: str | None
    key: str | None
    """Percent-encoded; known where the record header verifies."""
    digest: str | None
    write_id: str | None
    """As in an ETag: 16 hexadecimal digits."""
    raw: str
    """The row as found, 64 bytes in hexadecimal."""


@dataclass(slots=True)
class RecoveryReport:
    recovered: int = 0
    repaired: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys((s.value for s in RepairSource), 0)))
    skipped: list[SkippedEntry] = field(default_factory=list)
    expired: int = 0
    superseded: int = 0
    stale_headers: list[int] = field(default_factory=list)
    """Row ids of free slots whose header still verifies though something later is known: to be made void."""
    lost_unflushed: int = 0
    unknown_loss: str = ""
    """Why a loss of unknown extent must be assumed; empty if there is none."""
    journal: str = "clean"
    rebuilt: bool = False
    """No copy could be used: the index comes from record headers and the journal."""
    copies: list[CopyStatus] = field(default_factory=list)
    superblocks: list[str] = field(default_factory=list)
    """Verdict per place: ``valid`` or what is wrong."""
    duration_seconds: float = 0.0
    acknowledged_ms: int = 0

    def by_reason(self) -> dict[str, int]:
        """Count per reason, all reasons present."""
        counts = dict.fromkeys((r.value for r in SkipReason), 0)
        for entry in self.skipped:
            counts[entry.reason.value] += 1
        return counts

    def note_unknown_loss(self, why: str) -> None:
        """A loss whose extent can't be counted."""
        self.unknown_loss = f"{self.unknown_loss}; {why}" if self.unknown_loss else why

    @property
    def partial(self) -> bool:
        return bool(self.skipped or self.unknown_loss)


@dataclass(slots=True)
class RecoveryProgress:
    """Read by other threads while a recovery runs."""

    ratio: float = 0.0
    step: str = ""
