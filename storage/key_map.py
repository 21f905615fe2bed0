"""Key digest to row id: an open-addressing table of 4-byte buckets, sized once for the whole device.

Linear probing at a load of at most two thirds; the digests themselves stand in the rows. 8 to 12 bytes per entry
against about 180 of a dict, and built for a million rows in a fraction of a second.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES
from storage.format.row import DIGEST_OFFSET
from storage.slot_table import RowIds, SlotTable

RUN_STEP = 256
"""Buckets looked at in one step for the end of a run; at a load of two thirds hardly a run is longer."""
_DIGEST = struct.Struct("<16s")
_HOME = struct.Struct("<Q")


class KeyMap:
    """Holds live rows only. A row must be in the table while it is in the map."""

    def __init__(self, table: SlotTable, max_entries: int) -> None:
        self._table = table
        size = 1 << max(10, (max_entries * 3 // 2).bit_length())
        self._mask = size - 1
        self._array: npt.NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)
        self._buckets = self._array.data
        self.entries = 0

    def find(self, digest: bytes) -> int:
        """The row id under ``digest``, 0 if there is none."""
        buckets, mask, view = self._buckets, self._mask, self._table.view
        bucket = _HOME.unpack_from(digest)[0] & mask
        while row_id := int(buckets[bucket]):
            if _DIGEST.unpack_from(view, row_id * LINE_BYTES + DIGEST_OFFSET)[0] == digest:
                return row_id
            bucket = (bucket + 1) & mask
        return 0

    def insert(self, digest: bytes, row_id: int) -> None:
        """Add a row whose digest is not in the map."""
        buckets, mask = self._buckets, self._mask
        bucket = _HOME.unpack_from(digest)[0] & mask
        while buckets[bucket]:
            bucket = (bucket + 1) & mask
        buckets[bucket] = row_id
        self.entries += 1

    def remove(self, digest: bytes, row_id: int) -> None:
        """Take a row out, and close the gap so that no probe ends too early. Raises KeyError if it is not there."""
        buckets, mask = self._buckets, self._mask
        gap = _HOME.unpack_from(digest)[0] & mask
        while buckets[gap] != row_id:
            if not buckets[gap]:
                raise KeyError(row_id)
            gap = (gap + 1) & mask
        bucket = gap
        while True:
            bucket = (bucket + 1) & mask
            other = buckets[bucket]
            if not other:
                break
            # The other row may move into the gap unless its home lies behind the gap.
            if (bucket - self._home(other)) & mask >= (bucket - gap) & mask:
                buckets[gap] = other
                gap = bucket
        buckets[gap] = 0
        self.entries -= 1

    # -- walking in order (listings) ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of buckets, which is that of the possible homes."""
        return self._mask + 1

    def order(self, digest: bytes) -> tuple[int, bytes]:
        """A digest's place in the order of the map: by home bucket, then by the digest. It never changes."""
        return _HOME.unpack_from(digest)[0] & self._mask, digest

    def orders(self, digests: npt.NDArray[np.void]) -> list[npt.NDArray[np.uint64]]:
        """As ``order``, of many digests: homes, and the digests' two halves as they compare."""
        homes = digests.view("<u8").reshape(-1, 2)[:, 0] & np.uint64(self._mask)
        halves = digests.view(">u8").reshape(-1, 2)
        return [homes, halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)]

    def last_of(self, home: int) -> bytes:
        """The digest that comes last of all with this home."""
        return _HOME.pack(home | ~self._mask & 0xFFFFFFFFFFFFFFFF) + b"\xff" * 8

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
        homes = np.ascontiguousarray(self._table.lines["digest"][row_ids]).view(np.uint64).reshape(-1, 2)[:, 0]
        homes = homes & np.uint64(self._mask)
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

    def build(self, row_ids: RowIds) -> None:
        """Fill the empty map with rows of distinct digests, as arrays.

        Rows sorted by home bucket take the first free bucket at or behind it: position = max(home, previous + 1).
        """
        digests = np.ascontiguousarray(self._table.lines["digest"][row_ids]).view(np.uint64).reshape(-1, 2)
        homes = (digests[:, 0] & np.uint64(self._mask)).astype(np.int64)
        order = np.argsort(homes, kind="stable")
        steps = np.arange(len(order), dtype=np.int64)
        positions = np.maximum.accumulate(homes[order] - steps) + steps
        fits = positions <= self._mask
        self._array[positions[fits]] = row_ids[order[fits]]
        self.entries = int(fits.sum())
        for row_id in row_ids[order[~fits]].tolist():  # the few that run over the end
            self.insert(self._digest(row_id), row_id)

    def _digest(self, row_id: int) -> bytes:
        digest: bytes = _DIGEST.unpack_from(self._table.view, row_id * LINE_BYTES + DIGEST_OFFSET)[0]
        return digest

    def _home(self, row_id: int) -> int:
        home: int = _HOME.unpack_from(self._table.view, row_id * LINE_BYTES + DIGEST_OFFSET)[0]
        return home & self._mask
