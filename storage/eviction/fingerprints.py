"""Which keys were seen lately: 4 bytes per key remembered, no keys kept.

A table of buckets of eight; an entry is 16 bits of the key's digest and 16 bits of time, counted in keys added. A key
is remembered while at most ``window`` others have been added since. Where a bucket is full the oldest gives way. Two
keys are taken for one another about once in eight thousand look-ups.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

BUCKET = 8
BYTES_PER_KEY = 4
TICKS = 8192
"""Time steps in which a table is added to as often as it has places; the clock of 16 bits wraps after eight times
that, when every place has been overwritten many times."""
_TICK_MASK = 0xFFFF
_SIZE_MIN = 1024
_HASH = struct.Struct("<Q")


class Fingerprints:
    """Grows with the window; once something is remembered it never shrinks."""

    def __init__(self) -> None:
        self._table: npt.NDArray[np.uint32] = np.zeros(_SIZE_MIN, dtype=np.uint32)
        self._use_table()
        self._added = 0
        self.window = 0

    def _use_table(self) -> None:
        self._entries = self._table.data
        self._bucket_mask = len(self._table) // BUCKET - 1
        self._step = max(1, len(self._table) // TICKS)

    def resize(self, window: int) -> None:
        """Remember so many keys from now on."""
        self.window = window
        if not self._added:
            places = _SIZE_MIN
            while places * 3 < window * 4:
                places *= 2
            if places != len(self._table):
                self._table = np.zeros(places, dtype=np.uint32)
                self._use_table()
        while len(self._table) * 3 < window * 4:
            self._grow()

    def _grow(self) -> None:
        """Twice the places: a bucket's entries may belong to either of the two buckets it becomes."""
        old, tick = self._table, self._added // self._step
        ages = (tick - (old & _TICK_MASK).astype(np.int64)) & _TICK_MASK
        self._table = np.zeros(0, dtype=np.uint32)
        fresh = (old != 0) & (ages * self._step <= self.window)
        step = max(1, 2 * len(old) // TICKS)
        ticks = (self._added // step - ages * self._step // step) & _TICK_MASK
        moved = np.where(fresh, (old & ~np.uint32(_TICK_MASK)) | ticks.astype(np.uint32), np.uint32(0))
        self._table = np.concatenate((moved, moved))
        self._use_table()

    def add(self, digest: bytes) -> None:
        """Remember a key."""
        value = _HASH.unpack_from(digest, 8)[0]
        mark = (value >> 48) or 1
        first = (value & self._bucket_mask) * BUCKET
        tick = self._added // self._step & _TICK_MASK
        self._added += 1
        place, oldest = first, -1
        for position, entry in enumerate(self._entries[first : first + BUCKET].tolist(), first):
            if not entry or entry >> 16 == mark:
                place = position
                break
            age = (tick - entry) & _TICK_MASK
            if age > oldest:
                place, oldest = position, age
        self._entries[place] = mark << 16 | tick

    def knows(self, digest: bytes) -> bool:
        """Whether the key was added within the window."""
        return self._find(digest) >= 0

    def forget(self, digest: bytes) -> bool:
        """Remember a key no more; whether it was."""
        if not self._added:
            return False  # a device that is not full yet: every put asks
        place = self._find(digest)
        if place >= 0:
            self._entries[place] = 0
        return place >= 0

    def _find(self, digest: bytes) -> int:
        value = _HASH.unpack_from(digest, 8)[0]
        mark = (value >> 48) or 1
        first = (value & self._bucket_mask) * BUCKET
        for position, entry in enumerate(self._entries[first : first + BUCKET].tolist(), first):
            if entry >> 16 == mark:
                age = ((self._added // self._step) - entry) & _TICK_MASK
                return position if age * self._step <= self.window else -1
        return -1

    @property
    def memory_bytes(self) -> int:
        return self._table.nbytes
