"""The life of a get: find the row, read the record, verify it, hand it out piece by piece.

The slot is held from the moment its row is found until the last byte was read, so it can't be reused beneath a
reader, however slow (B1). A record of up to 1 MiB is read and verified whole before the first byte is handed out;
a larger one in pieces of chunks, each verified before it is handed out, with one piece read ahead.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable

from storage.buffers import Buffer, BufferArena
from storage.commit import Commit
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import Conditions, EntryInfo
from storage.errors import (
    EntryCorrupt,
    EntryNotFound,
    EntryUnreadable,
    PreconditionFailed,
    ReadFailed,
    Unavailable,
)
from storage.format.layout import Undecodable, round_up
from storage.format.record import RecordHeader
from storage.format.row import FreeReason, QuarantineReason, Row
from storage.health import DeviceHealth
from storage.identity import Identity
from storage.index import Index
from storage.keys import check_key
from storage.leases import Held
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES
from storage.namespace_settings import NamespaceSettings
from storage.namespaces import check_name
from storage.space import Space
from storage.verify import verified_header, verify_chunks

log = logging.getLogger("rawblockd.storage")

SLIDE_STEPS = 16
"""A sliding expiry moves in steps of so much of its TTL: a key read without pause costs 16 rows a TTL."""
READ_ATTEMPTS = 2
"""A read that fails or does not verify is made once more: a transfer error is not yet damage (R7)."""


class EntryReader:
    """One read of one entry. ``close`` must be called; pieces are valid until the next one is asked for."""

    def __init__(self, path: ReadPath, row_id: int, row: Row, header: RecordHeader, whole: Buffer | None) -> None:
        self._path = path
        self._row_id = row_id
        self._row = row
        self._header = header
        self._whole = whole
        self._held = True
        self._ahead: list[tuple[Buffer, asyncio.Future[None]]] = []
        self.info = entry_info(header, row)

    async def pieces(self, start_byte: int = 0, stop_byte: int | None = None) -> AsyncIterator[memoryview]:
        """The payload's bytes from ``start_byte`` to ``stop_byte``. Raises EntryCorrupt, EntryUnreadable mid-way."""
        stop = self._row.payload_bytes if stop_byte is None else min(stop_byte, self._row.payload_bytes)
        if start_byte >= stop:
            return
        if self._whole is not None:
            base = self._row.header_bytes
            yield self._whole.view[base + start_byte : base + stop]
            return
        async for piece in self._path.read_pieces(self, self._row_id, self._row, self._header, start_byte, stop):
            yield piece

    def restart(self) -> list[tuple[Buffer, asyncio.Future[None]]]:
        """The window of pieces read ahead, empty: an iteration left half-way read other pieces than the next one."""
        self._drop_ahead()
        return self._ahead

    def _drop_ahead(self) -> list[asyncio.Future[None]]:
        """Release what was read ahead; returns reads still under way."""
        pending = [io for _, io in self._ahead if not io.done()]
        for buffer, io in self._ahead:
            if not io.done():
                buffer.hold_for(io)
            elif not io.cancelled():
                io.exception()
            buffer.release()
        self._ahead = []
        return pending

    def close(self) -> None:
        """Let go of the slot and of all buffers. Idempotent."""
        if not self._held:
            return
        self._held = False
        if self._whole is not None:
            self._whole.release()
            self._whole = None
        pending = self._drop_ahead()
        if pending:
            # The slot stays held until the device is done with it.
            last = asyncio.gather(*pending, return_exceptions=True)
            last.add_done_callback(lambda _: self._path.space.let_go(self._row_id))
        else:
            self._path.space.let_go(self._row_id)


def entry_info(header: RecordHeader, row: Row) -> EntryInfo:
    record_map = header.map
    return EntryInfo(
        namespace=record_map.namespace,
        key=record_map.key,
        write_id=row.write_id,
        payload_bytes=row.payload_bytes,
        stored_at=record_map.stored_ms / 1000,
        expires_at=row.expires_at,
        content_type=record_map.content_type,
        metadata=record_map.metadata,
        parts=record_map.parts,
    )


