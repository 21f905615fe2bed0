"""Queues of rows as links between row ids: 8 bytes per row, exact removal, no entry in two places.

A queue is a ring through a head of its own, so that linking and unlinking know no special case. An unlinked row's
links are 0, which is never a row id.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from storage.buffers import prefer_huge_pages

LINK_BYTES = 8
"""Memory per row: one link each way."""
FILL_STEP = 1 << 16
"""Rows linked in one step: what a step needs beside the links stays within the processor's cache."""


class Queues:
    """``count`` first-in-first-out queues over rows below ``rows``; ``lengths`` holds how many are in each."""

    def __init__(self, rows: int, count: int) -> None:
        self._heads = rows
        # Reserved for all rows, used only for those that have ever been linked.
        self._memory = mmap.mmap(-1, (rows + count) * LINK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Links lead to and fro: a huge page spares most of their misses of the address cache.
        prefer_huge_pages(self._memory)
        links: npt.NDArray[np.uint32] = np.frombuffer(self._memory, dtype=np.uint32)
        self._following, self._preceding = links[: rows + count], links[rows + count :]
        self.following, self.preceding = self._following.data, self._preceding.data
        self.lengths = [0] * count
        for queue in range(count):
            head = self.head(queue)
            self.following[head] = self.preceding[head] = head

    def head(self, queue: int) -> int:
        """What stands before the first and behind the last row of a queue."""
        return self._heads + queue

    def append(self, queue: int, row_id: int) -> None:
        """Add a row that is in no queue as the last one."""
        head = self._heads + queue
        following, preceding = self.following, self.preceding
        last = preceding[head]
        following[last] = preceding[head] = row_id
        preceding[row_id] = last
        following[row_id] = head
        self.lengths[queue] += 1

    def remove(self, queue: int, row_id: int) -> None:
        """Take a row out of the queue it is in."""
        following, preceding = self.following, self.preceding
        after, before = following[row_id], preceding[row_id]
        assert after, "a row that is in no queue"
        following[before] = after
        preceding[after] = before
        following[row_id] = preceding[row_id] = 0
        self.lengths[queue] -= 1

    def move_to_end(self, queue: int, row_id: int) -> None:
        """Let a row of the queue be its last one."""
        head = self._heads + queue
        following, preceding = self.following, self.preceding
        after, before = following[row_id], preceding[row_id]
        following[before] = after
        preceding[after] = before
        last = preceding[head]
        following[last] = preceding[head] = row_id
        preceding[row_id] = last
        following[row_id] = head

    def fill(self, queue: int, row_ids: npt.NDArray[np.uint64]) -> None:
        """Make an empty queue of many rows at once, in their order."""
        assert not self.lengths[queue]
        head = before = self.head(queue)
        for begin in range(0, len(row_ids), FILL_STEP):
            part = np.concatenate(([before], row_ids[begin : begin + FILL_STEP].astype(np.int64)))
            self._following[part[:-1]] = part[1:]
            self._preceding[part[1:]] = part[:-1]
            before = int(part[-1])
        self.following[before], self.preceding[head] = head, before
        self.lengths[queue] = len(row_ids)

    def rows(self, queue: int) -> Iterator[int]:
        """The queue's rows in order. The queue must not change meanwhile."""
        head = self.head(queue)
        row_id = self.following[head]
        while row_id != head:
            yield row_id
            row_id = self.following[row_id]
