"""Journal compaction: while checkpoints are frozen, the tail moves because rows still current are appended again (R4).

Rows keep their seqs, so replay, which goes by seq only, is not disturbed by rows that appear twice. What the journal
is complete for does not change: from the new tail on it still holds the newest row of every slot that changed since
the oldest copy, so each copy stays as good a base as before. It fits: the ring holds three rows per slot, and a
compaction begins when half of it is used and writes each row once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from storage.commit import Commit
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceWipedRecord,
    SlabRecord,
    SlotFailuresRecord,
    SupersededRecord,
)
from storage.format.row import FreeReason
from storage.index import Index
from storage.journal import Journal, Unit
from storage.namespaces import namespace_record

log = logging.getLogger("rawblockd.storage")

UNITS_AT_ONCE = 64
"""Units joined before waiting, so that requests' units come between them."""


class Compactor:
    def __init__(
        self, index: Index, journal: Journal, commit: Commit, report_records: Callable[[], list[CatalogueRecord]]
    ) -> None:
        self._index = index
        self._journal = journal
        self._commit = commit
        self._report_records = report_records
        """The partial state and its report, which must not leave the journal."""

    async def run(self) -> None:
        """Append what is still current, flush, move the tail. Raises JournalUnavailable, FlushFailed."""
        cut = self._journal.last_block
        since = self._journal.complete_since
        units = self._row_units(since)
        rows = sum(len(unit.rows) for unit in units)
        for begin in range(0, len(units), UNITS_AT_ONCE):
            await self._join(units[begin : begin + UNITS_AT_ONCE])
        records = [*self._current_records(since), *self._report_records()]
        for begin in range(0, len(records), UNITS_AT_ONCE):
            part = records[begin : begin + UNITS_AT_ONCE]
            await self._join([Unit(records=[record], privileged=True, makes_room=True) for record in part])
        await self._journal.flush()
        # A checkpoint that an acknowledgement began meanwhile may have moved the tail further already.
        self._journal.move_tail(max(cut + 1, self._journal.tail), since)
        log.info("journal compacted", extra={"fields": {"rows": rows, "tail": cut + 1}})

    async def _join(self, units: list[Unit]) -> None:
        for done in [self._journal.join(unit) for unit in units]:
            await done

    def _row_units(self, since: int) -> list[Unit]:
        """Every row changed after ``since``, as it stands, as many to a unit as a block takes."""
        lines = self._index.table.lines
        row_ids = self._index.table.row_ids()
        changed = (lines["seq"][row_ids] > since) & (lines["reason"][row_ids] != FreeReason.NEVER_USED)
        changed |= (lines["seq"][row_ids] > since) & (lines["state"][row_ids] != 0)
        row_ids = row_ids[changed]
        row_ids = row_ids[np.argsort(lines["seq"][row_ids], kind="stable")]
        step = self._index.geometry.rows_per_journal_block
        return [self._commit.renewal(row_ids[b : b + step].tolist()) for b in range(0, len(row_ids), step)]

    def _current_records(self, since: int) -> list[CatalogueRecord]:
        table = self._index.table
        records: list[CatalogueRecord] = [
            SlabRecord(int(table.slab_seq[slab]), slab, int(table.slab_class[slab]), int(table.slab_generation[slab]))
            for slab in np.flatnonzero(table.slab_seq > since).tolist()
        ]
        namespaces = self._index.namespaces
        records += [namespace_record(n) for n in namespaces.by_id.values()]
        records += [NamespaceWipedRecord(seq, i) for i, seq in namespaces.wiped.items() if seq > since]
        records += [NamespaceWipedRecord(namespaces.wiped[i], i) for i in namespaces.dying]
        evidence = self._index.evidence
        draw = self._journal.draw_seq
        records += [SupersededRecord(draw(), slab, slot) for slab, slot in sorted(evidence.superseded)]
        records += [SlotFailuresRecord(draw(), *place, failures) for place, failures in evidence.failures.items()]
        return records
