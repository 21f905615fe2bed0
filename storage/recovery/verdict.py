"""Step 10: the counts, the refusal (R6), and what the engine starts from."""

from __future__ import annotations

import numpy as np

from storage.checkpoint.copy_state import CopyState, empty_directory
from storage.format.checkpoint_copy import Directory
from storage.format.row import SEQ_MAX, FreeReason, SlotState, plausible
from storage.journal import JournalPosition
from storage.recovery.copies import FoundCopy
from storage.recovery.errors import InvalidRowsFound, TooMuchSkipped
from storage.recovery.journal_scan import FoundJournal, JournalContent
from storage.recovery.pages import BadLine
from storage.recovery.replay import row_ids_of
from storage.recovery.report import SkippedEntry, SkipReason
from storage.recovery.result import Recovered, RecoveryLimits
from storage.recovery.settle import Settler
from storage.recovery.unflushed import Unflushed
from storage.recovery.work import RecoveryWork
from storage.slot_table import SlotTable


class Verdict:
    def __init__(self, work: RecoveryWork) -> None:
        self._work = work
        self._reader = work.reader
        self._superblock = work.superblock
        self._geometry = work.geometry
        self._report = work.report
        self._index = work.index
        self._catalogue = work.catalogue

    def count(self, now_seconds: float) -> None:
        """Fill the report."""
        table = self._index.table
        self._report.expired = self._expired(now_seconds)
        importing = {namespace.namespace_id for namespace in self._index.namespaces.importing()}
        entries = sum(n.entries for n in self._index.namespaces.by_id.values() if n.namespace_id not in importing)
        self._report.recovered = entries - self._report.expired
        known = {(r.reason, r.slab, r.slot, r.raw) for r in self._catalogue.open_skipped()}
        # Found by an earlier start, which could not say any more that the journal was flushed: it counts once (R9).
        self._work.bad = [
            line for line in self._work.bad if (line.reason.value, *self._place(line), line.raw) not in known
        ]
        for record in self._catalogue.open_skipped():
            self._report.skipped.append(
                SkippedEntry(
                    SkipReason(record.reason),
                    record.copy_plus_one - 1,
                    record.page,
                    record.slab,
                    record.slot,
                    record.raw,
                    record.namespace_id,
                    record.write_id,
                    record.digest,
                    record.key,
                )
            )
        settler = Settler(self._reader, self._index, self._superblock, 0)
        for line in self._work.bad:
            line.header = settler.header(line.row_id) if line.row_id else None
            self._report.skipped.append(skipped_entry(table, line))
        partial = self._catalogue.partial
        if partial is not None and partial.unknown_loss and not self._report.unknown_loss:
            self._report.unknown_loss = "found by an earlier start"

    def _expired(self, now_seconds: float) -> int:
        """Live entries whose time is over."""
        if not self._index.expiring:
            return 0
        table, namespaces = self._index.table, self._index.namespaces
        row_ids = table.row_ids_where(
            lambda lines: (
                (lines["state"] == SlotState.LIVE) & (lines["expires_at"] > 0) & (lines["expires_at"] <= now_seconds)
            )
        )
        nobodys = [*namespaces.wiped, *(namespace.namespace_id for namespace in namespaces.importing())]
        return int(np.count_nonzero(~np.isin(table.lines["namespace_id"][row_ids], nobodys)))

    def _place(self, line: BadLine) -> tuple[int, int]:
        return self._index.table.place_of(line.row_id) if line.row_id else (0, 0)

    def judge(self, limits: RecoveryLimits) -> None:
        """R6: refuse before anything is written."""
        invalid = sum(1 for line in self._work.bad if line.reason is SkipReason.INVALID_ROW)
        skipped = len(self._work.bad)
        total = skipped + self._report.recovered + self._report.expired
        if skipped <= limits.max_skipped_floor or skipped <= limits.max_skipped_ratio * total:
            return
        counts = {reason: count for reason, count in self._report.by_reason().items() if count}
        if invalid > limits.max_skipped_floor:
            raise InvalidRowsFound(f"{invalid} of {total} entries", counts=counts)
        if not limits.accept_loss:
            raise TooMuchSkipped(f"{skipped} of {total} entries: {counts}", counts=counts)

    def result(
        self,
        copies: list[FoundCopy],
        number: int,
        found: FoundJournal,
        content: JournalContent,
        unflushed: Unflushed,
    ) -> Recovered:
        """What the engine starts from. ``number`` is that of the newest checkpoint known of."""
        highest = max(
            [
                self._catalogue.highest_seq,
                *(c.header.seq for c in copies if c.header is not None),
                int(content.rows["seq"].max(initial=0, where=content.rows["seq"] <= SEQ_MAX)),
                int(self._index.table.page_seq.max()),
            ]
        )
        starts = [self._superblock.start_count, self._catalogue.start_count, found.start_count]
        # Lost blocks may have used seqs that nothing else names: leave room for as many as they can hold.
        room = len(found.missing) * self._geometry.block_bytes
        partial = self._catalogue.partial
        states = [CopyState(c.copy, c.header if c.valid else None, _directory(c, self._geometry.pages)) for c in copies]
        self._mark_unvoided(content, found.complete_since)
        self._catalogue.install_evidence(self._index)
        self._distrust_old_evidence(found.complete_since)
        if partial is not None and self._index.evidence.unknown:
            self._index.evidence.forget_touched()
        return Recovered(
            superblock=self._superblock,
            index=self._index,
            copies=states,
            number=number,
            position=JournalPosition(
                last_block=found.last_block,
                last_checksum=found.last_checksum,
                tail=found.tail,
                complete_since=found.complete_since,
                flushed_through=found.flushed_through,
                next_seq=highest + room + 1,
                start_count=max(starts) + 1,
            ),
            report=self._report,
            new_skipped=self._report.skipped[len(self._report.skipped) - len(self._work.bad) :],
            newly_unknown=bool(self._report.unknown_loss) and (partial is None or not partial.unknown_loss),
            corrections=sorted(unflushed.corrections),
            counts_before=dict(partial.counts) if partial is not None else {},
        )

    def _distrust_old_evidence(self, complete_since: int) -> None:
        """Slots quarantined before what the journal still reaches: that nobody put or deleted their keys since can't be
        known any more, so they count as superseded (R5)."""
        if not any(self._index.quarantined):
            return
        table = self._index.table
        old = table.row_ids_where(
            lambda lines: (lines["state"] == SlotState.QUARANTINED) & (lines["seq"] <= complete_since)
        )
        self._index.evidence.superseded.update(table.place_of(row_id) for row_id in old.tolist())

    def _mark_unvoided(self, content: JournalContent, complete_since: int) -> None:
        """Freed slots whose headers may still verify: all whose freeing row the journal still holds.

        That is more than seqs tell: a row journaled once more, because its slot was in use, keeps its old seq.
        """
        table = self._index.table
        row_ids = table.row_ids_where(
            lambda lines: (lines["state"] == SlotState.FREE) & (lines["reason"] != FreeReason.NEVER_USED)
        )
        spoken_of, exists = row_ids_of(self._index, content.rows)
        due = (table.lines["seq"][row_ids] > complete_since) | np.isin(row_ids, spoken_of[exists])
        self._index.slots.freed_unvoided.add_all(row_ids[due])
        self._index.slots.freed_unvoided.update(self._report.stale_headers)


def skipped_entry(table: SlotTable, line: BadLine) -> SkippedEntry:
    """The report's entry of a line: place, raw row, and what row or record header know of the key."""
    slab, slot = table.place_of(line.row_id) if line.row_id else (0, 0)
    place = (line.reason, line.copy, line.page, slab, slot, line.raw)
    if line.header is not None:
        header = line.header
        return SkippedEntry(*place, header.namespace_id, header.write_id, header.digest, header.map.key)
    row = SkippedEntry(*place).claimed()
    if row.state == SlotState.LIVE and plausible(row):
        return SkippedEntry(*place, row.namespace_id, row.write_id, row.digest)
    return SkippedEntry(*place)


def _directory(copy: FoundCopy, pages: int) -> Directory:
    return copy.directory if copy.valid and copy.directory is not None else empty_directory(pages)