class ReadPath:
    def __init__(
        self,
        device: BlockDevice,
        index: Index,
        commit: Commit,
        space: Space,
        arena: BufferArena,
        identity: Identity,
        counters: EngineCounters,
        health: DeviceHealth,
        wait_timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._device = device
        self._index = index
        self._commit = commit
        self.space = space
        self._arena = arena
        self._identity = identity
        self._counters = counters
        self._health = health
        self._wait_timeout_seconds = wait_timeout_seconds
        self._block_bytes = index.geometry.block_bytes
        # Chunks of a piece, so that with two blocks of misalignment it fits a transfer.
        self._piece_chunks = (TRANSFER_MAX_BYTES - 2 * self._block_bytes) // CHUNK_BYTES

    async def open(
        self,
        namespace: str,
        key: bytes,
        *,
        header_only: bool = False,
        leased: Held | None = None,
        slides: bool = True,
    ) -> EntryReader:
        """Find, read and verify; or read what a lease holds, which needs no finding. ``slides`` False: it is no read
        that moves a sliding expiry.

        Raises EntryNotFound, EntryCorrupt, EntryUnreadable, Busy.
        """
        check_key(key)
        if leased is not None:
            return await self._open_leased(leased, key, header_only=header_only)
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
            self._counters.lookups["miss"] += 1
            raise EntryNotFound
        digest = self._identity.digest(known.namespace_id, key)
        while True:
            found = self._commit.published(digest)
            if found is None:
                self._counters.lookups["miss"] += 1
                raise EntryNotFound
            row_id, row = found
            if self._commit.is_expired(row):
                self._counters.lookups["expired"] += 1
                self._free_expired(row_id, row)
                raise EntryNotFound
            reader = await self._open_row(row_id, row, key, header_only=header_only)
            if reader is not None:
                self.note_hit(row_id, row)
                if slides:
                    self.slide(known.settings, row)
                return reader

    async def _open_leased(self, leased: Held, key: bytes, *, header_only: bool) -> EntryReader:
        """The lease keeps the slot as it is, whatever became of its row."""
        reader = await self._open_row(*leased, key, header_only=header_only)
        if reader is None:
            raise EntryCorrupt("the leased record failed after its entry had changed")
        self.note_hit(*leased)
        return reader

    async def open_held(self, held: Held) -> EntryReader:
        """The record in a slot that somebody holds, whatever its row has become. Raises EntryCorrupt, EntryUnreadable,
        Busy."""
        reader = await self._open_row(*held, None, header_only=False)
        if reader is None:
            raise EntryCorrupt("the held record failed after its entry had changed")
        return reader

    def note_hit(self, row_id: int, row: Row) -> None:
        """An entry was read: it counts, and its recency too, unless its slot is another entry's by now."""
        self._counters.lookups["hit"] += 1
        self.space.note_hit(row_id, row.slot_class)

    def slide(self, settings: NamespaceSettings, row: Row) -> None:
        """Move the expiry of an entry that was read, where expiries slide, once that is worth a row of the journal. A
        read never waits for it."""
        ttl_seconds = settings.default_ttl_seconds
        if not settings.sliding_ttl or not row.expires_at or ttl_seconds is None:
            return
        expires_at = math.ceil(self._clock()) + ttl_seconds
        if expires_at - row.expires_at >= max(1, ttl_seconds // SLIDE_STEPS):
            try:
                self._commit.touch(row.digest, expires_at, Conditions(write_ids=frozenset({row.write_id})))
            except (PreconditionFailed, Unavailable):
                return  # replaced meanwhile, or it slides with a later read

    def _free_expired(self, row_id: int, row: Row) -> None:
        try:
            self._commit.free(row_id, row.seq, FreeReason.EXPIRED)
        except Unavailable:
            return  # it stays a miss; the space comes back once the journal takes rows

    async def info(self, row_id: int, row: Row) -> EntryInfo | None:
        """What a live row's record header tells (listings); None if it changed meanwhile or fails. Raises Busy."""
        try:
            reader = await self._open_row(row_id, row, None, header_only=True)
        except (EntryCorrupt, EntryUnreadable):
            return None
        if reader is None:
            return None
        reader.close()
        return reader.info

    # -- reads ahead (``batch_reads``) ----------------------------------------------------------------------------

    def try_acquire(self, size_bytes: int) -> Buffer | None:
        return self._arena.try_acquire(size_bytes)

    def read(self, offset_bytes: int, view: memoryview) -> asyncio.Future[None]:
        return self._device.read(offset_bytes, view)

    def verified(self, record: memoryview, row: Row, key: bytes | None) -> RecordHeader | None:
        """The header of a whole small record that was read, with its payload verified; None if it is another key's.

        Raises Undecodable.
        """
        generation = int(self._index.table.slab_generation[row.slab])
        header = verified_header(record, row, generation, self._identity)
        if key is not None and header.map.key != key:
            return None
        verify_chunks(header, 0, record[row.header_bytes : row.header_bytes + row.payload_bytes])
        return header

    async def _open_row(self, row_id: int, row: Row, key: bytes | None, *, header_only: bool) -> EntryReader | None:
        """A reader of this row's record; None if the row changed meanwhile, so that the key is looked up again."""
        whole = row.record_bytes <= TRANSFER_MAX_BYTES and not header_only
        size = round_up(row.record_bytes if whole else row.header_bytes, self._block_bytes)
        self._index.slots.hold(row_id)
        keep = False
        buffer: Buffer | None = None
        try:
            buffer = self._arena.try_acquire(size) or await self._arena.acquire(size, self._wait_timeout_seconds)
            offset = self._index.table.slot_offset(row_id)
            header = await self._read_verified(buffer, offset, size, row_id, row, key, whole=whole)
            if header is None:
                return None
            keep = True
        finally:
            if buffer is not None and not (keep and whole):
                buffer.release()
            if not keep:
                self.space.let_go(row_id)
        return EntryReader(self, row_id, row, header, buffer if whole else None)

    async def _read_verified(
        self, buffer: Buffer, offset: int, size: int, row_id: int, row: Row, key: bytes | None, *, whole: bool
    ) -> RecordHeader | None:
        where = "scrub" if key is None else "read"
        for attempt in range(READ_ATTEMPTS):
            last = attempt == READ_ATTEMPTS - 1
            try:
                await self._device.read(offset, buffer.view[:size])
                generation = int(self._index.table.slab_generation[row.slab])
                header = verified_header(buffer.view[:size], row, generation, self._identity)
                if key is not None and header.map.key != key:
                    raise EntryNotFound("another key has this digest")
                if whole:
                    end = row.header_bytes + row.payload_bytes
                    verify_chunks(header, 0, buffer.view[row.header_bytes : end])
                return header
            except ReadFailed as error:
                if last:
                    await self.failed(row_id, row, QuarantineReason.UNREADABLE, str(error), where=where)
            except Undecodable as error:
                if last:
                    await self.failed(row_id, row, QuarantineReason.CORRUPT, str(error), where=where)
        return None  # the row changed meanwhile

    async def failed(self, row_id: int, row: Row, reason: QuarantineReason, why: str, *, where: str = "read") -> None:
        """A record failed for good: quarantine it if its row is still the one that failed (R8).

        Returns if the row changed meanwhile; else raises EntryCorrupt or EntryUnreadable.
        """
        now = self._index.table.row(row_id)
        if now.seq != row.seq and row.seq != 0:
            return
        unreadable = reason is QuarantineReason.UNREADABLE
        if where == "read":
            self._counters.lookups["error" if unreadable else "corrupt"] += 1
        if unreadable and not await self._is_damage(why):
            raise EntryUnreadable
        try:
            unit = self._commit.quarantine(row_id, row.seq, reason)
        except Unavailable:
            unit = None
        if unit is not None:
            if not unreadable:
                self._counters.corruptions[where] += 1
            log.warning(
                "entry failed and is quarantined",
                extra={"fields": {"slab": row.slab, "slot": row.slot, "write_id": f"{row.write_id:016x}", "why": why}},
            )
            assert unit.done is not None
            await asyncio.wait([unit.done])
        if unreadable:
            raise EntryUnreadable
        raise EntryCorrupt

    async def verify(self, row_id: int, row: Row) -> None:
        """Read and verify a live row's whole record (scrubbing). Raises EntryCorrupt, EntryUnreadable, Busy."""
        reader = await self._open_row(row_id, row, None, header_only=False)
        if reader is None:
            return
        try:
            async for _ in reader.pieces():
                pass
        finally:
            reader.close()

    async def _is_damage(self, why: str) -> bool:
        """False where it is the device that fails: then no entry is given up for it (R7)."""
        self._health.note(why)
        return await self._health.answers(self._device, self._index.geometry, self._arena)

    # -- large records --------------------------------------------------------------------------------------------

    async def read_pieces(
        self, reader: EntryReader, row_id: int, row: Row, header: RecordHeader, start: int, stop: int
    ) -> AsyncIterator[memoryview]:
        """Pieces of whole chunks, one read ahead of the one handed out."""
        first, last = start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)
        begins = list(range(first, last, self._piece_chunks))
        window = reader.restart()
        offset = self._index.table.slot_offset(row_id)
        for position, begin in enumerate(begins):
            if not window:
                await self._start_piece(window, offset, row, begin, last, wait=True)
            if position + 1 < len(begins) and len(window) < 2:
                await self._start_piece(window, offset, row, begins[position + 1], last, wait=False)
            payload_start = begin * CHUNK_BYTES
            payload_stop = min((min(begin + self._piece_chunks, last)) * CHUNK_BYTES, row.payload_bytes)
            skew = (row.header_bytes + payload_start) % self._block_bytes
            buffer, io = window[0]
            try:
                await io
                payload = buffer.view[skew : skew + payload_stop - payload_start]
                verify_chunks(header, begin, payload)
            except ReadFailed as error:
                await self.failed(row_id, row, QuarantineReason.UNREADABLE, str(error))
                raise EntryUnreadable from error
            except Undecodable as error:
                await self.failed(row_id, row, QuarantineReason.CORRUPT, str(error))
                raise EntryCorrupt from error
            yield payload[max(0, start - payload_start) : stop - payload_start]
            window.pop(0)[0].release()

    async def _start_piece(
        self,
        window: list[tuple[Buffer, asyncio.Future[None]]],
        offset: int,
        row: Row,
        begin: int,
        last: int,
        *,
        wait: bool,
    ) -> None:
        begin_byte = row.header_bytes + begin * CHUNK_BYTES
        stop_byte = min(row.header_bytes + min(begin + self._piece_chunks, last) * CHUNK_BYTES, row.record_bytes)
        aligned = begin_byte // self._block_bytes * self._block_bytes
        size = round_up(stop_byte - aligned, self._block_bytes)
        buffer = self._arena.try_acquire(size)
        if buffer is None:
            if not wait:
                return
            buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        window.append((buffer, self._device.read(offset + aligned, buffer.view[:size])))
