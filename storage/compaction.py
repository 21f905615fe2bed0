"""Journal compaction: while checkpoints are frozen, the tail moves because rows still current are appended again (R4).

Rows keep their seqs, so replay, which goes by seq only, is not disturbed by rows that appear twice, nor does it matter
in which order they are appended: they are found by going through the table, some pages at a time. A row that changes
before the walk comes to it stands in the journal behind the new tail anyway. What the journal
is complete for does not change: from the new tail on it still holds the newest row of every slot that changed since
the oldest copy, so each copy stays as good a base as before. It fits: the ring holds three rows per slot, and a
compaction begins when half of it is used and writes each row once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from storage.commit import Commit
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceWipedRecord,
    SlabRecord,
    SlotFailuresRecord,
    SupersededRecord,
)
from storage.format.row import FreeReason, Rows
from storage.index import Index
from storage.journal import Journal, Unit
from storage.namespaces import namespace_record
from storage.table_walk import page_runs, row_ids_where

log = logging.getLogger("rawblockd.storage")

UNITS_AT_ONCE = 32
"""Units joined before waiting, so that requests' units come between them: up to 62 rows each, some 2 ms in all."""


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
        rows = await self._append_rows(since)
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

    async def _append_rows(self, since: int) -> int:
        """Every row changed after ``since``, as it stands, as many to a unit as a block takes; how many."""

        def have_changed(rows: Rows) -> npt.NDArray[np.bool_]:
            changed: npt.NDArray[np.bool_] = (rows["reason"] != FreeReason.NEVER_USED) | (rows["state"] != 0)
            changed &= rows["seq"] > since
            return changed

        table, step = self._index.table, self._index.geometry.rows_per_journal_block
        waiting: list[int] = []
        count = 0
        for pages in page_runs(table):
            waiting += row_ids_where(table, pages, have_changed).tolist()
            # Whole blocks, of the rows as they stand when they are joined.
            while len(waiting) >= step * UNITS_AT_ONCE:
                part, waiting = waiting[: step * UNITS_AT_ONCE], waiting[step * UNITS_AT_ONCE :]
                count += await self._append(part)
            await asyncio.sleep(0)
        return count + await self._append(waiting)

    async def _append(self, row_ids: list[int]) -> int:
        """Those of the rows that still are some: since they were found their slab may have gone to another class."""
        table, step = self._index.table, self._index.geometry.rows_per_journal_block
        row_ids = [row_id for row_id in row_ids if table.row(row_id).seq]
        await self._join([self._commit.renewal(row_ids[b : b + step]) for b in range(0, len(row_ids), step)])
        return len(row_ids)

    def _current_records(self, since: int) -> list[CatalogueRecord]:
        table = self._index.table
        records: list[CatalogueRecord] = [
            SlabRecord(int(table.slab_seq[slab]), slab, int(table.slab_class[slab]), int(table.slab_generation[slab]))
            for slab in np.flatnonzero(table.slab_seq > since).tolist()
        ]
        namespaces = self._index.namespaces
        records += [namespace_record(n) for n in namespaces.by_id.values()]
        records += [NamespaceWipedRecord(seq, i) for i, seq in namespaces.wiped.items() if seq > since]
        records += namespaces.dying_records()
        evidence = self._index.evidence
        draw = self._journal.draw_seq
        records += [SupersededRecord(draw(), slab, slot) for slab, slot in sorted(evidence.superseded)]
        records += [SlotFailuresRecord(draw(), *place, failures) for place, failures in evidence.failures.items()]
        return records
