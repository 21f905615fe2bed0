"""What a recovery may do, and what it hands to the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.checkpoint.copy_state import CopyState
from storage.events import History
from storage.format.superblock import Superblock
from storage.index import Index
from storage.journal import JournalPosition
from storage.recovery.report import RecoveryReport, SkippedEntry


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """R6: above both, the start is refused."""

    max_skipped_ratio: float = 0.05
    max_skipped_floor: int = 64
    accept_loss: bool = False
    adopt_seq: int | None = None
    """Start from the copy with this seq instead of the newest, and believe no live row without its record (R5)."""


@dataclass(slots=True)
class Recovered:
    """What the engine starts from."""

    superblock: Superblock
    index: Index
    copies: list[CopyState]
    number: int
    position: JournalPosition
    report: RecoveryReport
    new_skipped: list[SkippedEntry] = field(default_factory=list)
    """Skipped in this recovery: the engine quarantines and records them. Earlier ones are in the report already."""
    newly_unknown: bool = False
    corrections: list[int] = field(default_factory=list)
    counts_before: dict[str, int] = field(default_factory=dict)
    """Counts of the recovery in which the present partial state began."""
    history: History = field(default_factory=History)
