"""Key digest to row id: an open-addressing table of 4-byte buckets, sized once for the whole device.

Linear probing at a load of at most two thirds; the digests themselves stand in the rows. 6 bytes per slot of the device
against about 180 of a dict, and built for ten million rows in 0.3 s.

A digest's home bucket is as far up the table as its first four bytes, as a number, are in their range. So the order of
the homes is that of the digests: rows sorted by digest fill the table from its start to its end, and listings walk it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES
from storage.format.row import DIGEST_OFFSET, SlotState
from storage.slot_table import RowIds, SlotTable

RUN_STEP = 256
"""Buckets looked at in one step for the end of a run; at a load of two thirds hardly a run is longer."""
BUILD_STEP = 1 << 16
"""Rows placed in one step of a build: what it needs beside the map stays within the processor's cache, and little of it
with the process afterwards (2^18 were as fast and left 8 MB more)."""
MANY_MIN = 48
"""So many digests are looked up faster as arrays than one by one."""
_DIGEST_WORD = DIGEST_OFFSET // 8
_DIGEST = struct.Struct("<16s")
_START = struct.Struct(">I")
"""Of a digest, what says where its home is: 32 bits, of which a map of 2^28 buckets still leaves 16 to each."""

SortedKeys = npt.NDArray[np.uint64]
"""Rows by the start of their digests: that in the upper, the row id in the lower 32 bits of a number, ascending."""


def sorted_keys(table: SlotTable) -> SortedKeys:
    """All live rows of a table: sorted as plain numbers, in a tenth of the time that their order as digests takes."""
    parts = list(table.slabs_lines())
    keys = np.empty(sum(len(part.lines) for part in parts), dtype=np.uint64)  # memory is used only as far as it is set
    count = 0
    for part in parts:
        lines = part.lines
        # All lines' numbers, and then those of live rows: half of the time that picking the rows out takes.
        live = (lines["state"] == SlotState.LIVE) & part.are_slots
        numbers = table.words[part.first : part.first + len(lines), _DIGEST_WORD].view(">u8").astype(np.uint64)
        numbers &= np.uint64(0xFFFFFFFF00000000)
        numbers |= np.arange(part.first, part.first + len(lines), dtype=np.uint64)
        mine = numbers[live]
        keys[count : count + len(mine)] = mine
        count += len(mine)
    keys = keys[:count]
    keys.sort()
    return keys


def keys_of(digests: npt.NDArray[np.void], row_ids: RowIds) -> SortedKeys:
    """The numbers of some rows, not sorted yet."""
    starts = np.ascontiguousarray(digests).view(">u4").reshape(-1, 4)[:, 0]
    keys: SortedKeys = starts.astype(np.uint64) << np.uint64(32) | row_ids.astype(np.uint64)
    return keys


def row_ids_in(keys: SortedKeys) -> RowIds:
    """The rows, in the order of the keys."""
    row_ids: RowIds = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return row_ids


def same_start(keys: SortedKeys) -> RowIds:
    """Rows whose digests begin as another one's: all of those that may have a key in common with another row."""
    found = [np.empty(0, dtype=np.int64)]
    for begin in range(0, len(keys), BUILD_STEP):
        # With the last one before and the first one behind.
        first = max(0, begin - 1)
        part = keys[first : begin + BUILD_STEP + 1]
        starts = part >> np.uint64(32)
        same = np.zeros(len(part) + 1, dtype=np.bool_)
        same[1:-1] = starts[1:] == starts[:-1]
        found.append(row_ids_in(part[same[1:] | same[:-1]]))
    return np.unique(np.concatenate(found))


def orders_of(digests: npt.NDArray[np.void]) -> list[npt.NDArray[np.uint64]]:
    """Two numbers by which digests compare: their halves, the more significant one first."""
    halves = digests.view(">u8").reshape(-1, 2)
    return [halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)]


