"""Loading the slot table: each page from the newest copy in which it is the page that copy's directory names (R1).

Rows are judged as arrays. A page that no copy has whole is settled line by line: by the row itself if it verifies and
its record header agrees, by the record header alone if nothing contradicts it, else the line is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES, NO_CLASS
from storage.format.layout import Defect, Undecodable
from storage.format.page import PageHeader, decode_page_header
from storage.format.record import RecordHeader
from storage.format.row import Rows, SlotState, checksums_of, fresh_rows, implausible_of
from storage.index import Index
from storage.recovery.copies import FoundCopy
from storage.recovery.reading import SPAN_BYTES, BlockReader
from storage.recovery.report import RecoveryProgress, SkipReason

_PAGE_REASONS = {
    Defect.MAGIC: SkipReason.CHECKSUM,
    Defect.CHECKSUM: SkipReason.CHECKSUM,
    Defect.VERSION: SkipReason.CHECKSUM,
    Defect.WRONG_DEVICE: SkipReason.WRONG_DEVICE,
    Defect.WRONG_PLACE: SkipReason.WRONG_PLACE,
    Defect.INVALID: SkipReason.CHECKSUM,
}


@dataclass(slots=True)
class BadPage:
    """A page that the newest copy does not have as its directory names it. ``image`` is what stood there."""

    page: int
    copy: int
    reason: SkipReason
    image: bytes


@dataclass(slots=True)
class BadLine:
    """A row that can't be taken as it stands."""

    row_id: int
    copy: int
    page: int
    reason: SkipReason
    raw: bytes
    header: RecordHeader | None = None
    """The record header in the slot, if it verifies: it may know the key though it proves nothing."""


@dataclass(slots=True)
class LoadedPages:
    bad_lines: list[BadLine] = field(default_factory=list)
    repaired_pages: list[int] = field(default_factory=list)
    """Pages taken from an older copy."""
    lost_pages: list[BadPage] = field(default_factory=list)
    """Pages no copy has."""


