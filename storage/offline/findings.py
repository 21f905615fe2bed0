"""What a check finds: kinds of damage with stable names, counted exactly, listed up to a bound (L1)."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

FINDINGS_LISTED_MAX = 1000
"""Findings listed with their place; the counts stay exact beyond it."""


class Damage(enum.StrEnum):
    """Kinds of damage. Those of ``LOSSES`` cost entries, the others are settled by the next start."""

    SUPERBLOCK = "superblock"
    COPY_HEADER = "copy_header"
    COPY_DIRECTORY = "copy_directory"
    COPY_CATALOGUE = "copy_catalogue"
    PAGE = "page"
    STALE_PAGE = "stale_page"
    INVALID_ROW = "invalid_row"
    JOURNAL_BLOCK = "journal_block"
    JOURNAL_ROW = "journal_row"
    JOURNAL_RECORD = "journal_record"
    SLAB_HEADER = "slab_header"
    SKIPPED_ENTRY = "skipped_entry"
    UNKNOWN_LOSS = "unknown_loss"
    QUARANTINED_SLOT = "quarantined_slot"
    RECORD_HEADER = "record_header"
    RECORD_PAYLOAD = "record_payload"
    UNREADABLE_RECORD = "unreadable_record"
    DUPLICATE_KEY = "duplicate_key"
    SLOT_OVERLAP = "slot_overlap"
    ACCOUNTING = "accounting"


LOSSES = frozenset(
    {
        Damage.SKIPPED_ENTRY,
        Damage.UNKNOWN_LOSS,
        Damage.QUARANTINED_SLOT,
        Damage.RECORD_HEADER,
        Damage.RECORD_PAYLOAD,
        Damage.UNREADABLE_RECORD,
        Damage.DUPLICATE_KEY,
        Damage.SLOT_OVERLAP,
        Damage.ACCOUNTING,
    }
)


class Note(enum.StrEnum):
    """What is worth knowing and is no damage: the traces of a crash or of a power loss."""

    TORN_TAIL = "torn_tail"
    DROPPED_BLOCK = "dropped_block"
    """A block of the newest start behind a hole in the unflushed end: its rows don't count."""
    UNFINISHED_CHECKPOINT = "unfinished_checkpoint"
    LOST_UNFLUSHED = "lost_unflushed"
    EXPIRED = "expired"


class Verdict(enum.StrEnum):
    """``repairable``: the next start settles all of it without loss. ``refused``: the daemon would not start."""

    CLEAN = "clean"
    REPAIRABLE = "repairable"
    DAMAGED = "damaged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage: its kind, where it is, and why it counts as one."""

    kind: str
    where: str
    why: str


@dataclass(slots=True)
class Findings:
    """Collects what a check finds."""

    listed: list[Finding] = field(default_factory=list)
    counts: Counter[Damage] = field(default_factory=Counter)
    notes: Counter[Note] = field(default_factory=Counter)
    refusal: str = ""
    """Code of the error with which the daemon would refuse to start."""

    def add(self, kind: Damage, where: str, why: str) -> None:
        self.counts[kind] += 1
        if len(self.listed) < FINDINGS_LISTED_MAX:
            self.listed.append(Finding(kind.value, where, why))

    def note(self, kind: Note, count: int = 1) -> None:
        if count:
            self.notes[kind] += count

    @property
    def total(self) -> int:
        return self.counts.total()

    def verdict(self) -> Verdict:
        if self.refusal:
            return Verdict.REFUSED
        if any(self.counts[kind] for kind in LOSSES):
            return Verdict.DAMAGED
        return Verdict.REPAIRABLE if self.total else Verdict.CLEAN
