"""A checkpoint's pages: those of the slot table that differ from the copy's directory.

Pages are copied while writers go on, so a page may hold rows later than the checkpoint's seq; a flush makes their
journal rows and payloads durable before the header can name the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage.checkpoint.copy_state import CopyState
from storage.checkpoint.writing import Writing
from storage.format.page import PAGE_DTYPE, PageHeaders, seal_pages
from storage.index import Index
from storage.journal import Journal

WRITES_AT_ONCE = 2
"""Writes of pages under way: with them a device of 1.6 GB/s is busy all the time, and its queue is short."""


class PageWriter:
    def __init__(self, writing: Writing, index: Index, journal: Journal, uuid: bytes) -> None:
        self._writing = writing
        self._index = index
        self._journal = journal
        self._uuid = uuid

    def differing(self, copy: CopyState) -> npt.NDArray[np.int64]:
        """Pages with rows later than what the copy holds."""
        return np.flatnonzero(self._index.table.page_seq > copy.directory["seq"])

    async def write(self, target: CopyState) -> int:
        """Write the pages that differ, neighbours together; returns how many. Raises DeviceFailed, Busy."""
        geometry, writing = self._index.geometry, self._writing
        pages = self.differing(target)
        at_once = writing.blocks_at_once(geometry.block_bytes)
        waiting: list[asyncio.Future[None]] = []
        since_pause = 0
        complete = False
        try:
            for first, count in _runs(pages, at_once):
                if since_pause + count > at_once:
                    since_pause = 0
                    await writing.pause()
                since_pause += count
                size = count * geometry.block_bytes
                buffer = await writing.buffer(size)
                self._copy(buffer.view[:size], target, first, count)
                write = writing.device.write(geometry.page_offset(target.copy, first), buffer.view[:size])
                buffer.hold_for(write)
                buffer.release()
                waiting.append(write)
                if len(waiting) >= WRITES_AT_ONCE:
                    await waiting.pop(0)
            while waiting:
                await waiting.pop(0)
            complete = True
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)
            if not complete:
                target.directory["seq"][pages] = 0  # what they hold now isn't known: written again next time
        return len(pages)

    def _copy(self, out: memoryview, target: CopyState, first: int, count: int) -> None:
        """Copy neighbouring pages as they are now; their seq is that of the last row published."""
        geometry, table = self._index.geometry, self._index.table
        size = geometry.block_bytes
        out[:] = table.view[first * size : (first + count) * size]
        headers: PageHeaders = np.zeros(count, dtype=PAGE_DTYPE)
        pages = np.arange(first, first + count)
        slabs, pages_in_slab = np.divmod(pages, geometry.pages_per_slab)
        headers["copy"], headers["seq"] = target.copy, self._journal.published_seq
        headers["page"], headers["slab"] = pages, slabs
        headers["slot_class"], headers["generation"] = table.slab_class[slabs], table.slab_generation[slabs]
        headers["first_slot"] = pages_in_slab * geometry.rows_per_page
        entries = target.directory[first : first + count]
        entries["checksum"], entries["reserved"] = seal_pages(out, self._uuid, headers), 0
        entries["seq"] = self._journal.published_seq


def _runs(pages: npt.NDArray[np.int64], longest: int) -> Iterator[tuple[int, int]]:
    """Neighbouring pages together, at most ``longest``: the first one, and how many."""
    starts = np.flatnonzero(np.diff(pages, prepend=-2, append=-2) != 1).tolist()
    for start, end in pairwise(starts):
        first = int(pages[start])
        for begin in range(0, end - start, longest):
            yield first + begin, min(longest, end - start - begin)
