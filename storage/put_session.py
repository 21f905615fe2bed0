"""One put under way: its slot, its buffers, and the record growing in them.

The header's size is known before the payload arrives, so the payload lands where the device will take it: a connection
reads straight into ``room`` (or copies with ``write``). The first 1 MiB of a record stays in memory until the end,
because the header's checksums are complete only then; what follows is written while the rest still arrives. Checksums
are computed on the loop, as bytes come: 3 µs for 64 KiB, far less than handing them to a thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from storage.buffers import Buffer
from storage.entries import UNCONDITIONAL, Conditions, Durability, PutResult
from storage.errors import DeviceFailed, LengthMismatch
from storage.format.checksums import crc32c
from storage.format.layout import round_up
from storage.format.record import (
    HEADER_UNIT_BYTES,
    pack_chunk_checksums,
    payload_checksum,
    write_header,
)
from storage.known_keys import KnownKey
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES
from storage.row_changes import PutIntent

if TYPE_CHECKING:
    from storage.write_path import WritePath

_NONE = Durability.NONE
"""A global name: looking a member of an enumeration up takes ten times as long (0.2 µs), and every put does."""

WRITES_AHEAD = 2
"""Pieces of one put that may be on their way to the device while it receives."""


class PutSession:
    """One put under way. Exactly one of ``commit`` and ``abort`` ends it; ``abort`` after ``commit`` does nothing."""

    __slots__ = (
        "_buffer",
        "_checksum",
        "_checksums",
        "_chunk_left",
        "_defaults",
        "_detached",
        "_earlier",
        "_expires_at",
        "_first",
        "_generation",
        "_given_bytes",
        "_header_bytes",
        "_joined",
        "_key",
        "_namespace_id",
        "_offset",
        "_open",
        "_packed_map",
        "_path",
        "_piece_end",
        "_piece_start",
        "_position",
        "_row_id",
        "_slab",
        "_slot",
        "_slot_class",
        "_writes",
        "conditions",
        "digest",
        "durability",
        "intent",
        "known",
        "payload_bytes",
        "received_bytes",
        "write_id",
    )

    def __init__(
        self,
        path: WritePath,
        row_id: int,
        first: Buffer,
        namespace_id: int,
        key: bytes,
        digest: bytes,
        write_id: int,
        packed_map: bytes,
        header_bytes: int,
        payload_bytes: int,
        expires_at: int,
        durability: Durability,
        conditions: Conditions,
    ) -> None:
        self._path = path
        self._row_id = row_id
        self._first = self._buffer = first
        self._namespace_id = namespace_id
        self._key = key
        self.digest = digest
        self._packed_map = packed_map
        self._expires_at = expires_at
        self.conditions = conditions
        self.durability = durability
        self.write_id = write_id
        self.payload_bytes = payload_bytes
        self.received_bytes = 0
        self._slab, self._slot, self._slot_class, self._generation, self._offset = path.locate(row_id)
        self._checksums: list[int] = []
        self._checksum = 0
        self._chunk_left = CHUNK_BYTES
        self._header_bytes = self._position = header_bytes
        self._piece_start = 0
        self._piece_end = min(TRANSFER_MAX_BYTES, header_bytes + payload_bytes)
        """Where in the buffer the piece under way ends."""
        self._writes: list[tuple[Buffer, asyncio.Future[None]]] = []
        self._open = True
        self._detached = False
        self._joined: asyncio.Future[None] | None = None
        self._earlier: asyncio.Future[None] | None = None
        self.intent: PutIntent | None = None
        """What a staged put will join with."""
        self._given_bytes = payload_bytes
        """Bytes that the client sends; ``_defaults`` follow them."""
        self._defaults: list[bytes] | None = None
        """Parts that the schema fills in and that are not appended yet."""
        self.known: KnownKey | None = None
        """What listings will want to know of the entry, if keys are kept in memory."""

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
        return self._buffer.view[position : min(self._piece_end, position + self.missing_bytes)]

    def filled(self, count: int) -> None:
        """The first ``count`` bytes of ``room()`` were filled."""
        assert 0 <= count <= min(self._piece_end - self._position, self.missing_bytes)
        self.received_bytes += count
        self._take(count)

    async def make_room(self) -> None:
        """The piece is full and bytes are missing: see that it is written, and go on in the next buffer.

        Does nothing if there is room. Raises WriteFailed, Busy.
        """
        if self._position == self._piece_end and self.missing_bytes:
            await self._next_piece()

    def write_now(self, data: bytes | bytearray | memoryview) -> bool:
        """As ``write``, at once; False if that would have to wait: then nothing was taken. Raises LengthMismatch."""
        count = len(data)
        position, end = self._position, self._position + count
        if count > self.missing_bytes:
            raise LengthMismatch(f"more than the {self._given_bytes} bytes declared")
        if end > self._piece_end or self._defaults:
            return False
        self._buffer.view[position:end] = data
        self.received_bytes += count
        self._take(count)
        return True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to the payload. Raises LengthMismatch beyond the declared length, WriteFailed, Busy."""
        if self.write_now(data):
            return
        view = memoryview(data)
        self.received_bytes += len(view)
        await self._append(view)
        if not self.missing_bytes:
            await self._append_defaults()

    async def fill_in(self, given_bytes: int, defaults: list[bytes]) -> None:
        """Let parts that the schema fills in follow what the client sends."""
        self._given_bytes, self._defaults = given_bytes, defaults
        if not given_bytes:
            await self._append_defaults()

    async def _append_defaults(self) -> None:
        while self._defaults:
            await self._append(memoryview(self._defaults.pop(0)))
        self._defaults = None

    async def _append(self, view: memoryview) -> None:
        while len(view):
            if self._position == self._piece_end:
                await self._next_piece()
            part = view[: self._piece_end - self._position]
            self._buffer.view[self._position : self._position + len(part)] = part
            self._take(len(part))
            view = view[len(part) :]

    def _take(self, count: int) -> None:
        """``count`` more bytes of the payload stand in the buffer: checksum and position follow."""
        view, position = self._buffer.view, self._position
        end = self._position = position + count
        while position < end:
            stop = min(end, position + self._chunk_left)
            self._checksum = crc32c(view[position:stop], self._checksum)
            self._chunk_left -= stop - position
            position = stop
            if not self._chunk_left:
                self._end_chunk()

    def _end_chunk(self) -> None:
        self._checksums.append(self._checksum)
        self._checksum = 0
        self._chunk_left = CHUNK_BYTES

    async def _next_piece(self) -> None:
        """The piece is full: write it (the first one stays) and go on in a fresh buffer."""
        if self._buffer is not self._first:
            self._start_write(self._buffer, self._piece_start, TRANSFER_MAX_BYTES)
            while len(self._writes) >= WRITES_AHEAD:
                await self._await_write()
        start = self._piece_start + TRANSFER_MAX_BYTES
        size = min(TRANSFER_MAX_BYTES, self._header_bytes + self.payload_bytes - start)
        self._buffer = await self._path.acquire(round_up(size, self._path.block_bytes))
        self._piece_start, self._piece_end, self._position = start, size, 0

    def _start_write(self, buffer: Buffer, start: int, size: int) -> None:
        self._writes.append((buffer, self._path.device.write(self._offset + start, buffer.view[:size])))

    async def _await_write(self) -> None:
        buffer, io = self._writes[0]
        try:
            await io
        except DeviceFailed as error:
            self._path.write_failed(str(error))
            raise
        self._writes.pop(0)
        if buffer is not self._first:
            buffer.release()

    # -- ending ---------------------------------------------------------------------------------------------------

    async def commit(self) -> PutResult:
        """Finish. Raises LengthMismatch, PreconditionFailed, QuotaExceeded, SpaceHeld, NamespaceWiped, WriteFailed,
        JournalUnavailable, FlushFailed."""
        if self._defaults and not self.missing_bytes:
            await self._append_defaults()
        intent = self._seal()
        self._write_rest()
        if self.durability is _NONE:
            return self._path.finish_later(self, intent)
        return await self.finish(intent)

    def stage(self) -> None:
        """Seal the record and start its last writes; its memory goes back when they end. For ``commit_many``.

        Raises LengthMismatch.
        """
        self.intent = self._seal()
        self._write_rest()
        for buffer, io in self._writes:
            buffer.hold_for(io)
            buffer.release()

    def _seal(self) -> PutIntent:
        """Complete the header, now that the whole payload is here."""
        if self.received_bytes != self._given_bytes:
            raise LengthMismatch(f"{self.received_bytes} of {self._given_bytes} bytes came")
        assert not self._defaults, "they were appended by now"
        if self._chunk_left != CHUNK_BYTES:
            self._end_chunk()
        packed = pack_chunk_checksums(self._checksums)
        identity = self._path.identity
        write_header(
            self._first.view,
            uuid=identity.uuid,
            secret=identity.secret,
            slab=self._slab,
            slot=self._slot,
            slot_class=self._slot_class,
            generation=self._generation,
            write_id=self.write_id,
            digest=self.digest,
            namespace_id=self._namespace_id,
            payload_bytes=self.payload_bytes,
            expires_at=self._expires_at,
            packed_map=self._packed_map,
            packed_chunk_checksums=packed,
        )
        return PutIntent(
            self._row_id,
            self._namespace_id,
            self.digest,
            self.write_id,
            self.payload_bytes,
            payload_checksum(packed),
            self._header_bytes // HEADER_UNIT_BYTES,
            self._expires_at,
            self._key,
        )

    def _write_rest(self) -> None:
        """Zero the padding to a block (B2) and write what is not yet on its way: the last piece and the first."""
        end = round_up(self._position, self._path.block_bytes)
        self._buffer.view[self._position : end] = bytes(end - self._position)
        if self._buffer is not self._first:
            self._start_write(self._buffer, self._piece_start, end)
            end = TRANSFER_MAX_BYTES
        self._start_write(self._first, 0, end)

    async def finish(self, intent: PutIntent) -> PutResult:
        """Payload written, then the row journaled, then the promised level reached (D1, D3)."""
        path = self._path
        while self._writes:
            await self._await_write()
        path.step("put_payload_written")
        if not self._detached:
            self._earlier = path.behind(self.digest)
        if self._earlier is not None:
            await self.earlier_joined()
        if self.conditions is UNCONDITIONAL:
            unit = path.commit.put(intent, UNCONDITIONAL, self.durability)
        else:
            unit = await path.join(intent, self.conditions, self.durability)
        self.hand_over()
        if unit is None:
            return PutResult(self.write_id, True, _NONE)
        await path.reach(unit, self.durability)
        return PutResult(self.write_id, unit.replaced == 0, self.durability)

    async def written(self) -> None:
        """Wait until the device has the whole record. Raises WriteFailed."""
        while self._writes:
            await self._await_write()

    def hand_over(self) -> None:
        """The put has joined: the slot is the index's now."""
        if self.known is not None and self._path.known_keys is not None:
            self._path.known_keys.remember(self._row_id, self.known)
        self._open = False
        self._first.release()
        self._has_joined()

    def detach(self) -> None:
        """The answer was given already: from now on only ``release`` ends the session."""
        self._detached = True
        self._earlier = self._path.behind(self.digest)

    async def earlier_joined(self) -> None:
        """Wait for the put of the key at level ``none`` that was acknowledged before this one."""
        if self._earlier is not None:
            await asyncio.wait([self._earlier])

    def joined(self) -> asyncio.Future[None]:
        """Of a detached put: done once it has joined, or never will."""
        if self._joined is None:
            self._joined = asyncio.get_running_loop().create_future()
        return self._joined

    def _has_joined(self) -> None:
        if self._detached:
            self._path.forget_behind(self)
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    def abort(self) -> None:
        """Give everything back, unless the put was committed. Idempotent."""
        if not self._detached:
            self.release()

    def release(self) -> None:
        """Give everything back that is still this put's, the slot as soon as the device is done with it."""
        self._has_joined()
        if not self._open:
            return
        self._open = False
        buffers = {id(b): b for b in (self._first, self._buffer, *(b for b, _ in self._writes))}
        pending = [(b, io) for b, io in self._writes if not io.done()]
        if self.intent is None:
            for buffer, io in pending:
                buffer.hold_for(io)
        for buffer in buffers.values():
            buffer.release()
        for _, io in self._writes:
            if io.done():
                io.exception()
        if pending:
            rest = asyncio.gather(*(io for _, io in pending), return_exceptions=True)
            rest.add_done_callback(lambda _: self._path.space.give_back(self._row_id))
        else:
            self._path.space.give_back(self._row_id)
        self._writes.clear()
