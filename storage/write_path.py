"""The life of a put: reserve by declared length, stream into aligned buffers, write, journal, publish.

The header's size is known before the payload arrives, so the payload lands where the device will take it. The first
1 MiB of a record stays in memory until the end, because the header's checksums are complete only then; what follows
is written while the rest still arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage.buffers import Buffer, BufferArena
from storage.commit import Commit, PutUnit
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import UNCONDITIONAL, Conditions, Durability, PutResult
from storage.errors import (
    DeviceFailed,
    LengthMismatch,
    MetadataInvalid,
    PreconditionFailed,
    RawblockdError,
    Unavailable,
    ValueTooLarge,
)
from storage.format.checksums import crc32c
from storage.format.layout import round_up
from storage.format.record import (
    HEADER_UNIT_BYTES,
    RecordMap,
    encode_map,
    header_size,
    pack_chunk_checksums,
    payload_checksum,
    write_header,
)
from storage.identity import Identity
from storage.index import Index
from storage.journal import Journal
from storage.keys import check_key, check_metadata
from storage.limits import (
    CHUNK_BYTES,
    HEADER_MAX_BYTES,
    TRANSFER_MAX_BYTES,
)
from storage.row_changes import PutIntent
from storage.space import Space

EXPIRES_MAX = 0xFFFFFFFF
WRITES_AHEAD = 2
"""Pieces of one put that may be on their way to the device while it receives."""


class PutSession:
    """One put under way. Exactly one of ``commit`` and ``abort`` ends it; ``abort`` after ``commit`` does nothing."""

    def __init__(
        self,
        path: WritePath,
        row_id: int,
        first: Buffer,
        *,
        namespace_id: int,
        digest: bytes,
        write_id: int,
        packed_map: bytes,
        payload_bytes: int,
        expires_at: int,
        durability: Durability,
        conditions: Conditions,
    ) -> None:
        self._path = path
        self._row_id = row_id
        self._first = first
        self._namespace_id = namespace_id
        self._digest = digest
        self._packed_map = packed_map
        self._expires_at = expires_at
        self._conditions = conditions
        self.durability = durability
        self.write_id = write_id
        self.payload_bytes = payload_bytes
        self.received_bytes = 0
        self._header_bytes = header_size(len(packed_map), payload_bytes)
        self._offset = path.slot_offset(row_id)
        self._checksums: list[int] = []
        self._checksum = 0
        self._chunk_left = CHUNK_BYTES
        self._buffer = first
        self._position = self._header_bytes
        self._piece_start = 0
        self._writes: list[tuple[Buffer, asyncio.Future[None]]] = []
        self._open = True
        self._detached = False
        self._joined: asyncio.Future[None] | None = None
        self._earlier: asyncio.Future[None] | None = None

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to the payload. Raises LengthMismatch beyond the declared length, WriteFailed, Busy."""
        view = memoryview(data)
        if self.received_bytes + len(view) > self.payload_bytes:
            raise LengthMismatch(f"more than the {self.payload_bytes} bytes declared")
        self.received_bytes += len(view)
        while len(view):
            room = self._piece_end() - self._position
            if not room:
                await self._next_piece()
                continue
            part = view[: min(room, self._chunk_left)]
            self._buffer.view[self._position : self._position + len(part)] = part
            self._checksum = crc32c(part, self._checksum)
            self._position += len(part)
            self._chunk_left -= len(part)
            if not self._chunk_left:
                self._end_chunk()
            view = view[len(part) :]

    def _piece_end(self) -> int:
        return min(TRANSFER_MAX_BYTES, self._header_bytes + self.payload_bytes - self._piece_start)

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
        self._piece_start += TRANSFER_MAX_BYTES
        rest = self._header_bytes + self.payload_bytes - self._piece_start
        size = round_up(min(TRANSFER_MAX_BYTES, rest), self._path.block_bytes)
        self._buffer = await self._path.acquire(size)
        self._position = 0

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

    async def commit(self) -> PutResult:
        """Finish. Raises LengthMismatch, PreconditionFailed, WriteFailed, JournalUnavailable, FlushFailed."""
        if self.received_bytes != self.payload_bytes:
            raise LengthMismatch(f"{self.received_bytes} of {self.payload_bytes} bytes came")
        if self._chunk_left != CHUNK_BYTES:
            self._end_chunk()
        packed = pack_chunk_checksums(self._checksums)
        slab, slot = self._path.place_of(self._row_id)
        write_header(
            self._first.view,
            uuid=self._path.identity.uuid,
            secret=self._path.identity.secret,
            slab=slab,
            slot=slot,
            slot_class=self._path.slot_class(slab),
            generation=self._path.generation(slab),
            write_id=self.write_id,
            digest=self._digest,
            namespace_id=self._namespace_id,
            payload_bytes=self.payload_bytes,
            expires_at=self._expires_at,
            packed_map=self._packed_map,
            packed_chunk_checksums=packed,
        )
        intent = PutIntent(
            self._row_id,
            self._namespace_id,
            self._digest,
            self.write_id,
            self.payload_bytes,
            payload_checksum(packed),
            self._header_bytes // HEADER_UNIT_BYTES,
            self._expires_at,
        )
        self._write_rest()
        if self.durability is Durability.NONE:
            return self._path.finish_later(self, intent)
        return await self.finish(intent)

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
        while self._writes:
            await self._await_write()
        self._path.step("put_payload_written")
        if not self._detached:
            self._earlier = self._path.behind(self._digest)
        if self._earlier is not None:
            await asyncio.wait([self._earlier])
        unit = await self._path.join(intent, self._conditions, self.durability)
        self._open = False
        self._first.release()
        self._has_joined()
        if unit is None:
            return PutResult(self.write_id, True, Durability.NONE)
        result = PutResult(self.write_id, unit.replaced == 0, self.durability)
        await self._path.reach(unit, self.durability)
        return result

    def detach(self) -> asyncio.Future[None]:
        """The answer was given already: from now on only ``release`` ends the session.

        The future is done once the put has joined, or never will.
        """
        self._detached = True
        self._earlier = self._path.behind(self._digest)
        self._joined = asyncio.get_running_loop().create_future()
        return self._joined

    def _has_joined(self) -> None:
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


