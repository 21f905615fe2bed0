"""What a recovery of a damaged world must report, worked out from the truth alone.

A line of a page that every usable copy has lost is settled by these, in this order:

===============================  =========================  ==============================================
the line                         the slot's header          expected
===============================  =========================  ==============================================
the journal speaks of the slot   –                          as the truth; repaired by the journal if live
as it should be                  its own                    live, repaired by the row
as it should be, free            void                       free, not counted
an older one of the slot         agrees with that row       as that row says
damaged                          its own                    live, repaired by the record header
damaged                          void                       free, not counted
anything else                    –                          skipped
===============================  =========================  ==============================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from storage.format.row import ROW_STRUCT, Row, SlotState
from storage.recovery.report import RepairSource, SkipReason
from tests.recovery.world import World, without_access
from tests.support.victim import Victim


@dataclass
class Expected:
    """``skipped`` are row ids with their reasons; ``unplaced`` counts skipped rows without a place of their own."""

    skipped: dict[int, SkipReason] = field(default_factory=dict)
    unplaced: Counter[SkipReason] = field(default_factory=Counter)
    repaired: Counter[RepairSource] = field(default_factory=Counter)
    unknown_loss: bool = False
    older: dict[bytes, bytes | None] = field(default_factory=dict)
    """Keys whose last change was lost with the journal: what they hold instead."""

    @property
    def partial(self) -> bool:
        return bool(self.skipped or self.unplaced or self.unknown_loss)

    def by_reason(self) -> dict[str, int]:
        counts = Counter(self.skipped.values()) + self.unplaced
        return {reason.value: counts[reason] for reason in SkipReason}

    def by_source(self) -> dict[str, int]:
        return {source.value: self.repaired[source] for source in RepairSource}

    def values(self, world: World) -> dict[bytes, bytes | None]:
        """Every key the world ever knew, and what a client must see of it."""
        values: dict[bytes, bytes | None] = {m.key: world.values.get(m.key) for m in world.mutations}
        for row_id in self.skipped:
            key = world.keys.get(row_id)
            if key is not None:
                values[key] = None
        return values | self.older

    def recovered(self, world: World) -> int:
        return sum(value is not None for value in self.values(world).values())


@dataclass
class PageDamage:
    """Pages damaged in some copies: (copy, page) → why. ``unreadable`` ones show nothing of their lines."""

    reasons: dict[tuple[int, int], SkipReason] = field(default_factory=dict)
    broken_headers: set[int] = field(default_factory=set)
    """Row ids whose record headers are damaged."""
    lost_rows: set[int] = field(default_factory=set)
    """Row ids whose newest row stood in a journal block that is damaged."""

    def expected(self, world: World, victim: Victim, usable: list[int] | None = None) -> Expected:
        """``usable`` copies, newest first; all by default."""
        usable = world.copies if usable is None else usable
        expected = Expected()
        for page in sorted({page for copy, page in self.reasons if copy == usable[0]}):
            if any((copy, page) not in self.reasons for copy in usable):
                expected.repaired[RepairSource.OLDER_COPY] += len(world.live_in(page))
                continue
            for row_id in world.pages[page]:
                self._settle(world, victim, usable, page, row_id, expected)
        return expected

    def _settle(
        self, world: World, victim: Victim, usable: list[int], page: int, row_id: int, expected: Expected
    ) -> None:
        live = world.rows[row_id].state == SlotState.LIVE
        if world.spoken_of(row_id, world.copies[-1]) and row_id not in self.lost_rows:
            expected.repaired[RepairSource.JOURNAL] += live
            return
        reason = self.reasons[usable[0], page]
        line = None if reason is SkipReason.UNREADABLE else self._line(world, victim, usable[0], row_id)
        own = live and row_id not in self.broken_headers
        void = not live and row_id not in self.broken_headers
        if line is None:
            if own:
                expected.repaired[RepairSource.RECORD_HEADER] += 1
            elif not void:
                expected.skipped[row_id] = reason
        elif line.write_id == world.rows[row_id].write_id and line.state == SlotState.LIVE and own:
            expected.repaired[RepairSource.ROW] += 1
        elif not (line.state == SlotState.FREE and void):
            expected.skipped[row_id] = SkipReason.HEADER_MISMATCH

    def _line(self, world: World, victim: Victim, copy: int, row_id: int) -> Row | None:
        """The line if it is one the slot once had; None if it is damaged."""
        raw = without_access(victim.image.read(victim.line_offset(copy, row_id), 64))
        return Row._make(ROW_STRUCT.unpack(raw)) if raw in world.lines[row_id] else None
