"""Steps 2 and 3: the checkpoint copies and the journal, and what of them can be relied on."""

from __future__ import annotations

from storage.errors import SettingsInvalid
from storage.format.catalogue import AcknowledgedRecord
from storage.format.row import SlotState
from storage.recovery.copies import FoundCopy, copy_header, read_copies
from storage.recovery.journal_scan import FoundJournal, JournalContent, Ring, find_chain, read_content, read_ring
from storage.recovery.work import RecoveryWork
from storage.status import CopyStatus


class Sources:
    def __init__(self, work: RecoveryWork) -> None:
        self._work = work
        self._reader = work.reader
        self._geometry = work.geometry
        self._progress = work.progress
        self._report = work.report
        self._history_missing: list[int] = []

    # -- copies ---------------------------------------------------------------------------------------------------

    def read_copies(self) -> list[FoundCopy]:
        """All copies, with their verdicts in the report."""
        self._progress.step = "copies"
        copies = read_copies(self._reader, self._geometry, self._work.superblock.uuid)
        for copy in copies:
            header = copy.header
            written_at = header.written_ms / 1000 if header else 0.0
            self._report.copies.append(CopyStatus(copy.copy, header.seq if header else 0, copy.verdict, written_at))
        return copies

    def adopt(self, usable: list[FoundCopy], seq: int) -> list[FoundCopy]:
        """The copy with this seq and older ones; newer ones count as not written. Raises SettingsInvalid."""
        for position, copy in enumerate(usable):
            if copy_header(copy).seq == seq:
                for newer in usable[:position]:
                    newer.verdict = "newer than the one adopted"
                return usable[position:]
        seqs = ", ".join(str(copy_header(copy).seq) for copy in usable) or "none"
        raise SettingsInvalid(f"no valid copy has seq {seq}; there are: {seqs}")

    def reaching(self, usable: list[FoundCopy], found: FoundJournal) -> list[FoundCopy]:
        """The base, and the older copies that are exact second sources."""
        return [c for c in usable if c is usable[0] or self._reaches(found, c)]

    def _reaches(self, found: FoundJournal, copy: FoundCopy) -> bool:
        """An older copy is a second source only if the journal holds everything since it."""
        header = copy_header(copy)
        whole = not any(n >= header.journal_block for n in self._history_missing)
        return whole and header.seq >= found.complete_since

    # -- journal --------------------------------------------------------------------------------------------------

    def read_ring(self) -> Ring:
        """The journal's area."""
        self._progress.step = "journal"
        return read_ring(self._reader, self._geometry, self._work.superblock.uuid, self._progress)

    def scan(self, usable: list[FoundCopy]) -> FoundJournal:
        """The chain from the base on; blocks between an older copy and the base are history, kept where whole."""
        base = copy_header(usable[0])
        first = base.journal_block
        ring = self.read_ring()
        found = find_chain(ring, self._geometry, first=first, known_flushed=first - 1)
        oldest = min(copy_header(c).journal_block for c in usable)
        if not found.chain or base.tail > found.tail:
            # No block written since the newest checkpoint says where the tail is: the checkpoint itself moved it there.
            found.tail = max(oldest, base.tail)
            found.complete_since = max(found.complete_since, min(copy_header(c).seq for c in usable))
        if oldest < first:
            history = find_chain(ring, self._geometry, first=max(oldest, found.tail), known_flushed=first - 1)
            self._history_missing = [n for n in history.missing if n < first]
            # Before a hole a row may not be its slot's newest any more: only what joins the chain speaks for its slots.
            whole_from = max(self._history_missing, default=0) + 1
            found.chain = [h for h in history.chain if whole_from <= h.number < first] + found.chain
        self._report.journal = found.verdict()
        return found

    def read_content(self, found: FoundJournal) -> JournalContent:
        """The chain's rows and records. Puts in blocks that lie behind a hole in the unflushed tail are lost (R3)."""
        if found.dropped:
            dropped = read_content(self._reader, self._geometry, found.dropped, self._progress)
            self._report.lost_unflushed += int((dropped.rows["state"] == SlotState.LIVE).sum())
        return read_content(self._reader, self._geometry, found.chain, self._progress)

    def flushed_by_pages(self, newest: FoundCopy, content: JournalContent, found: FoundJournal) -> None:
        """What the newest copy's pages hold was flushed before its header was written, and so was its journal.

        Pages are copied while rows are published, so they may reach further than the copy's seq. Those rows must not
        pass for unproven: of an overwrite one page may hold the new row and another still the old one.
        """
        assert newest.directory is not None
        reached, base = int(newest.directory["seq"].max(initial=0)), copy_header(newest)
        if reached <= base.seq:
            return
        blocks = [*content.row_blocks[content.rows["seq"] >= reached].tolist()]
        blocks += [block for block, record in content.records if record.seq >= reached]
        if blocks:
            found.flushed_through = max(found.flushed_through, min(blocks))
        elif not found.missing:
            self._report.note_unknown_loss(f"the newest copy's pages reach to seq {reached}, the journal does not")

    def note_gaps(self, found: FoundJournal, content: JournalContent, base_seq: int | None) -> None:
        """Report what of the journal is lost. What was lost before an acknowledgement, it accepted (R5).

        ``base_seq`` is the seq of the copy that the journal must reach back to; None where there is no copy.
        """
        accepted = max(
            (block for block, record in content.records if isinstance(record, AcknowledgedRecord)), default=0
        )
        missing = [number for number in found.missing if number > accepted]
        if missing:
            self._report.note_unknown_loss(f"journal blocks {missing[0]} to {missing[-1]}: {len(missing)} lost")
        if base_seq is not None and found.complete_since > base_seq:
            self._report.note_unknown_loss(
                f"the journal reaches back to seq {found.complete_since}, the newest usable copy to {base_seq}"
            )