class PageLoader:
    def __init__(self, reader: BlockReader, index: Index, uuid: bytes, copies: list[FoundCopy]) -> None:
        """``copies`` are usable ones, newest first; the index's slabs are in their final state, its lines zero."""
        self._reader = reader
        self._index = index
        self._uuid = uuid
        self._copies = copies
        geometry = index.geometry
        self._lines_per_page = geometry.block_bytes // LINE_BYTES
        self._page_seqs: npt.NDArray[np.uint64] = np.zeros(geometry.pages, dtype=np.uint64)
        """The seq of each page taken: none of its rows is later."""

    def load(self, progress: RecoveryProgress) -> LoadedPages:
        """Fill the table from the copies. Raises DeviceGone."""
        table, geometry = self._index.table, self._index.geometry
        loaded = LoadedPages()
        owned = np.repeat(table.slab_class != NO_CLASS, geometry.pages_per_slab)
        newest = self._copies[0]
        assert newest.directory is not None
        wanted = np.flatnonzero(owned & (newest.directory["seq"] > 0))
        have = np.zeros(geometry.pages, dtype=bool)
        done = 0
        for run in _runs(wanted.tolist(), SPAN_BYTES // geometry.block_bytes):
            for bad in self._load_run(newest, run, have):
                # What the directory says of this page is not what lies there: written again next time.
                newest.directory["seq"][bad.page] = 0
                if self._from_older(bad.page, have):
                    loaded.repaired_pages.append(bad.page)
                else:
                    loaded.lost_pages.append(bad)
            done += len(run)
            progress.ratio = 0.5 + 0.3 * done / len(wanted)
        self._fill_fresh(have, {bad.page for bad in loaded.lost_pages})
        loaded.bad_lines = self._judge(have)
        return loaded

    def _load_run(self, copy: FoundCopy, run: list[int], have: npt.NDArray[np.bool_]) -> list[BadPage]:
        geometry = self._index.geometry
        size = geometry.block_bytes
        view, unreadable = self._reader.span(geometry.page_offset(copy.copy, run[0]), len(run) * size)
        bad: list[BadPage] = []
        for position, page in enumerate(run):
            block = view[position * size : (position + 1) * size]
            reason = SkipReason.UNREADABLE if position in unreadable else self._take(copy, page, block, have)
            if reason is not None:
                bad.append(BadPage(page, copy.copy, reason, bytes(block)))
        return bad

    def _take(self, copy: FoundCopy, page: int, block: memoryview, have: npt.NDArray[np.bool_]) -> SkipReason | None:
        """Take a page into the table if it is the one the directory names; else why not."""
        assert copy.directory is not None
        try:
            header = decode_page_header(block, self._uuid, copy=copy.copy, page=page)
        except Undecodable as error:
            return _PAGE_REASONS[error.reason]
        named = copy.directory[page]
        claimed = int.from_bytes(block[8:12], "little")
        if header.seq != named["seq"] or claimed != named["checksum"]:
            return SkipReason.STALE_PAGE
        if not self._fits_place(header, page):
            return SkipReason.WRONG_PLACE
        if header.generation > self._index.table.slab_generation[header.slab]:
            return SkipReason.WRONG_PLACE  # of a generation nobody else knows of
        if self._is_current(header):
            size = self._index.geometry.block_bytes
            self._index.table.view[page * size : (page + 1) * size] = block
            have[page] = True
            self._page_seqs[page] = header.seq
        return None

    def _fits_place(self, header: PageHeader, page: int) -> bool:
        geometry = self._index.geometry
        slab, page_in_slab = divmod(page, geometry.pages_per_slab)
        return header.slab == slab and header.first_slot == page_in_slab * geometry.rows_per_page

    def _is_current(self, header: PageHeader) -> bool:
        """False for a page of a generation that ended since: the slab's rows are fresh then."""
        table = self._index.table
        generation = int(table.slab_generation[header.slab])
        return header.generation == generation and header.slot_class == table.slab_class[header.slab]

    def _from_older(self, page: int, have: npt.NDArray[np.bool_]) -> bool:
        for copy in self._copies[1:]:
            assert copy.directory is not None
            if copy.directory["seq"][page] == 0:
                # Not written by then, so the slab was given to its class since: fresh rows, the journal has the rest.
                return True
            if not self._load_run(copy, [page], have):
                return True
            copy.directory["seq"][page] = 0
        return False

    def _fill_fresh(self, have: npt.NDArray[np.bool_], lost: set[int]) -> None:
        """Pages of owned slabs that no copy needed to have: the slab's free rows as they were when it was given."""
        table, geometry = self._index.table, self._index.geometry
        for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
            first = slab * geometry.pages_per_slab
            missing = [p for p in range(first, first + geometry.pages_per_slab) if not have[p] and p not in lost]
            if not missing:
                continue
            slot_class = int(table.slab_class[slab])
            slots = geometry.slots_per_slab(slot_class)
            rows = fresh_rows(self._index.seed, slab, slot_class, slots, int(table.slab_seq[slab]))
            row_ids = table.row_ids_of_slab(slab)
            fresh = np.isin(row_ids // self._lines_per_page, missing)
            table.lines[row_ids[fresh]] = rows[fresh]

    # -- judging rows ---------------------------------------------------------------------------------------------

    def _judge(self, have: npt.NDArray[np.bool_]) -> list[BadLine]:
        """Rows of pages that verify and yet are wrong: they were written wrong (B4). They are zeroed in the table."""
        table = self._index.table
        bad: list[BadLine] = []
        for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
            row_ids = table.row_ids_of_slab(slab)
            row_ids = row_ids[have[row_ids // self._lines_per_page]]
            if not len(row_ids):
                continue
            wrong = wrong_rows(self._index, table.lines[row_ids], row_ids)
            wrong |= table.lines["seq"][row_ids] > self._page_seqs[row_ids // self._lines_per_page]
            for row_id in row_ids[wrong].tolist():
                page = row_id // self._lines_per_page
                bad.append(BadLine(row_id, self._copies[0].copy, page, SkipReason.INVALID_ROW, table.raw(row_id)))
            table.lines[row_ids[wrong]] = np.zeros((), dtype=table.lines.dtype)
        return bad


def wrong_rows(index: Index, rows: Rows, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows are not what a row at this place may be: checksum, ranges, place, namespace, size."""
    table, geometry = index.table, index.geometry
    wrong = rows["checksum"] != checksums_of(index.seed, rows)
    wrong |= implausible_of(rows)
    wrong |= ~in_place(index, rows, row_ids)
    slot_bytes = np.array(geometry.class_bytes, dtype=np.int64)[
        np.minimum(rows["slot_class"], len(geometry.class_bytes) - 1)
    ]
    live = (rows["state"] == SlotState.LIVE) | (rows["state"] == SlotState.STAGED)
    record_bytes = rows["header_units"].astype(np.int64) * 64 + rows["payload_bytes"]
    wrong |= live & (record_bytes > slot_bytes)
    known = np.array([*index.namespaces.by_id, *index.namespaces.wiped], dtype=np.uint32)
    wrong |= live & ~np.isin(rows["namespace_id"], known)
    slabs = np.minimum(rows["slab"], geometry.slabs - 1)
    wrong |= rows["seq"] < table.slab_seq[slabs]
    result: npt.NDArray[np.bool_] = wrong
    return result


def in_place(index: Index, rows: Rows, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows name the place they stand in, and their slab's class."""
    geometry = index.geometry
    lines_per_page = geometry.block_bytes // LINE_BYTES
    pages, lines = np.divmod(row_ids, lines_per_page)
    slabs, pages_in_slab = np.divmod(pages, geometry.pages_per_slab)
    slots = pages_in_slab * geometry.rows_per_page + lines - 1
    result: npt.NDArray[np.bool_] = (rows["slab"] == slabs) & (rows["slot"] == slots)
    result &= rows["slot_class"] == index.table.slab_class[slabs]
    return result


def _runs(pages: list[int], longest: int) -> list[list[int]]:
    runs: list[list[int]] = []
    for page in pages:
        if runs and runs[-1][-1] + 1 == page and len(runs[-1]) < longest:
            runs[-1].append(page)
        else:
            runs.append([page])
    return runs
