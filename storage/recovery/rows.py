"""Steps 5 to 9: from pages, journal and record headers to the rows of the table."""

from __future__ import annotations

import numpy as np

from storage.format.row import Rows, SlotState, encode_row
from storage.identity import Identity
from storage.key_map import SortedKeys, sorted_keys
from storage.recovery.copies import FoundCopy, copy_header
from storage.recovery.journal_scan import FoundJournal, JournalContent
from storage.recovery.pages import BadLine, PageLoader
from storage.recovery.replay import apply_rows, bad_line, duplicate_keys, removed_since
from storage.recovery.report import RepairSource, SkippedEntry, SkipReason
from storage.recovery.settle import Settler
from storage.recovery.unflushed import Prover, Unflushed
from storage.recovery.work import RecoveryWork


class RowRecovery:
    def __init__(self, work: RecoveryWork) -> None:
        self._work = work
        self._device = work.device
        self._reader = work.reader
        self._superblock = work.superblock
        self._progress = work.progress
        self._report = work.report
        self._index = work.index
        self._catalogue = work.catalogue
        self._keys: SortedKeys | None = None
        """All live rows, from the search for duplicates to the building of the index, unless a row goes between."""

    def load(self, usable: list[FoundCopy], content: JournalContent, found: FoundJournal) -> None:
        """Steps 5 to 7 on the newest copy, with the older ones as second sources."""
        self._progress.step = "pages"
        loaded = PageLoader(self._reader, self._index, self._superblock.uuid, usable).load(self._progress)
        self._progress.step, self._progress.ratio = "rows", 0.8
        flushed = content.rows_through(found.flushed_through)
        spoken_of, bad = apply_rows(self._index, flushed)
        if found.missing:
            bad += self._take_removed(flushed)
        self._count_repaired_pages(loaded.repaired_pages)
        settled, wrong = set(spoken_of.tolist()), {line.row_id for line in bad if line.row_id}
        lost = [line for line in loaded.bad_lines if line.row_id not in settled | wrong]
        repaired = [line for line in loaded.bad_lines if line.row_id in settled and self._is_live(line.row_id)]
        self._report.repaired[RepairSource.JOURNAL] += len(repaired)
        lost += Settler(self._reader, self._index, self._superblock, copy_header(usable[0]).seq).settle(
            loaded.lost_pages, wrong, self._report
        )
        self._work.bad += lost + [line for line in bad if line.row_id or not self._is_known(line)]

    def _take_removed(self, rows: Rows) -> list[BadLine]:
        """After a gap: live rows whose key was removed later; the row that freed the slot is among those lost."""
        table, lines = self._index.table, []
        for row_id in removed_since(self._index, rows):
            lines.append(BadLine(row_id, -1, table.page_of(row_id), SkipReason.JOURNAL_GAP, table.raw(row_id)))
            table.lines[row_id] = np.zeros((), dtype=table.lines.dtype)
        return lines

    def _is_known(self, line: BadLine) -> bool:
        """Whether an earlier start reported this row of the journal, which it can't quarantine: it has no slot."""
        since = self._catalogue.acknowledged.seq if self._catalogue.acknowledged is not None else 0
        return SkippedEntry(line.reason, -1, 0, 0, 0, line.raw).claimed().seq <= since or any(
            record.raw == line.raw for record in self._catalogue.open_skipped()
        )

    def _is_live(self, row_id: int) -> bool:
        return self._index.table.state(row_id) == SlotState.LIVE

    def _count_repaired_pages(self, pages: list[int]) -> None:
        """Entries whose page came from an older copy count as repaired by it."""
        lines, geometry = self._index.table.lines, self._index.geometry
        per_page = geometry.block_bytes // 64
        for page in pages:
            states = lines["state"][page * per_page + 1 : (page + 1) * per_page]
            self._report.repaired[RepairSource.OLDER_COPY] += int((states == SlotState.LIVE).sum())

    def settle_duplicates(self) -> None:
        """Step 8."""
        settler = Settler(self._reader, self._index, self._superblock, 0)
        table = self._index.table
        self._keys = sorted_keys(table)
        for row_id in duplicate_keys(self._index, self._keys, settler.proves):
            self._keys = None
            page = table.page_of(row_id)
            self._work.bad.append(BadLine(row_id, -1, page, SkipReason.DUPLICATE_KEY, table.raw(row_id)))
            table.lines[row_id] = np.zeros((), dtype=table.lines.dtype)

    def prove_live_rows(self, copy: int) -> None:
        """Skip every live row that the record header in its slot does not prove."""
        table = self._index.table
        settler = Settler(self._reader, self._index, self._superblock, 0)
        for row_id in table.live_row_ids().tolist():
            if not settler.proves(row_id):
                self._keys = None
                page, raw = table.page_of(row_id), table.raw(row_id)
                self._work.bad.append(BadLine(row_id, copy, page, SkipReason.HEADER_MISMATCH, raw))
                table.lines[row_id] = np.zeros((), dtype=table.lines.dtype)

    def prove_unflushed(self, content: JournalContent, found: FoundJournal) -> Unflushed:
        """Step 9; the index is derived from then on."""
        self._progress.step, self._progress.ratio = "unflushed", 0.9
        withheld = self._withhold_bad_slots()
        self._index.derive(self._keys)
        self._keys = None
        rows = content.rows[content.row_blocks > found.flushed_through]
        if not len(rows):
            return Unflushed()
        prover = Prover(self._device, self._index, Identity(self._superblock, 1))
        try:
            unflushed = prover.apply(rows)
        finally:
            prover.close()
        self._index.derive_slots()  # rows changed beneath them
        self._settle_by_proof(withheld)
        self._work.bad += [bad_line(self._index, raw, row_id) for row_id, raw in unflushed.wrong]
        self._report.lost_unflushed += len(unflushed.unproven)
        return unflushed

    def _withhold_bad_slots(self) -> set[int]:
        """Until the engine journals their quarantine, slots of skipped lines are quarantined in memory only.

        Returns their row ids.
        """
        table = self._index.table
        withheld = set()
        for line in self._work.bad:
            if line.row_id and not table.lines["seq"][line.row_id]:
                slab, slot = table.place_of(line.row_id)
                raw = encode_row(
                    self._index.seed,
                    state=SlotState.QUARANTINED,
                    slot_class=int(table.slab_class[slab]),
                    slab=slab,
                    slot=slot,
                    seq=int(table.slab_seq[slab]),
                    reason=1,
                )
                table.set_row(line.row_id, raw, int(table.slab_seq[slab]))
                withheld.add(line.row_id)
        return withheld

    def _settle_by_proof(self, withheld: set[int]) -> None:
        """A slot that a row behind the last flush, once proven, speaks of is settled by it, whatever its page said."""
        table = self._index.table
        settled = {row_id for row_id in withheld if table.state(row_id) != SlotState.QUARANTINED}
        self._report.repaired[RepairSource.JOURNAL] += sum(self._is_live(row_id) for row_id in settled)
        self._work.bad = [line for line in self._work.bad if line.row_id not in settled]
