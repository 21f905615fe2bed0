"""A spool: rows of one size, written one after the other to slots of the device that no index knows of.

What an import has received so far lies here, so that its size is not bounded by memory. The slots are in flight the
whole time: a crash leaves them free, and nothing in them can pass for a record.
"""

from __future__ import annotations

import asyncio

import numpy as np

from storage.buffers import Buffer
from storage.errors import ValueTooLarge
from storage.format.layout import round_up
from storage.imports.errors import ImportNotFound
from storage.imports.key_lists import Positions
from storage.limits import TRANSFER_MAX_BYTES
from storage.write_path import WritePath

GAP_BYTES = 64 * 1024
"""Rows closer than this are read by one operation."""


class Spool:
    """Rows of ``row_bytes``. All calls on the loop's thread; one writer at a time."""

    def __init__(self, path: WritePath, slot_class: int, row_bytes: int) -> None:
        self._path = path
        self._slot_class = slot_class
        self._row_bytes = row_bytes
        self._area_bytes = path.class_bytes(slot_class)
        self._rows_per_slot = self._area_bytes // row_bytes if row_bytes else 1 << 40
        if not self._rows_per_slot:
            raise ValueTooLarge(f"a row of {row_bytes} bytes")
        self._slots: list[int] = []
        self._buffer: Buffer | None = None
        self._buffer_start = 0
        """Byte of the newest slot at which the buffer begins."""
        self._filled = 0
        self._writes: list[asyncio.Future[None]] = []
        self._closed = False
        self.rows = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of slots the spool has."""
        return len(self._slots) * self._area_bytes

    async def append(self, rows: memoryview) -> None:
        """Append whole rows. Raises Full, SpaceHeld, Busy, WriteFailed; ImportNotFound if it is closed meanwhile."""
        position = 0
        while position < len(rows):
            if not self.rows % self._rows_per_slot and self._at_slot_start():
                await self._next_slot()
            left_in_slot = (self._rows_per_slot - self.rows % self._rows_per_slot) * self._row_bytes
            part = rows[position : position + left_in_slot]
            await self._fill(part)
            self.rows += len(part) // self._row_bytes
            position += len(part)

    def _at_slot_start(self) -> bool:
        return len(self._slots) * self._rows_per_slot == self.rows

    async def _next_slot(self) -> None:
        await self.flush()
        slot = await self._path.space.reserve(self._slot_class)
        if self._closed:
            self._path.space.give_back(slot)
            raise ImportNotFound
        self._slots.append(slot)
        self._buffer_start = 0

    async def _fill(self, part: memoryview) -> None:
        position = 0
        while position < len(part):
            if self._buffer is None:
                buffer = await self._path.acquire(TRANSFER_MAX_BYTES)
                if self._closed:
                    buffer.release()
                    raise ImportNotFound
                self._buffer = buffer
                self._filled = 0
            take = min(len(part) - position, TRANSFER_MAX_BYTES - self._filled)
            self._buffer.view[self._filled : self._filled + take] = part[position : position + take]
            self._filled += take
            position += take
            if self._filled == TRANSFER_MAX_BYTES:
                await self._write_buffer()

    async def _write_buffer(self) -> None:
        """Write what the buffer holds, padded with zeros to a block (B2)."""
        assert self._buffer is not None
        end = round_up(self._filled, self._path.block_bytes)
        self._buffer.view[self._filled : end] = bytes(end - self._filled)
        offset = self._path.slot_offset(self._slots[-1]) + self._buffer_start
        write = self._path.device.write(offset, self._buffer.view[:end])
        self._buffer.hold_for(write)
        self._buffer.release()
        self._buffer = None
        self._buffer_start += self._filled
        self._writes.append(write)
        if len(self._writes) > 1:
            await self._await_write()

    async def _await_write(self) -> None:
        """It stays listed until it has ended: ``close`` gives no slot back that the device still writes to."""
        write = self._writes[0]
        try:
            await write
        finally:
            if not self._closed:
                self._writes.remove(write)

    async def flush(self) -> None:
        """Write what is not written yet; nothing more is appended to the newest slot. Raises WriteFailed."""
        if self._buffer is not None and self._filled:
            await self._write_buffer()
        while self._writes:
            await self._await_write()

    async def read(self, positions: Positions) -> list[bytes]:
        """The rows at these positions, in this order. Raises ReadFailed, Busy; ImportNotFound if it is closed."""
        if not self._row_bytes:
            return [b""] * len(positions)
        slots, rows = np.divmod(positions, self._rows_per_slot)
        starts = rows * self._row_bytes
        order = np.lexsort((starts, slots))
        found: list[bytes] = [b""] * len(positions)
        for run in self._runs(slots, starts, order):
            await self._read_run(int(slots[run[0]]), starts, run, found)
        return found

    def _runs(self, slots: Positions, starts: Positions, order: Positions) -> list[list[int]]:
        """Rows of a slot that lie close together, up to one transfer."""
        longest = TRANSFER_MAX_BYTES - 2 * self._path.block_bytes
        runs: list[list[int]] = []
        for index in order.tolist():
            if runs and slots[runs[-1][0]] == slots[index]:
                first, last = starts[runs[-1][0]], starts[runs[-1][-1]]
                near = starts[index] - last <= self._row_bytes + GAP_BYTES
                if near and starts[index] + self._row_bytes - first <= longest:
                    runs[-1].append(index)
                    continue
            runs.append([index])
        return runs

    async def _read_run(self, slot: int, starts: Positions, run: list[int], found: list[bytes]) -> None:
        if self._closed:
            raise ImportNotFound
        block = self._path.block_bytes
        first, stop = int(starts[run[0]]), int(starts[run[-1]]) + self._row_bytes
        aligned = first // block * block
        base = self._path.slot_offset(self._slots[slot])
        for begin in range(aligned, stop, TRANSFER_MAX_BYTES):
            size = min(round_up(stop - begin, block), TRANSFER_MAX_BYTES)
            buffer = await self._path.acquire(size)
            io = self._path.device.read(base + begin, buffer.view[:size])
            buffer.hold_for(io)
            try:
                await io
                for index in run:
                    start = int(starts[index])
                    low, high = max(start, begin), min(start + self._row_bytes, begin + size)
                    if low < high:
                        found[index] += bytes(buffer.view[low - begin : high - begin])
            finally:
                buffer.release()

    def close(self) -> None:
        """Give the slots back, each as soon as the device is done with it. Idempotent."""
        self._closed = True
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None
        slots, self._slots = self._slots, []
        pending = [write for write in self._writes if not write.done()]
        for write in self._writes:
            if write.done() and not write.cancelled():
                write.exception()
        self._writes.clear()
        if pending:
            rest = asyncio.gather(*pending, return_exceptions=True)
            rest.add_done_callback(lambda _: self._give_back(slots))
        else:
            self._give_back(slots)

    def _give_back(self, slots: list[int]) -> None:
        for row_id in slots:
            self._path.space.give_back(row_id)
