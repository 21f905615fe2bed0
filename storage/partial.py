"""Partial recovery as a state: what was skipped, kept through restarts, until an operator accepts the loss (R4, R5).

The state and its report are catalogue records of the journal; skipped slots are quarantined rows. A later start finds
both, so it reports the same and diagnoses nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import quote_from_bytes

from storage.commit import Commit
from storage.errors import JournalUnavailable
from storage.evidence import Place
from storage.format.catalogue import AcknowledgedRecord, CatalogueRecord, PartialRecord, SkippedRecord
from storage.format.record import RecordHeader
from storage.format.row import Row, SlotState, plausible
from storage.index import Index
from storage.journal import Journal, Unit
from storage.limits import SKIPPED_LISTED_MAX
from storage.recovery.recover import Recovered
from storage.recovery.report import RepairSource, SkippedEntry, SkippedView, SkipReason
from storage.retry import RETRIABLE, Retrier, RetryResult
from storage.table_walk import PAGES_AT_ONCE, page_runs, row_ids_where
from storage.turns import Turns
from storage.waiting import UNITS_AT_ONCE, wait_all


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
        self._acknowledging = asyncio.Lock()
        self._restore_counts(recovered.counts_before)

    @property
    def unknown_loss(self) -> bool:
        return self.open and bool(self._report.unknown_loss)

    def _restore_counts(self, before: dict[str, int]) -> None:
        """While partial, the report is that of the start that found it: counts that later starts can't see stay, and
        what was repaired then is not counted once more, by whatever source has it now.
        """
        found_more = bool(self._recovered.new_skipped) or self._recovered.newly_unknown
        if before and not found_more:
            for source in self._report.repaired:
                self._report.repaired[source] = 0
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

    def join_findings(self) -> Iterator[Unit]:
        """Join what this recovery newly found, one by one: the state, each skipped entry, its slot's quarantine."""
        recovered = self._recovered
        if not recovered.new_skipped and not recovered.newly_unknown:
            return
        yield self._commit.record(self._partial_record)
        for entry in recovered.new_skipped:
            yield self._commit.record(partial(_skipped_record, entry))
            if entry.reason is not SkipReason.OUT_OF_RANGE:
                row_id = self._index.table.row_id(entry.slab, entry.slot)
                yield self._commit.quarantine_skipped(row_id, self._known(entry, row_id))

    def _partial_record(self, seq: int) -> PartialRecord:
        return PartialRecord(seq, int(self._clock() * 1000), bool(self._report.unknown_loss), self._counts())

    def _known(self, entry: SkippedEntry, row_id: int) -> Row:
        """The slot's row with what is known of the skipped entry: evidence, which no reader follows."""
        claimed = entry.claimed()
        row = claimed if claimed.state == SlotState.LIVE and plausible(claimed) else self._index.table.row(row_id)
        if not entry.digest:
            return row
        return row._replace(namespace_id=entry.namespace_id, write_id=entry.write_id, digest=entry.digest)

    def found_free_slot(self, row_id: int, raw: bytes, header: RecordHeader) -> None:
        """A free slot may hold what a journal gap took: one more skipped entry, unless it is in the report already."""
        slab, slot = self._index.table.place_of(row_id)
        if any((e.slab, e.slot, e.reason) == (slab, slot, SkipReason.JOURNAL_GAP) for e in self._report.skipped):
            return
        entry = SkippedEntry(
            SkipReason.JOURNAL_GAP,
            -1,
            self._index.table.page_of(row_id),
            slab,
            slot,
            raw,
            header.namespace_id,
            header.write_id,
            header.digest,
            header.map.key,
        )
        self._report.skipped.append(entry)
        with contextlib.suppress(JournalUnavailable):  # the next start finds it again
            self._commit.record(partial(_skipped_record, entry))

    def records(self) -> list[CatalogueRecord]:
        """The state as records, for compaction: under seqs of their own, ahead of everything since."""
        if not self.open:
            return []
        records: list[CatalogueRecord] = [self._partial_record(self._journal.draw_seq())]
        records += [_skipped_record(entry, self._journal.draw_seq()) for entry in self._report.skipped]
        return records

    # -- the ways out ---------------------------------------------------------------------------------------------

    async def _quarantined(self) -> list[int]:
        found: list[int] = []
        turns = Turns(PAGES_AT_ONCE)
        for pages in page_runs(self._index.table) if any(self._index.quarantined) else ():
            found += row_ids_where(
                self._index.table, pages, lambda rows: rows["state"] == SlotState.QUARANTINED
            ).tolist()
            await turns.after(pages[1] - pages[0])
        return found

    async def acknowledge(self) -> None:
        """Accept the loss, durably; then free every quarantined slot. Raises JournalUnavailable, FlushFailed."""
        async with self._acknowledging:
            await self._end()
            row_ids = await self._quarantined()
            for begin in range(0, len(row_ids), UNITS_AT_ONCE):
                await self._release(row_ids[begin : begin + UNITS_AT_ONCE])
            await self._journal.flush()

    async def _release(self, row_ids: list[int]) -> None:
        """Free those that are quarantined still: a retry may have brought some back meanwhile, or be about to."""
        table, leaving = self._index.table, self._index.evidence.leaving
        units: list[Unit] = []
        places: list[Place] = []
        for row_id in row_ids:
            place = table.place_of(row_id)
            if table.lines["state"][row_id] == SlotState.QUARANTINED and place not in leaving:
                units.append(self._commit.release_quarantined(row_id))
                places.append(place)
                leaving.add(place)
        try:
            await wait_all(units)
        except JournalUnavailable:
            leaving.difference_update(places)
            raise

    async def _end(self) -> None:
        """The partial state ends, durably, before any evidence is given up."""
        now_ms = int(self._clock() * 1000)
        counts = {f"skipped.{reason}": count for reason, count in self._report.by_reason().items() if count}
        acknowledged = self._commit.record(lambda seq: AcknowledgedRecord(seq, now_ms, counts | self._counts()))
        assert acknowledged.done is not None
        await self._journal.flush_through(await acknowledged.done)
        self.open = False
        self._report.acknowledged_ms = now_ms

    async def retry(self, retrier: Retrier) -> RetryResult:
        """Try quarantined slots again; the partial state ends if nothing is left of it.

        Raises JournalUnavailable, FlushFailed, Busy.
        """
        by_place = {(e.slab, e.slot): e for e in self._report.skipped if e.reason is not SkipReason.OUT_OF_RANGE}
        places = {row_id: self._index.table.place_of(row_id) for row_id in await self._quarantined()}
        tried = [r for r, p in places.items() if p not in by_place or by_place[p].reason in RETRIABLE]
        result, restored = await retrier.run(tried)
        result.still_skipped += len(places) - len(tried)
        gone = {places[row_id] for row_id in restored}
        before = len(self._report.skipped)
        self._report.skipped = [
            e for e in self._report.skipped if e.reason is SkipReason.OUT_OF_RANGE or (e.slab, e.slot) not in gone
        ]
        self._report.repaired[RepairSource.RETRY] += before - len(self._report.skipped)
        if self.open and not self._report.partial:
            await self._end()
        elif self.open and restored:
            unit = self._commit.record(self._partial_record)  # the counts of what was repaired survive a restart
            assert unit.done is not None
            await unit.done
        return result

    # -- the report -----------------------------------------------------------------------------------------------

    def skipped(self, start: int, limit: int) -> list[SkippedView]:
        """A page of the report, in the order found."""
        return [self._view(entry) for entry in self._report.skipped[start : min(start + limit, SKIPPED_LISTED_MAX)]]

    def _view(self, entry: SkippedEntry) -> SkippedView:
        namespace = self._index.namespaces.by_id.get(entry.namespace_id)
        placed = entry.reason is not SkipReason.OUT_OF_RANGE
        return SkippedView(
            reason=entry.reason.value,
            copy=entry.copy if entry.copy >= 0 else None,
            page=entry.page if placed else None,
            slab=entry.slab if placed else None,
            slot=entry.slot if placed else None,
            superseded=(entry.slab, entry.slot) in self._index.evidence.superseded,
            namespace=namespace.name if namespace is not None else None,
            key=quote_from_bytes(entry.key) if entry.key else None,
            digest=entry.digest.hex() if entry.digest else None,
            write_id=f"{entry.write_id:016x}" if entry.write_id else None,
            raw=entry.raw.hex(),
        )


def _skipped_record(entry: SkippedEntry, seq: int) -> SkippedRecord:
    return SkippedRecord(
        seq,
        entry.reason.value,
        entry.copy + 1,
        entry.page,
        entry.slab,
        entry.slot,
        entry.raw,
        entry.namespace_id,
        entry.write_id,
        entry.digest,
        entry.key,
    )
