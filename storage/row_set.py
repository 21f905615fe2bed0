"""A set of rows as one byte per row of the table: a million of them are a megabyte, and are searched as an array."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from storage.slot_table import RowIds


class RowSet:
    """Row ids below ``rows``. Memory is used only where there ever was a member."""

    __slots__ = ("_array", "_count", "_flags", "_members")

    def __init__(self, rows: int) -> None:
        # A mapping of its own: what numpy takes for zeros may be used memory, all of which it would have to write.
        memory = mmap.mmap(-1, max(rows, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._array: npt.NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8, count=rows)
        self._flags = self._array.data
        self._members = self._array.view(np.bool_)  # which numpy searches ten times as fast
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row_id: int) -> bool:
        return self._flags[row_id] != 0

    def __iter__(self) -> Iterator[int]:
        yield from np.flatnonzero(self._members).tolist()

    def add(self, row_id: int) -> None:
        if not self._flags[row_id]:
            self._flags[row_id] = 1
            self._count += 1

    def discard(self, row_id: int) -> None:
        if self._flags[row_id]:
            self._flags[row_id] = 0
            self._count -= 1

    def update(self, row_ids: Iterable[int]) -> None:
        for row_id in row_ids:
            self.add(row_id)

    def add_all(self, row_ids: RowIds) -> None:
        """Add many at once."""
        distinct = np.unique(row_ids)
        self._count += len(distinct) - int(np.count_nonzero(self._members[distinct]))
        self._array[distinct] = 1

    def difference_update(self, row_ids: Iterable[int]) -> None:
        for row_id in row_ids:
            self.discard(row_id)

    def discard_between(self, first: int, end: int) -> None:
        """Take out whatever is from ``first`` up to but without ``end``."""
        part = self._members[first:end]
        self._count -= int(np.count_nonzero(part))
        part[:] = False

    def between(self, first: int, end: int) -> RowIds:
        """The members from ``first`` up to but without ``end``, ascending."""
        found: RowIds = np.flatnonzero(self._members[first:end]) + first
        return found
