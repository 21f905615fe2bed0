"""Partial recovery as a state: what was skipped, kept through restarts, until an operator accepts the loss (R4, R5).

The state and its report are catalogue records of the journal; skipped slots are quarantined rows. A later start finds
both, so it reports the same and diagnoses nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from storage.commit import Commit
from storage.format.catalogue import AcknowledgedRecord, CatalogueRecord, PartialRecord, SkippedRecord
from storage.format.row import Row, SlotState, plausible
from storage.index import Index
from storage.journal import Journal, Unit
from storage.limits import SKIPPED_LISTED_MAX
from storage.recovery.recover import Recovered
from storage.recovery.report import SkippedEntry, SkippedView, SkipReason


class PartialRecovery:
    def __init__(
        self, recovered: Recovered, index: Index, commit: Commit, journal: Journal, clock: Callable[[], float]
    ) -> None:
        self._recovered = recovered
        self._report = recovered.report
        self._index = index
        self._commit = commit
        self._journal = journal
        self._clock = clock
        self.open = self._report.partial
        self._restore_counts(recovered.counts_before)

    @property
    def unknown_loss(self) -> bool:
        return self.open and bool(self._report.unknown_loss)

    def _restore_counts(self, before: dict[str, int]) -> None:
        """While partial, the report is that of the start that found it: counts that later starts can't see stay."""
        for name, value in before.items():
            if name.startswith("repaired."):
                source = name.removeprefix("repaired.")
                self._report.repaired[source] = max(self._report.repaired[source], value)
            elif name in ("lost_unflushed", "superseded"):
                setattr(self._report, name, max(getattr(self._report, name), value))

    def _counts(self) -> dict[str, int]:
        counts = {f"repaired.{source}": count for source, count in self._report.repaired.items() if count}
        counts |= {"lost_unflushed": self._report.lost_unflushed, "superseded": self._report.superseded}
        return counts

    # -- at start -------------------------------------------------------------------------------------------------

    def join_findings(self) -> list[Unit]:
        """Join what this recovery newly found: the state, each skipped entry, the quarantine of its slot."""
        recovered = self._recovered
        if not recovered.new_skipped and not recovered.newly_unknown:
            return []
        units = [self._commit.record(self._partial_record)]
        for line in recovered.new_skipped:
            slab, slot = self._index.table.place_of(line.row_id) if line.row_id else (0, 0)
            units.append(
                self._commit.record(
                    lambda seq, line=line, slab=slab, slot=slot: SkippedRecord(  # type: ignore[misc]
                        seq, line.reason.value, line.copy + 1, line.page, slab, slot, line.raw
                    )
                )
            )
            if line.row_id:
                units.append(self._commit.quarantine_skipped(line.row_id, self._claimed(line.raw)))
        return units

    def _partial_record(self, seq: int) -> PartialRecord:
        return PartialRecord(seq, int(self._clock() * 1000), bool(self._report.unknown_loss), self._counts())

    def _claimed(self, raw: bytes) -> Row | None:
        """What a raw row says, if a row could say it."""
        row = SkippedEntry(SkipReason.CHECKSUM, 0, 0, 0, 0, raw).claimed()
        return row if row.state == SlotState.LIVE and plausible(row) else None

    def found_free_slot(self, row_id: int, raw: bytes) -> None:
        """A free slot was set aside after a journal gap: one more skipped entry."""
        slab, slot = self._index.table.place_of(row_id)
        page = self._index.table.page_of(row_id)
        self._report.skipped.append(SkippedEntry(SkipReason.JOURNAL_GAP, -1, page, slab, slot, raw))
        self._commit.record(lambda seq: SkippedRecord(seq, SkipReason.JOURNAL_GAP.value, 0, page, slab, slot, raw))

    def records(self) -> list[CatalogueRecord]:
        """The state as records, for compaction: under seqs of their own, ahead of everything since."""
        if not self.open:
            return []
        records: list[CatalogueRecord] = [self._partial_record(self._journal.draw_seq())]
        for entry in self._report.skipped:
            seq = self._journal.draw_seq()
            records.append(
                SkippedRecord(seq, entry.reason.value, entry.copy + 1, entry.page, entry.slab, entry.slot, entry.raw)
            )
        return records

    # -- the way out ----------------------------------------------------------------------------------------------

    async def acknowledge(self) -> None:
        """Accept the loss, durably; then free every quarantined slot. Raises JournalUnavailable, FlushFailed."""
        now_ms = int(self._clock() * 1000)
        counts = {f"skipped.{reason}": count for reason, count in self._report.by_reason().items() if count}
        acknowledged = self._commit.record(lambda seq: AcknowledgedRecord(seq, now_ms, counts | self._counts()))
        assert acknowledged.done is not None
        await self._journal.flush_through(await acknowledged.done)
        self.open = False
        self._report.acknowledged_ms = now_ms
        row_ids = self._index.table.row_ids()
        quarantined = row_ids[self._index.table.lines["state"][row_ids] == SlotState.QUARANTINED]
        for unit in self._commit.release_quarantined(np.sort(quarantined).tolist()):
            assert unit.done is not None
            await unit.done
        await self._journal.flush()

    def skipped(self, start: int, limit: int) -> list[SkippedView]:
        """A page of the report, in the order found."""
        return [self._view(entry) for entry in self._report.skipped[start : min(start + limit, SKIPPED_LISTED_MAX)]]

    def _view(self, entry: SkippedEntry) -> SkippedView:
        claimed = self._claimed(entry.raw)
        namespace = self._index.namespaces.by_id.get(claimed.namespace_id) if claimed is not None else None
        return SkippedView(
            reason=entry.reason.value,
            copy=entry.copy if entry.copy >= 0 else None,
            page=entry.page,
            slab=entry.slab,
            slot=entry.slot,
            namespace=namespace.name if namespace is not None else None,
            digest=claimed.digest.hex() if claimed is not None else None,
            write_id=claimed.write_id if claimed is not None else None,
            raw=entry.raw.hex(),
        )
