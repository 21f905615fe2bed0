"""Pages of checkpoint copies, read in spans and judged strictly: the page against its directory, each row in its page.

Rows are judged by what their own page says of slab, class and seq, not by the present catalogue: a copy is a thing of
its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES, Geometry
from storage.format.layout import Defect, Undecodable
from storage.format.page import PageHeader, decode_page_header
from storage.format.row import ROW_DTYPE, Rows, SlotState, checksums_of, implausible_of
from storage.recovery.copies import FoundCopy
from storage.recovery.reading import SPAN_BYTES, BlockReader

STALE = "stale"
UNREADABLE = "unreadable"

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class PageSpan:
    """Neighbouring pages of one copy. ``reasons`` is per page empty (it is the one its directory names) or why not.

    ``lines`` has a row of lines per page, its header line first; a view that is valid until the next read.
    """

    copy: int
    pages: list[int]
    headers: list[PageHeader | None]
    reasons: list[str]
    lines: Rows

    @property
    def good(self) -> list[int]:
        """Positions in the span of the pages that are as named."""
        return [position for position, reason in enumerate(self.reasons) if not reason]


def runs_of(pages: npt.NDArray[np.int64], geometry: Geometry) -> Iterator[list[int]]:
    """Ascending pages as runs of neighbours, at most a span long."""
    longest = SPAN_BYTES // geometry.block_bytes
    if not len(pages):
        return
    for neighbours in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
        for begin in range(0, len(neighbours), longest):
            yield neighbours[begin : begin + longest].tolist()


def read_span(reader: BlockReader, geometry: Geometry, uuid: bytes, copy: FoundCopy, run: list[int]) -> PageSpan:
    """Read and judge the pages of a run. Raises DeviceGone."""
    size = geometry.block_bytes
    view, unreadable = reader.span(geometry.page_offset(copy.copy, run[0]), len(run) * size)
    lines = np.frombuffer(view, dtype=ROW_DTYPE).reshape(len(run), size // LINE_BYTES)
    span = PageSpan(copy.copy, run, [], [], lines)
    for position, page in enumerate(run):
        header, reason = None, UNREADABLE
        if position not in unreadable:
            block = view[position * size : (position + 1) * size]
            header, reason = _judge(geometry, uuid, copy, page, block)
        span.headers.append(header)
        span.reasons.append(reason)
    return span


def _judge(
    geometry: Geometry, uuid: bytes, copy: FoundCopy, page: int, block: memoryview
) -> tuple[PageHeader | None, str]:
    """The header if the page verifies, and why it is not the page that the directory names (empty if it is)."""
    assert copy.directory is not None
    try:
        header = decode_page_header(block, uuid, copy=copy.copy, page=page)
    except Undecodable as error:
        return None, error.reason
    named = copy.directory[page]
    if header.seq != named["seq"] or int.from_bytes(block[8:12], "little") != named["checksum"]:
        return header, STALE
    slab, page_in_slab = divmod(page, geometry.pages_per_slab)
    if header.slab != slab or header.first_slot != page_in_slab * geometry.rows_per_page:
        return header, Defect.WRONG_PLACE
    if header.slot_class >= len(geometry.class_bytes):
        return header, Defect.INVALID
    return header, ""


def invalid_rows(geometry: Geometry, seed: int, span: PageSpan) -> list[tuple[int, int]]:
    """(page, slot) of rows that are not what a row there may be, in the pages of the span that are as named (B4)."""
    good = span.good
    if not good:
        return []
    headers = [header for header in span.headers if header is not None and header.page in span.pages]
    by_page = {header.page: header for header in headers}
    chosen = [by_page[span.pages[position]] for position in good]
    rows = span.lines[good, 1:]
    wrong = _wrong_rows(geometry, seed, rows, chosen)
    return [
        (chosen[position].page, chosen[position].first_slot + line)
        for position, line in zip(*(axis.tolist() for axis in np.nonzero(wrong)), strict=True)
    ]


def _wrong_rows(geometry: Geometry, seed: int, rows: Rows, headers: list[PageHeader]) -> Mask:
    """``rows`` is an array of a row of lines per page."""

    def column(name: str) -> npt.NDArray[np.int64]:
        return np.array([getattr(header, name) for header in headers], dtype=np.int64)[:, None]

    slots = column("first_slot") + np.arange(rows.shape[1], dtype=np.int64)
    class_bytes = np.array(geometry.class_bytes, dtype=np.int64)[column("slot_class")]
    exists = slots < geometry.slot_area_bytes // class_bytes
    flat = np.ascontiguousarray(rows).reshape(-1)
    unsound = (flat["checksum"] != checksums_of(seed, flat)) | implausible_of(flat)
    wrong: Mask = np.reshape(unsound, rows.shape)
    wrong |= (rows["slab"] != column("slab")) | (rows["slot"] != slots) | (rows["slot_class"] != column("slot_class"))
    wrong |= rows["seq"] > column("seq").astype(np.uint64)
    holds = (rows["state"] == SlotState.LIVE) | (rows["state"] == SlotState.STAGED)
    wrong |= holds & (rows["header_units"].astype(np.int64) * 64 + rows["payload_bytes"] > class_bytes)
    # Lines behind the slab's last slot are zero (B4).
    used = np.reshape(flat.view(np.uint8), (*rows.shape, LINE_BYTES)).any(axis=2)
    result: Mask = np.where(exists, wrong, used)
    return result


def differing_rows(first: PageSpan, second: PageSpan, positions: list[int]) -> npt.NDArray[np.int64]:
    """Per page at ``positions`` of two spans of the same pages: how many rows differ. Access counters don't count."""
    images = []
    for span in (first, second):
        rows = np.ascontiguousarray(span.lines[positions, 1:])
        rows["access"] = 0
        images.append(rows.view(np.uint8).reshape(len(positions), -1, LINE_BYTES))
    counts: npt.NDArray[np.int64] = (images[0] != images[1]).any(axis=2).sum(axis=1)
    return counts
