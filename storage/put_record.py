"""The record of a put under way: its slot, its buffers, and what grows in them.

The header's size is known before the payload arrives, so the payload lands where the device will take it: a connection
reads straight into ``room`` (or copies with ``write``). The first 1 MiB of a record stays in memory until the end,
because the header's checksums are complete only then; what follows is written while the rest still arrives. Checksums
are computed on the loop, as bytes come: 3 µs for 64 KiB, far less than handing them to a thread.

What becomes of a put once its record is complete is in ``put_session``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from storage.buffers import Buffer
from storage.device.direct_read import DirectWrite
from storage.errors import DeviceFailed, LengthMismatch
from storage.format.checksums import crc32c
from storage.format.layout import round_up
from storage.format.record import HEADER_UNIT_BYTES, pack_chunk_checksums, payload_checksum, write_header
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES
from storage.row_changes import PutIntent

if TYPE_CHECKING:
    from storage.write_path import WritePath

WRITES_AHEAD = 2
"""Pieces of one put that may be on their way to the device while it receives."""


class _Piece(DirectWrite):
    """A piece on its way to the device; its memory goes back when it is there."""

    def __init__(self, record: PutRecord, buffer: Buffer, offset_bytes: int, length: int) -> None:
        self._record = record
        self._buffer = buffer
        self.view = buffer.view[:length]
        self.length = length
        self.offset_bytes = offset_bytes

    def ended(self) -> None:
        self._buffer.release()
        self._record.note_written(self.error)


class PutRecord(DirectWrite):
    """It is itself the write of its first piece, which is all of most records."""

    __slots__ = (
        "_buffer",
        "_checksum",
        "_checksums",
        "_chunk_left",
        "_defaults",
        "_expires_at",
        "_failure",
        "_first",
        "_first_is_the_devices",
        "_given_bytes",
        "_header_bytes",
        "_key",
        "_namespace_id",
        "_open",
        "_packed_map",
        "_path",
        "_piece_end",
        "_piece_start",
        "_place",
        "_position",
        "_waiter",
        "_writes_under_way",
        "digest",
        "intent",
        "payload_bytes",
        "received_bytes",
        "row_id",
        "slot_class",
        "write_id",
    )

    def __init__(
        self,
        path: WritePath,
        key: bytes,
        packed_map: bytes,
        header_bytes: int,
        payload_bytes: int,
        slot_class: int,
        expires_at: int,
    ) -> None:
        self._path = path
        self._key = key
        self._packed_map = packed_map
        self._header_bytes = self._position = header_bytes
        self.payload_bytes = self._given_bytes = payload_bytes
        self.slot_class = slot_class
        self._expires_at = expires_at
        self.received_bytes = 0
        self._checksums: list[int] = []
        self._checksum = 0
        self._chunk_left = CHUNK_BYTES
        self._piece_start = 0
        self._piece_end = min(TRANSFER_MAX_BYTES, header_bytes + payload_bytes)
        """Where in the buffer the piece under way ends."""
        self._defaults: list[bytes] | None = None
        """Parts that the schema fills in and that are not appended yet: they follow ``_given_bytes`` of the client."""
        self._open = True
        """Whether the slot still is the put's: it has neither joined nor been given up."""
        self._first_is_the_devices = False
        """From when the first piece is written, its memory goes back when that has ended."""
        self._writes_under_way = 0
        self._failure: DeviceFailed | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Of one who waits for the next write to end."""
        self.intent: PutIntent | None = None
        """What the put will join with, once the record is complete."""

    @property
    def first_bytes(self) -> int:
        """Size of the buffer for the first piece."""
        return round_up(self._piece_end, self._path.block_bytes)

    @property
    def record_bytes(self) -> int:
        """What the put writes, in whole blocks."""
        return round_up(self._header_bytes + self.payload_bytes, self._path.block_bytes)

    def name(self, namespace_id: int, digest: bytes, write_id: int) -> None:
        """Whose put it is."""
        self._namespace_id = namespace_id
        self.digest = digest
        self.write_id = write_id

    def place(self, row_id: int, first: Buffer) -> None:
        """Take a slot and the first buffer as the put's own."""
        self.row_id = row_id
        self._first = self._buffer = first
        self._place = self._path.locate(row_id)

    # -- receiving ------------------------------------------------------------------------------------------------

    @property
    def missing_bytes(self) -> int:
        """What the client has yet to send."""
        return self._given_bytes - self.received_bytes

    def room(self) -> memoryview:
        """Where the next bytes of the payload go: the rest of the piece under way, never beyond the declared length.

        Empty if the piece is full (``make_room``) or all is there. Valid until the next call that takes or ends.
        """
        position = self._position
        return self._buffer.view[position : min(self._piece_end, position + self._given_bytes - self.received_bytes)]

    def filled(self, count: int) -> None:
        """The first ``count`` bytes of ``room()`` were filled."""
        assert 0 <= count <= min(self._piece_end - self._position, self.missing_bytes)
        self.received_bytes += count
        position = self._position
        self._take(self._buffer.view[position : position + count])

    async def make_room(self) -> None:
        """The piece is full and bytes are missing: see that it is written, and go on in the next buffer.

        Does nothing if there is room. Raises WriteFailed, Busy.
        """
        if self._position == self._piece_end and self.missing_bytes:
            await self._next_piece()

    def write_now(self, data: bytes | bytearray | memoryview) -> bool:
        """As ``write``, at once; False if that would have to wait: then nothing was taken. Raises LengthMismatch."""
        count = len(data)
        position = self._position
        if count > self._given_bytes - self.received_bytes:
            raise LengthMismatch(f"more than the {self._given_bytes} bytes declared")
        if position + count > self._piece_end or self._defaults:
            return False
        self._buffer.view[position : position + count] = data
        self.received_bytes += count
        self._take(data)
        return True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to the payload. Raises LengthMismatch beyond the declared length, WriteFailed, Busy."""
        if self.write_now(data):
            return
        view = memoryview(data)
        self.received_bytes += len(view)
        await self._append(view)
        if not self.missing_bytes:
            await self.append_defaults()

    async def fill_in(self, given_bytes: int, defaults: list[bytes]) -> None:
        """Let parts that the schema fills in follow what the client sends."""
        self._given_bytes, self._defaults = given_bytes, defaults
        if not given_bytes:
            await self.append_defaults()

    @property
    def lacks_defaults(self) -> bool:
        """Whether all of the client is here, and what the schema fills in behind it is not."""
        return bool(self._defaults) and not self.missing_bytes

    async def append_defaults(self) -> None:
        """Append what the schema fills in. Raises WriteFailed, Busy."""
        while self._defaults:
            await self._append(memoryview(self._defaults.pop(0)))
        self._defaults = None

    async def _append(self, view: memoryview) -> None:
        while len(view):
            if self._position == self._piece_end:
                await self._next_piece()
            part = view[: self._piece_end - self._position]
            self._buffer.view[self._position : self._position + len(part)] = part
            self._take(part)
            view = view[len(part) :]

    def _take(self, data: bytes | bytearray | memoryview) -> None:
        """More bytes of the payload stand in the buffer: checksum and position follow."""
        count = len(data)
        self._position += count
        if count < self._chunk_left:  # most values are less than a chunk: no slices of it
            self._checksum = crc32c(data, self._checksum)
            self._chunk_left -= count
            return
        view, done = memoryview(data), 0
        while done < count:
            stop = min(count, done + self._chunk_left)
            self._checksum = crc32c(view[done:stop], self._checksum)
            self._chunk_left -= stop - done
            done = stop
            if not self._chunk_left:
                self._end_chunk()

    def _end_chunk(self) -> None:
        self._checksums.append(self._checksum)
        self._checksum = 0
        self._chunk_left = CHUNK_BYTES

    async def _next_piece(self) -> None:
        """The piece is full: write it (the first one stays) and go on in a fresh buffer."""
        if self._buffer is not self._first:
            self._write_piece(TRANSFER_MAX_BYTES)
            while self._writes_under_way >= WRITES_AHEAD:
                await self._written_more()
        start = self._piece_start + TRANSFER_MAX_BYTES
        size = min(TRANSFER_MAX_BYTES, self._header_bytes + self.payload_bytes - start)
        self._buffer = await self._path.acquire(round_up(size, self._path.block_bytes))
        self._piece_start, self._piece_end, self._position = start, size, 0

    def _write_piece(self, length: int) -> None:
        """Hand the piece under way, which is not the first, to the device; its buffer is the write's from now on."""
        piece = _Piece(self, self._buffer, self._place[4] + self._piece_start, length)
        self._path.device.begin_write(piece)
        self._buffer = self._first  # not before: where the device has too much to do, the buffer stays the record's
        self._writes_under_way += 1

    # -- the end of the record ------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Complete the record, now that its whole payload is here, and hand to the device what it doesn't have yet.

        Raises LengthMismatch; Busy, behind which it can only be given up.
        """
        if self.received_bytes != self._given_bytes:
            raise LengthMismatch(f"{self.received_bytes} of {self._given_bytes} bytes came")
        assert not self._defaults, "they were appended by now"
        if self._chunk_left != CHUNK_BYTES:
            self._end_chunk()
        place = self._place
        packed = pack_chunk_checksums(self._checksums)
        identity = self._path.identity
        write_header(
            self._first.view,
            identity.uuid,
            identity.secret,
            place[0],
            place[1],
            place[2],
            place[3],
            self.write_id,
            self.digest,
            self._namespace_id,
            self.payload_bytes,
            self._expires_at,
            self._packed_map,
            packed,
        )
        self.intent = PutIntent(
            self.row_id,
            self._namespace_id,
            self.digest,
            self.write_id,
            self.payload_bytes,
            payload_checksum(packed),
            self._header_bytes // HEADER_UNIT_BYTES,
            self._expires_at,
            self._key,
            place,
        )
        self._write_rest()

    def _write_rest(self) -> None:
        """Zero the padding to a block (B2) and write what is not yet on its way: the last piece and the first."""
        position = self._position
        end = round_up(position, self._path.block_bytes)
        if end != position:
            self._buffer.view[position:end] = bytes(end - position)
        if self._buffer is not self._first:
            self._write_piece(end)
            end = TRANSFER_MAX_BYTES
        first = self._first.view
        self.view = first if len(first) == end else first[:end]
        self.length = end
        self.offset_bytes = self._place[4]
        self._path.device.begin_write(self)
        self._writes_under_way += 1
        self._first_is_the_devices = True

    # -- its writes -----------------------------------------------------------------------------------------------

    def ended(self) -> None:
        """The device has the first piece."""
        self._first.release()
        self.note_written(self.error)

    def note_written(self, error: DeviceFailed | None) -> None:
        """A write of the record has ended."""
        self._writes_under_way -= 1
        if error is not None:
            self._path.write_failed(str(error))
            self._failure = self._failure or error
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None
        if not self._writes_under_way:
            if not self._open:  # it was given up meanwhile
                self._path.space.give_back(self.row_id)
            elif self.intent is not None:
                self._is_written()

    def _is_written(self) -> None:
        """The record is complete, and the device has ended all its writes; ``_failure`` says whether one failed."""
        raise NotImplementedError

    async def _written_more(self) -> None:
        """Wait until one more write has ended. Raises WriteFailed of any that did."""
        if self._writes_under_way:
            self._waiter = self._path.loop.create_future()
            await self._waiter
        if self._failure is not None:
            raise self._failure

    def release(self) -> None:
        """Give everything back that is still the record's, the slot as soon as the device is done with it."""
        if not self._open:
            return
        self._open = False
        if not self._first_is_the_devices:
            self._first.release()
        if self._buffer is not self._first:
            self._buffer.release()
        if not self._writes_under_way:
            self._path.space.give_back(self.row_id)
