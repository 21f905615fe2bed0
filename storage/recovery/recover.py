"""Recovery, step by step. Nothing is written: what the engine must write is in the result.

====  ==========================================================================================================
step  what
====  ==========================================================================================================
1     superblocks: who the device is
2     copies: headers, directories, catalogues; the newest valid one is the base; without any, steps 4 to 7 go by
      slab and record headers instead (``storage.recovery.rebuild``)
3     journal: the chain since the oldest usable copy; torn tail, gap
4     catalogue: the base's, then the journal's records
5     pages: from the newest copy that has each as named; rows judged strictly
6     journal rows up to the last flush, the newest of each slot
7     lines of pages no copy has, settled by row and record header
8     keys held twice
9     rows behind the last flush, each put proven against its record
10    the verdict: refuse (R6), or the report
====  ==========================================================================================================
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import numpy as np

from storage.checkpoint import CopyState, empty_directory
from storage.device.interface import BlockDevice
from storage.errors import FormatUnsupported, InvalidRowsFound, SettingsInvalid, TooMuchSkipped
from storage.format.checkpoint_copy import CopyHeader, Directory
from storage.format.layout import Undecodable
from storage.format.row import FreeReason, Rows, SlotState, encode_row, plausible
from storage.format.superblock import Superblock, writable
from storage.identity import Identity
from storage.index import Index
from storage.journal import JournalPosition
from storage.limits import WRITE_ID_START_BITS
from storage.recovery.copies import FoundCopy, read_copies
from storage.recovery.journal_scan import FoundJournal, JournalContent, find_chain, read_content, read_ring
from storage.recovery.pages import BadLine, PageLoader
from storage.recovery.reading import BlockReader
from storage.recovery.rebuild import rebuild_rows
from storage.recovery.replay import CatalogueState, apply_rows, duplicate_keys, removed_since, row_ids_of
from storage.recovery.report import RecoveryProgress, RecoveryReport, RepairSource, SkippedEntry, SkipReason
from storage.recovery.settle import Settler
from storage.recovery.superblocks import read_superblock
from storage.recovery.unflushed import Prover, Unflushed
from storage.slot_table import SlotTable
from storage.status import CopyStatus

log = logging.getLogger("rawblockd.storage")


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


def recover(device: BlockDevice, limits: RecoveryLimits, progress: RecoveryProgress, now_seconds: float) -> Recovered:
    """Recover the index, on any thread. Raises DeviceRefused, RecoveryRefused, DeviceFailed, SettingsInvalid."""
    started = time.monotonic()
    progress.step = "superblocks"
    superblock, verdicts = read_superblock(device)
    if not writable(superblock):
        raise FormatUnsupported(f"features {superblock.ro_compat:#x}: this program may only read the device")
    if superblock.start_count + 1 >= 1 << WRITE_ID_START_BITS:
        raise FormatUnsupported(f"all {1 << WRITE_ID_START_BITS} starts of this device are used up; format it again")
    reader = BlockReader(device, superblock.geometry.block_bytes)
    try:
        recovered = _Recovery(device, reader, superblock, progress).run(limits, now_seconds)
    except Undecodable as error:
        # A block whose checksum is right does not decode: it was written wrong (B4).
        raise InvalidRowsFound(str(error)) from error
    finally:
        reader.close()
    recovered.report.superblocks = verdicts
    recovered.report.duration_seconds = time.monotonic() - started
    progress.step, progress.ratio = "done", 1.0
    return recovered


class _Recovery:
    def __init__(
        self, device: BlockDevice, reader: BlockReader, superblock: Superblock, progress: RecoveryProgress
    ) -> None:
        self._device = device
        self._reader = reader
        self._superblock = superblock
        self._geometry = superblock.geometry
        self._progress = progress
        self._report = RecoveryReport()
        self._index = Index(superblock.geometry, superblock.uuid)
        self._catalogue = CatalogueState()
        self._bad: list[BadLine] = []
        self._history_missing: list[int] = []

    def run(self, limits: RecoveryLimits, now_seconds: float) -> Recovered:
        copies = self._read_copies()
        usable = sorted((c for c in copies if c.valid), key=lambda c: -_header(c).number)
        if limits.adopt_seq is not None:
            usable = self._adopt(usable, limits.adopt_seq)
        if usable:
            found, content = self._from_copies(usable)
        else:
            found, content = self._from_headers()
        self._settle_duplicates()
        if limits.adopt_seq is not None:
            self._prove_live_rows(usable[0].copy)
        unflushed = self._prove(content, found)
        self._count(now_seconds)
        self._judge(limits)
        number = max((c.header.number for c in copies if c.header is not None), default=0)
        return self._result(copies, number, found, content, unflushed)

    def _adopt(self, usable: list[FoundCopy], seq: int) -> list[FoundCopy]:
        """The copy with this seq and older ones; newer ones count as not written. Raises SettingsInvalid."""
        for position, copy in enumerate(usable):
            if _header(copy).seq == seq:
                for newer in usable[:position]:
                    newer.verdict = "newer than the one adopted"
                return usable[position:]
        seqs = ", ".join(str(_header(copy).seq) for copy in usable) or "none"
        raise SettingsInvalid(f"no valid copy has seq {seq}; there are: {seqs}")

    def _prove_live_rows(self, copy: int) -> None:
        """Skip every live row that the record header in its slot does not prove."""
        table = self._index.table
        settler = Settler(self._reader, self._index, self._superblock, 0)
        row_ids = table.row_ids()
        for row_id in row_ids[table.lines["state"][row_ids] == SlotState.LIVE].tolist():
            if not settler.proves(row_id):
                page, raw = table.page_of(row_id), table.raw(row_id)
                self._bad.append(BadLine(row_id, copy, page, SkipReason.HEADER_MISMATCH, raw))
                table.lines[row_id] = np.zeros((), dtype=table.lines.dtype)

    def _from_copies(self, usable: list[FoundCopy]) -> tuple[FoundJournal, JournalContent]:
        """Steps 3 to 7 on the newest copy, with the older ones as second sources."""
        found = self._scan(usable)
        usable = [c for c in usable if c is usable[0] or self._reaches(found, c)]
        content = self._read_content(found)
        self._flushed_by_pages(usable[0], content, found)
        self._progress.step = "catalogue"
        assert usable[0].catalogue is not None
        self._catalogue.apply(usable[0].catalogue)
        self._catalogue.apply(sorted((record for _, record in content.records), key=lambda r: r.seq))
        self._catalogue.install_slabs(self._index)
        self._catalogue.install_namespaces(self._index)
        self._load_rows(usable, content, found)
        return found, content

    def _from_headers(self) -> tuple[FoundJournal, JournalContent]:
        """Steps 3 to 7 without any copy: the journal, and the headers on the device for what it does not reach."""
        self._progress.step = "journal"
        log.warning("no checkpoint copy can be used: rebuilding the index from record headers", extra={"fields": {}})
        ring = read_ring(self._reader, self._geometry, self._superblock.uuid, self._progress)
        newest = max(ring.valid.values(), key=lambda h: (h.start_count, h.number), default=None)
        first = newest.tail if newest is not None else 1
        found = find_chain(ring, self._geometry, first=first, known_flushed=first - 1)
        self._report.journal = found.verdict()
        causes = []
        if newest is None and self._superblock.start_count:
            causes.append("all copies and the journal are lost: deletions since the last start may be undone")
        if found.missing:
            causes.append(f"journal blocks {found.missing[0]} to {found.missing[-1]}: {len(found.missing)} lost")
        content = self._read_content(found)
        self._catalogue.apply(sorted((record for _, record in content.records), key=lambda r: r.seq))
        self._progress.step = "headers"
        bad, lost = rebuild_rows(
            self._reader, self._index, self._superblock, self._catalogue, content, found, self._report, self._progress
        )
        self._bad += bad
        self._report.unknown_loss = "; ".join(causes + lost)
        self._report.rebuilt = True
        return found, content

    # -- steps 2 and 3 --------------------------------------------------------------------------------------------

    def _read_copies(self) -> list[FoundCopy]:
        self._progress.step = "copies"
        copies = read_copies(self._reader, self._geometry, self._superblock.uuid)
        for copy in copies:
            header = copy.header
            written_at = header.written_ms / 1000 if header else 0.0
            self._report.copies.append(CopyStatus(copy.copy, header.seq if header else 0, copy.verdict, written_at))
        return copies

    def _scan(self, usable: list[FoundCopy]) -> FoundJournal:
        """The chain from the base on; blocks between an older copy and the base are history, kept where whole."""
        self._progress.step = "journal"
        base = _header(usable[0])
        first = base.journal_block
        ring = read_ring(self._reader, self._geometry, self._superblock.uuid, self._progress)
        found = find_chain(ring, self._geometry, first=first, known_flushed=first - 1)
        oldest = min(_header(c).journal_block for c in usable)
        if not found.chain or base.tail > found.tail:
            # No block written since the newest checkpoint says where the tail is: the checkpoint itself moved it there.
            found.tail = max(oldest, base.tail)
            found.complete_since = max(found.complete_since, min(_header(c).seq for c in usable))
        if oldest < first:
            history = find_chain(ring, self._geometry, first=max(oldest, found.tail), known_flushed=first - 1)
            self._history_missing = [n for n in history.missing if n < first]
            # Before a hole a row may not be its slot's newest any more: only what joins the chain speaks for its slots.
            whole_from = max(self._history_missing, default=0) + 1
            found.chain = [h for h in history.chain if whole_from <= h.number < first] + found.chain
        self._report.journal = found.verdict()
        causes = []
        if found.missing:
            causes.append(f"journal blocks {found.missing[0]} to {found.missing[-1]}: {len(found.missing)} lost")
        if found.complete_since > base.seq:
            causes.append(
                f"the journal reaches back to seq {found.complete_since}, the newest usable copy to {base.seq}"
            )
        self._report.unknown_loss = "; ".join(causes)
        return found

    def _reaches(self, found: FoundJournal, copy: FoundCopy) -> bool:
        """An older copy is a second source only if the journal holds everything since it."""
        header = _header(copy)
        whole = not any(n >= header.journal_block for n in self._history_missing)
        return whole and header.seq >= found.complete_since

    def _read_content(self, found: FoundJournal) -> JournalContent:
        """The chain's rows and records. Puts in blocks that lie behind a hole in the unflushed tail are lost (R3)."""
        if found.dropped:
            dropped = read_content(self._reader, self._geometry, found.dropped, self._progress)
            self._report.lost_unflushed += int((dropped.rows["state"] == SlotState.LIVE).sum())
        return read_content(self._reader, self._geometry, found.chain, self._progress)

    def _flushed_by_pages(self, newest: FoundCopy, content: JournalContent, found: FoundJournal) -> None:
        """What the newest copy's pages hold was flushed before its header was written, and so was its journal.

        Pages are copied while rows are published, so they may reach further than the copy's seq. Those rows must not
        pass for unproven: of an overwrite one page may hold the new row and another still the old one.
        """
        assert newest.directory is not None
        reached, base = int(newest.directory["seq"].max(initial=0)), _header(newest)
        if reached <= base.seq:
            return
        blocks = [*content.row_blocks[content.rows["seq"] >= reached].tolist()]
        blocks += [block for block, record in content.records if record.seq >= reached]
        if blocks:
            found.flushed_through = max(found.flushed_through, min(blocks))
        elif not found.missing:
            self._report.unknown_loss = f"the newest copy's pages reach to seq {reached}, the journal does not"

    # -- steps 5 to 9 ---------------------------------------------------------------------------------------------

    def _load_rows(self, usable: list[FoundCopy], content: JournalContent, found: FoundJournal) -> None:
        self._progress.step = "pages"
        loaded = PageLoader(self._reader, self._index, self._superblock.uuid, usable).load(self._progress)
        self._progress.step, self._progress.ratio = "rows", 0.8
        flushed = content.row_blocks <= found.flushed_through
        spoken_of, bad = apply_rows(self._index, content.rows[flushed])
        if found.missing:
            bad += self._take_removed(content.rows[flushed])
        self._count_repaired_pages(loaded.repaired_pages)
        settled, wrong = set(spoken_of.tolist()), {line.row_id for line in bad if line.row_id}
        lost = [line for line in loaded.bad_lines if line.row_id not in settled | wrong]
        repaired = [line for line in loaded.bad_lines if line.row_id in settled and self._is_live(line.row_id)]
        self._report.repaired[RepairSource.JOURNAL] += len(repaired)
        lost += Settler(self._reader, self._index, self._superblock, _header(usable[0]).seq).settle(
            loaded.lost_pages, wrong, self._report
        )
        self._bad += lost + [line for line in bad if line.row_id or not self._is_known(line)]

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

    def _settle_duplicates(self) -> None:
        settler = Settler(self._reader, self._index, self._superblock, 0)
        for row_id in duplicate_keys(self._index, settler.proves):
            table = self._index.table
            page = table.page_of(row_id)
            self._bad.append(BadLine(row_id, -1, page, SkipReason.DUPLICATE_KEY, table.raw(row_id)))
            table.lines[row_id] = np.zeros((), dtype=table.lines.dtype)

    def _withhold_bad_slots(self) -> set[int]:
        """Until the engine journals their quarantine, slots of skipped lines are quarantined in memory only.

        Returns their row ids.
        """
        table = self._index.table
        withheld = set()
        for line in self._bad:
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
        self._bad = [line for line in self._bad if line.row_id not in settled]

    def _prove(self, content: JournalContent, found: FoundJournal) -> Unflushed:
        self._progress.step, self._progress.ratio = "unflushed", 0.9
        withheld = self._withhold_bad_slots()
        self._index.derive()
        rows = content.rows[content.row_blocks > found.flushed_through]
        if not len(rows):
            return Unflushed()
        prover = Prover(self._device, self._index, Identity(self._superblock, 1))
        try:
            unflushed = prover.apply(rows)
        finally:
            prover.close()
        self._index.derive()  # rows changed beneath the free slots: from the table, once more
        self._settle_by_proof(withheld)
        for row_id, raw in unflushed.wrong:
            page = self._index.table.page_of(row_id)
            self._bad.append(BadLine(row_id, -1, page, SkipReason.INVALID_ROW, raw))
        self._report.lost_unflushed += len(unflushed.unproven)
        return unflushed

    # -- step 10 --------------------------------------------------------------------------------------------------

    def _count(self, now_seconds: float) -> None:
        table = self._index.table
        row_ids = table.row_ids()
        live = row_ids[table.lines["state"][row_ids] == SlotState.LIVE]
        expires = table.lines["expires_at"][live]
        self._report.expired = int(((expires > 0) & (expires <= now_seconds)).sum())
        self._report.recovered = len(live) - self._report.expired
        known = {(r.reason, r.slab, r.slot, r.raw) for r in self._catalogue.open_skipped()}
        # Found by an earlier start, which could not say any more that the journal was flushed: it counts once (R9).
        self._bad = [line for line in self._bad if (line.reason.value, *self._place(line), line.raw) not in known]
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
        for line in self._bad:
            line.header = settler.header(line.row_id) if line.row_id else None
            self._report.skipped.append(skipped_entry(table, line))
        partial = self._catalogue.partial
        if partial is not None and partial.unknown_loss and not self._report.unknown_loss:
            self._report.unknown_loss = "found by an earlier start"

    def _place(self, line: BadLine) -> tuple[int, int]:
        return self._index.table.place_of(line.row_id) if line.row_id else (0, 0)

    def _judge(self, limits: RecoveryLimits) -> None:
        """R6: refuse before anything is written."""
        invalid = sum(1 for line in self._bad if line.reason is SkipReason.INVALID_ROW)
        skipped = len(self._bad)
        total = skipped + self._report.recovered + self._report.expired
        if skipped <= limits.max_skipped_floor or skipped <= limits.max_skipped_ratio * total:
            return
        counts = {reason: count for reason, count in self._report.by_reason().items() if count}
        if invalid > limits.max_skipped_floor:
            raise InvalidRowsFound(f"{invalid} of {total} entries", counts=counts)
        if not limits.accept_loss:
            raise TooMuchSkipped(f"{skipped} of {total} entries: {counts}", counts=counts)

    def _result(
        self,
        copies: list[FoundCopy],
        number: int,
        found: FoundJournal,
        content: JournalContent,
        unflushed: Unflushed,
    ) -> Recovered:
        highest = max(
            [self._catalogue.highest_seq, *(c.header.seq for c in copies if c.header is not None)]
            + ([int(content.rows["seq"].max())] if len(content.rows) else [])
            + [int(self._index.table.page_seq.max())]
        )
        starts = [self._superblock.start_count, self._catalogue.start_count, found.start_count]
        # Lost blocks may have used seqs that nothing else names: leave room for as many as they can hold.
        room = len(found.missing) * self._geometry.block_bytes
        partial = self._catalogue.partial
        states = [CopyState(c.copy, c.header if c.valid else None, _directory(c, self._geometry.pages)) for c in copies]
        self._mark_unvoided(content, found.complete_since)
        self._catalogue.install_evidence(self._index)
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
            new_skipped=self._report.skipped[len(self._report.skipped) - len(self._bad) :],
            newly_unknown=bool(self._report.unknown_loss) and (partial is None or not partial.unknown_loss),
            corrections=sorted(unflushed.corrections),
            counts_before=dict(partial.counts) if partial is not None else {},
        )

    def _mark_unvoided(self, content: JournalContent, complete_since: int) -> None:
        """Freed slots whose headers may still verify: all whose freeing row the journal still holds.

        That is more than seqs tell: a row journaled once more, because its slot was in use, keeps its old seq.
        """
        table = self._index.table
        row_ids = table.row_ids()
        lines = table.lines[row_ids]
        freed = (lines["state"] == SlotState.FREE) & (lines["reason"] != FreeReason.NEVER_USED)
        spoken_of, exists = row_ids_of(self._index, content.rows)
        freed &= (lines["seq"] > complete_since) | np.isin(row_ids, spoken_of[exists])
        self._index.slots.freed_unvoided.update(row_ids[freed].tolist())
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


def _header(copy: FoundCopy) -> CopyHeader:
    assert copy.header is not None
    return copy.header


def _directory(copy: FoundCopy, pages: int) -> Directory:
    return copy.directory if copy.valid and copy.directory is not None else empty_directory(pages)