class WritePath:
    def __init__(
        self,
        device: BlockDevice,
        index: Index,
        commit: Commit,
        journal: Journal,
        space: Space,
        arena: BufferArena,
        identity: Identity,
        counters: EngineCounters,
        clock: Callable[[], float],
        wait_timeout_seconds: float,
    ) -> None:
        self.device = device
        self._index = index
        self.commit = commit
        self._journal = journal
        self.space = space
        self._arena = arena
        self.identity = identity
        self._counters = counters
        self._clock = clock
        self._wait_timeout_seconds = wait_timeout_seconds
        self.block_bytes = index.geometry.block_bytes
        self._background: set[asyncio.Task[None]] = set()
        self._behind: dict[bytes, asyncio.Future[None]] = {}
        """Digest → done once the last put of the key that was acknowledged at level ``none`` has joined."""
        self.write_failed: Callable[[str], None] = lambda _: None
        """Told of each failed write, for the device's health."""
        self.step: Callable[[str], None] = lambda _: None
        """Told the named points a crash test stops at."""

    async def begin(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        *,
        content_type: str = "",
        metadata: tuple[tuple[str, str], ...] = (),
        expires_at: int = 0,
        durability: Durability = Durability.JOURNAL,
        conditions: Conditions = UNCONDITIONAL,
    ) -> PutSession:
        """Reserve a slot and the first buffer. Raises what a put can be refused with before its body is read."""
        check_key(key)
        check_metadata(content_type, metadata)
        if not 0 <= expires_at <= EXPIRES_MAX:
            raise MetadataInvalid("the expiry lies behind the year 2105")
        stored_ms = int(self._clock() * 1000)
        packed_map = encode_map(RecordMap(key, namespace, stored_ms, content_type, metadata))
        record_bytes = header_size(len(packed_map), payload_bytes) + payload_bytes
        slot_class = self._index.geometry.class_for(record_bytes)
        if slot_class < 0 or record_bytes - payload_bytes > HEADER_MAX_BYTES:
            raise ValueTooLarge(f"{payload_bytes} bytes; the largest value is about {self.max_value_bytes} bytes")
        if durability is Durability.NONE and conditions is not UNCONDITIONAL:
            durability = Durability.JOURNAL  # a condition is decided when the row joins, so the answer waits for it
        if durability is not Durability.NONE:
            self._journal.check_available()
        namespace_id = await self.commit.namespace_id(namespace)
        digest = self.identity.digest(namespace_id, key)
        if conditions is not UNCONDITIONAL:
            earlier = self.behind(digest)
            if earlier is not None:
                await asyncio.wait([earlier])
            await self.commit.wait_for_conditions(digest, conditions)
        write_id = self.identity.draw_write_id()
        row_id = await self.space.reserve(slot_class)
        first: Buffer | None = None
        try:
            first = await self.acquire(round_up(min(record_bytes, TRANSFER_MAX_BYTES), self.block_bytes))
        finally:
            if first is None:
                self.space.give_back(row_id)
        return PutSession(
            self,
            row_id,
            first,
            namespace_id=namespace_id,
            digest=digest,
            write_id=write_id,
            packed_map=packed_map,
            payload_bytes=payload_bytes,
            expires_at=expires_at,
            durability=durability,
            conditions=conditions,
        )

    async def join(self, intent: PutIntent, conditions: Conditions, durability: Durability) -> PutUnit | None:
        """Join a put whose record is written. Raises PreconditionFailed, JournalUnavailable."""
        while True:
            try:
                return self.commit.put(intent, conditions, durability)
            except PreconditionFailed:
                await self.commit.wait_for_conditions(intent.digest, conditions)

    @property
    def max_value_bytes(self) -> int:
        """The largest payload that fits with a short key and no metadata."""
        slot = self._index.geometry.class_bytes[-1]
        return slot - header_size(256, slot)

    async def acquire(self, size_bytes: int) -> Buffer:
        return self._arena.try_acquire(size_bytes) or await self._arena.acquire(size_bytes, self._wait_timeout_seconds)

    def slot_offset(self, row_id: int) -> int:
        return self._index.table.slot_offset(row_id)

    def place_of(self, row_id: int) -> tuple[int, int]:
        return self._index.table.place_of(row_id)

    def slot_class(self, slab: int) -> int:
        return int(self._index.table.slab_class[slab])

    def generation(self, slab: int) -> int:
        return int(self._index.table.slab_generation[slab])

    async def reach(self, unit: PutUnit, durability: Durability) -> None:
        """Wait until a joined put has reached its level, and count it."""
        assert unit.done is not None
        try:
            block = await asyncio.shield(unit.done)
            if durability is Durability.FLUSH:
                await self._journal.flush_through(block)
        except (Unavailable, DeviceFailed):
            self._counters.puts["failed"] += 1
            raise
        self._counters.puts["replaced" if unit.replaced else "created"] += 1

    def finish_later(self, session: PutSession, intent: PutIntent) -> PutResult:
        """Level ``none``: the payload is accepted; the rest happens behind the answer."""
        created = not self.commit.check_conditions(intent.digest, UNCONDITIONAL)
        joined = session.detach()
        self._behind[intent.digest] = joined
        joined.add_done_callback(lambda done: self._forget_behind(intent.digest, done))
        task = asyncio.get_running_loop().create_task(self._finish_behind(session, intent))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return PutResult(session.write_id, created, Durability.NONE)

    def behind(self, digest: bytes) -> asyncio.Future[None] | None:
        """What a mutation of the key waits for before it joins: a put at level ``none`` was acknowledged, but its
        payload is still on its way. Joining first would let the older value win, or a deleted key come back (D2).
        """
        return self._behind.get(digest)

    def _forget_behind(self, digest: bytes, joined: asyncio.Future[None]) -> None:
        if self._behind.get(digest) is joined:
            del self._behind[digest]

    async def _finish_behind(self, session: PutSession, intent: PutIntent) -> None:
        try:
            await session.finish(intent)
        except RawblockdError:
            self._counters.puts["lost"] += 1
        finally:
            session.release()

    async def close(self) -> None:
        """Wait for puts at level ``none`` that were acknowledged already."""
        while self._background:
            await asyncio.wait(self._background)
