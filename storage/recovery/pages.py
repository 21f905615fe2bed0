"""Loading the slot table: each page from the newest copy in which it is the page that copy's directory names (R1).

The newest copy's pages are read straight into the table, a few transfers ahead of the checks, and checked as arrays:
10 million rows in 0.8 s of CPU, of which the rows' ranges take half. A page whose header line is not what directory
and catalogue imply, byte for byte, or whose checksum does not hold, is looked at by itself.

Rows are judged by ``storage.recovery.row_rules``. A page that no copy has whole is settled line by line: by the row
itself if it verifies and its record header agrees, by the record header alone if nothing contradicts it, else the line
is skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES, NO_CLASS
from storage.format.layout import Defect, Undecodable
from storage.format.page import PageHeader, PageHeaders, blank_headers, decode_page_header, pages_as_named, rows_hold
from storage.format.record import RecordHeader
from storage.format.row import fresh_rows
from storage.index import Index
from storage.recovery.copies import FoundCopy
from storage.recovery.reading import SPAN_BYTES, BlockReader
from storage.recovery.report import RecoveryProgress, SkipReason
from storage.recovery.row_rules import RowRules

READ_AHEAD = 4
"""Transfers under way or waiting to be checked: what was read is still in the processor's cache then."""

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
        self._rules = RowRules(index)
        geometry = index.geometry
        self._lines_per_page = geometry.block_bytes // LINE_BYTES
        self._have: npt.NDArray[np.bool_] = np.zeros(geometry.pages, dtype=bool)
        """Pages taken."""
        self._bad_lines: list[BadLine] = []

    def load(self, progress: RecoveryProgress) -> LoadedPages:
        """Fill the table from the copies. Raises DeviceGone."""
        table, geometry = self._index.table, self._index.geometry
        loaded = LoadedPages()
        owned = np.repeat(table.slab_class != NO_CLASS, geometry.pages_per_slab)
        newest = self._copies[0]
        assert newest.directory is not None
        wanted = np.flatnonzero(owned & (newest.directory["seq"] > 0))
        odd: list[tuple[int, SkipReason]] = []
        done = 0
        runs = list(runs_of(wanted, SPAN_BYTES // geometry.block_bytes))
        reads = (self._place_of(newest, first, count) for first, count in runs)
        with contextlib.closing(self._reader.read_ahead(reads, READ_AHEAD)) as read:
            for (first, count), unreadable in zip(runs, read, strict=True):
                odd += self._take_run(newest, first, count, unreadable)
                done += count
                progress.ratio = 0.5 + 0.3 * done / len(wanted)
        for page, reason in odd:
            # What the directory says of this page is not what lies there: written again next time.
            newest.directory["seq"][page] = 0
            image = self._clear(page)
            if self._from_older(page):
                loaded.repaired_pages.append(page)
            else:
                loaded.lost_pages.append(BadPage(page, newest.copy, reason, image))
        self._fill_fresh({bad.page for bad in loaded.lost_pages})
        loaded.bad_lines = sorted(self._bad_lines, key=lambda line: line.row_id)
        return loaded

    def _place_of(self, copy: FoundCopy, first: int, count: int) -> tuple[int, memoryview]:
        """Where a run of pages lies in a copy on the device, and where in the table."""
        size = self._index.geometry.block_bytes
        place = self._index.table.view[first * size : (first + count) * size]
        return self._index.geometry.page_offset(copy.copy, first), place

    # -- whether a page is the one ----------------------------------------------------------------------------------

    def _take_run(self, copy: FoundCopy, first: int, count: int, unreadable: list[int]) -> list[tuple[int, SkipReason]]:
        """Keep what lies in the table of a run as far as its pages are those the directory names, and judge their rows.

        Returns the others, each with why not.
        """
        size = self._index.geometry.block_bytes
        pages = np.arange(first, first + count)
        named = pages_as_named(
            self._index.table.view[first * size : (first + count) * size], size, self._headers_named(copy, pages)
        )
        odd: list[tuple[int, SkipReason]] = []
        for position in np.flatnonzero(~named).tolist():
            page = first + position
            reason = SkipReason.UNREADABLE if position in unreadable else self._look_at(copy, page)
            if reason is not None:
                odd.append((page, reason))
        self._have[pages[named]] = True
        self._judge(copy, pages)
        return odd

    def _headers_named(self, copy: FoundCopy, pages: npt.NDArray[np.int64]) -> PageHeaders:
        """The header lines of pages of slabs that are today what they were when the copy was written."""
        assert copy.directory is not None
        table, geometry = self._index.table, self._index.geometry
        slabs, pages_in_slab = np.divmod(pages, geometry.pages_per_slab)
        headers = blank_headers(len(pages), self._uuid, copy.copy)
        headers["page"], headers["slab"] = pages, slabs
        headers["first_slot"] = pages_in_slab * geometry.rows_per_page
        headers["slot_class"] = table.slab_class[slabs]
        headers["generation"] = table.slab_generation[slabs]
        headers["seq"] = copy.directory["seq"][pages]
        headers["checksum"] = copy.directory["checksum"][pages]
        return headers

    def _look_at(self, copy: FoundCopy, page: int) -> SkipReason | None:
        """Why a page that lies in the table is not the one the directory names; None if it is.

        Then it stays there, unless it is of a generation that ended since: the slab's rows are fresh then.
        """
        assert copy.directory is not None
        size = self._index.geometry.block_bytes
        block = self._index.table.view[page * size : (page + 1) * size]
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
            self._have[page] = True
        else:
            self._clear(page)
        return None

    def _fits_place(self, header: PageHeader, page: int) -> bool:
        geometry = self._index.geometry
        slab, page_in_slab = divmod(page, geometry.pages_per_slab)
        return header.slab == slab and header.first_slot == page_in_slab * geometry.rows_per_page

    def _is_current(self, header: PageHeader) -> bool:
        """False for a page of a generation that ended since."""
        table = self._index.table
        generation = int(table.slab_generation[header.slab])
        return header.generation == generation and header.slot_class == table.slab_class[header.slab]

    def _clear(self, page: int) -> bytes:
        """Make a page of the table zero; returns what stood there."""
        size = self._index.geometry.block_bytes
        block = self._index.table.view[page * size : (page + 1) * size]
        image = bytes(block)
        block[:] = bytes(size)
        return image

    # -- other sources ----------------------------------------------------------------------------------------------

    def _from_older(self, page: int) -> bool:
        for copy in self._copies[1:]:
            assert copy.directory is not None
            if copy.directory["seq"][page] == 0:
                # Not written by then, so the slab was given to its class since: fresh rows, the journal has the rest.
                return True
            if not self._take_run(copy, page, 1, self._reader.into(*self._place_of(copy, page, 1))):
                return True
            self._clear(page)
            copy.directory["seq"][page] = 0
        return False

    def _fill_fresh(self, lost: set[int]) -> None:
        """Pages of owned slabs that no copy needed to have: the slab's free rows as they were when it was given."""
        table, geometry = self._index.table, self._index.geometry
        whole = self._have.reshape(-1, geometry.pages_per_slab).all(axis=1)
        for slab in np.flatnonzero((table.slab_class != NO_CLASS) & ~whole).tolist():
            first = slab * geometry.pages_per_slab
            missing = [p for p in range(first, first + geometry.pages_per_slab) if not self._have[p] and p not in lost]
            if not missing:
                continue
            slot_class = int(table.slab_class[slab])
            slots = geometry.slots_per_slab(slot_class)
            rows = fresh_rows(self._index.seed, slab, slot_class, slots, int(table.slab_seq[slab]))
            row_ids = table.row_ids_of_slab(slab)
            fresh = np.isin(row_ids // self._lines_per_page, missing)
            table.lines[row_ids[fresh]] = rows[fresh]

    # -- judging rows -----------------------------------------------------------------------------------------------

    def _judge(self, copy: FoundCopy, pages: npt.NDArray[np.int64]) -> None:
        """Rows of neighbouring pages that verify and yet are wrong: they were written wrong (B4). They are noted, and
        zeroed in the table."""
        table, per_page = self._index.table, self._lines_per_page
        assert copy.directory is not None
        begin, end = int(pages[0]) * per_page, (int(pages[-1]) + 1) * per_page
        lines, are_slots = table.lines[begin:end].reshape(-1, per_page), table.are_slots(pages)
        wrong = self._rules.misplaced_in(pages, lines)
        # No row of a page is later than the page.
        wrong |= lines["seq"] > copy.directory["seq"][pages][:, None]
        size = self._index.geometry.block_bytes
        blocks = table.view[begin * LINE_BYTES : end * LINE_BYTES]
        hold = rows_hold(blocks, size, self._index.seed, are_slots.sum(axis=1))
        for position in np.flatnonzero(~hold & self._have[pages]).tolist():
            wrong[position] |= self._rules.mistaken(lines[position])
        wrong &= are_slots & self._have[pages][:, None]
        for row_id in (begin + np.flatnonzero(wrong)).tolist():
            page = row_id // per_page
            self._bad_lines.append(
                BadLine(row_id, self._copies[0].copy, page, SkipReason.INVALID_ROW, table.raw(row_id))
            )
            table.lines[row_id] = np.zeros((), dtype=table.lines.dtype)


def runs_of(pages: npt.NDArray[np.int64], longest: int) -> Iterator[tuple[int, int]]:
    """Ascending pages as runs of neighbours, first page and count, at most ``longest`` in a run."""
    if not len(pages):
        return
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    bounds = [0, *breaks.tolist(), len(pages)]
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        for start in range(begin, end, longest):
            yield int(pages[start]), min(longest, end - start)