class KeyMap:
    """Holds live rows only. A row must be in the table while it is in the map."""

    def __init__(self, table: SlotTable, buckets: int) -> None:
        self._table = table
        self.size = buckets
        """Number of buckets, which is that of the possible homes; more than there are ever rows."""
        self._array: npt.NDArray[np.uint32] = np.zeros(self.size, dtype=np.uint32)
        self._buckets = self._array.data
        self.entries = 0

    def find(self, digest: bytes) -> int:
        """The row id under ``digest``, 0 if there is none."""
        buckets, size, view = self._buckets, self.size, self._table.view
        bucket = _START.unpack_from(digest)[0] * size >> 32
        while row_id := int(buckets[bucket]):
            if _DIGEST.unpack_from(view, row_id * LINE_BYTES + DIGEST_OFFSET)[0] == digest:
                return row_id
            bucket += 1
            if bucket == size:
                bucket = 0
        return 0

    def find_many(self, digests: Sequence[bytes]) -> list[int]:
        """As ``find``, of many digests: those that lie in their home buckets as arrays, the others one by one.

        Measured: 0.14 µs for each of 64 and 0.05 of 1024, against 0.28 alone.
        """
        if len(digests) < MANY_MIN:
            return list(map(self.find, digests))
        halves = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)
        starts = halves.view(">u4").reshape(-1, 4)[:, 0].astype(np.uint64)
        row_ids = self._array[starts * np.uint64(self.size) >> np.uint64(32)]
        words = self._table.words
        same = words[row_ids, _DIGEST_WORD] == halves[:, 0]
        same &= words[row_ids, _DIGEST_WORD + 1] == halves[:, 1]
        found: list[int] = row_ids.tolist()
        for position in np.flatnonzero(~same & (row_ids != 0)).tolist():
            found[position] = self.find(digests[position])
        return found

    def insert(self, digest: bytes, row_id: int) -> None:
        """Add a row whose digest is not in the map."""
        buckets, size = self._buckets, self.size
        bucket = _START.unpack_from(digest)[0] * size >> 32
        while buckets[bucket]:
            bucket += 1
            if bucket == size:
                bucket = 0
        buckets[bucket] = row_id
        self.entries += 1

    def remove(self, digest: bytes, row_id: int) -> None:
        """Take a row out, and close the gap so that no probe ends too early. Raises KeyError if it is not there."""
        buckets, size = self._buckets, self.size
        gap = self.home_of(digest)
        while buckets[gap] != row_id:
            if not buckets[gap]:
                raise KeyError(row_id)
            gap = (gap + 1) % size
        bucket = gap
        while True:
            bucket = (bucket + 1) % size
            other = buckets[bucket]
            if not other:
                break
            # The other row may move into the gap unless its home lies behind the gap.
            if (bucket - self.home_of(self._digest(other))) % size >= (bucket - gap) % size:
                buckets[gap] = other
                gap = bucket
        buckets[gap] = 0
        self.entries -= 1

    def home_of(self, digest: bytes) -> int:
        """Where the search for a digest begins. Ascending digests have ascending homes."""
        home: int = _START.unpack_from(digest)[0] * self.size >> 32
        return home

    def _digest(self, row_id: int) -> bytes:
        digest: bytes = _DIGEST.unpack_from(self._table.view, row_id * LINE_BYTES + DIGEST_OFFSET)[0]
        return digest

    def _homes(self, starts: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        homes: npt.NDArray[np.int64] = (starts * np.uint64(self.size) >> np.uint64(32)).astype(np.int64)
        return homes

    # -- walking in order (listings) ------------------------------------------------------------------------------

    def last_of(self, home: int) -> bytes:
        """The digest that comes last of all with this home."""
        return _START.pack(((home + 1 << 32) - 1) // self.size) + b"\xff" * 12

    def row_ids_of_homes(self, first: int, last: int) -> RowIds:
        """Row ids of the rows whose home bucket is from ``first`` up to but without ``last``.

        They lie there or, pushed on by others, behind: up to the next empty bucket, beyond the end from the start on.
        """
        parts = [self._array[first:last]]
        for begin, end in ((last, self.size), (0, first)):
            part = self._run(begin, end)
            parts.append(part)
            if len(part) < end - begin:
                break
        found = np.concatenate(parts)
        row_ids = found[found != 0].astype(np.int64)
        homes = self._homes(keys_of(self._table.lines["digest"][row_ids], row_ids) >> np.uint64(32))
        inside: RowIds = row_ids[(homes >= first) & (homes < last)]
        return inside

    def _run(self, begin: int, end: int) -> npt.NDArray[np.uint32]:
        """The buckets from ``begin`` to the first empty one, or to ``end``."""
        stop = begin
        while stop < end:
            part = self._array[stop : min(stop + RUN_STEP, end)]
            empty = np.flatnonzero(part == 0)
            if len(empty):
                return self._array[begin : stop + int(empty[0])]
            stop += len(part)
        return self._array[begin:end]

    # -- building -------------------------------------------------------------------------------------------------

    def build(self, keys: SortedKeys) -> None:
        """Fill the empty map with rows of distinct digests, as arrays.

        Each takes the first free bucket at or behind its home: position = max(home, position before + 1).
        """
        before = -1
        for begin in range(0, len(keys), BUILD_STEP):
            part = keys[begin : begin + BUILD_STEP]
            steps = np.arange(len(part), dtype=np.int64)
            ahead = self._homes(part >> np.uint64(32)) - steps
            ahead[0] = max(int(ahead[0]), before + 1)
            positions = np.maximum.accumulate(ahead) + steps
            fits = positions < self.size
            row_ids = row_ids_in(part)
            self._array[positions[fits]] = row_ids[fits]
            self.entries += int(fits.sum())
            before = int(positions[-1])
            for row_id in row_ids[~fits].tolist():  # the few that run over the end
                self.insert(self._digest(row_id), row_id)
