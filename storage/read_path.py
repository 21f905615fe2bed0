"""The life of a get: find the row, read the record, verify it, hand it out piece by piece.

The slot is held from the moment its row is found until the last byte was read, so it can't be reused beneath a
reader, however slow (B1). A record of up to 2 MiB is read and verified whole before the first byte is handed out;
a larger one in pieces of chunks, the first together with the header, each verified before it is handed out, with one
piece read ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from storage.buffers import HUGE_PAGE_BYTES, Buffer, BufferArena
from storage.commit import Commit
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import EntryInfo
from storage.entry_reader import EntryReader
from storage.errors import (
    Busy,
    EntryCorrupt,
    EntryNotFound,
    EntryUnreadable,
    ReadFailed,
    Unavailable,
)
from storage.eviction.interface import ACCESS_MAX
from storage.format.layout import Undecodable, round_up
from storage.format.row import HEADER_UNIT_BYTES, FreeReason, QuarantineReason, Row
from storage.health import DeviceHealth
from storage.identity import Identity
from storage.index import Index
from storage.keys import check_key
from storage.leases import Held
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES
from storage.namespace_settings import NamespaceSettings
from storage.namespaces import Namespace, check_name
from storage.sliding import slide
from storage.space import Space
from storage.verify import RecordHead, verified_head, verify_chunks
from storage.whole_read import WholeRead

log = logging.getLogger("rawblockd.storage")

READ_MAX_BYTES = HUGE_PAGE_BYTES
"""Largest single read: a value of 1 MiB and its header take one read of 1028 KiB. With reads of up to 1 MiB they took
three: header, 960 KiB and the rest."""
READS_MIN = 8
"""Where the memory for I/O doesn't hold so many, a read takes at most ``TRANSFER_MAX_BYTES``."""
READ_ATTEMPTS = 2
"""A read that fails or does not verify is made once more: a transfer error is not yet damage (R7)."""


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
        self._table = index.table
        self._commit = commit
        self.space = space
        self.let_go = space.let_go
        """A reader is done with a slot."""
        self.offset_of = index.geometry.slot_offset
        self._arena = arena
        self._identity = identity
        self._counters = counters
        self._health = health
        self._wait_timeout_seconds = wait_timeout_seconds
        self._block_bytes = index.geometry.block_bytes
        self.whole_max_bytes = READ_MAX_BYTES if arena.total_bytes >= READS_MIN * READ_MAX_BYTES else TRANSFER_MAX_BYTES
        """Largest record that is read whole."""
        # Chunks of a piece, so that with two blocks of misalignment it fits a transfer.
        self._piece_chunks = (self.whole_max_bytes - 2 * self._block_bytes) // CHUNK_BYTES

    async def open(
        self,
        namespace: str,
        key: bytes,
        *,
        header_only: bool = False,
        known_ids: frozenset[int] = frozenset(),
        leased: Held | None = None,
        slides: bool = True,
    ) -> EntryReader:
        """Find, read and verify; or read what a lease holds, which needs no finding. Of an entry whose write id is
        one of ``known_ids``, as if ``header_only``. ``slides`` False: it is no read that moves a sliding expiry.

        Raises EntryNotFound, EntryCorrupt, EntryUnreadable, Busy.
        """
        if leased is not None:
            check_key(key)
            return await self._open_leased(leased, key, namespace, leased[1].write_id in known_ids or header_only)
        while True:
            known, row_id, row = self._find(namespace, key)
            reader = await self._open_row(
                row_id, row, key, namespace, header_only=header_only or row.write_id in known_ids
            )
            if reader is not None:
                self.note_hit(row_id, row)
                if slides and known.settings.sliding_ttl:
                    self.slide(known.settings, row)
                return reader

    def begin(
        self,
        namespace: str,
        key: bytes,
        done: Callable[[EntryReader | None], None],
        known_ids: frozenset[int] = frozenset(),
    ) -> bool:
        """Begin the plain read of an entry: whole, by one I/O, without a coroutine or a future.

        True: ``done`` is called once, from the callback in which the loop learns that the device is done, with the
        reader, verified, or with None where ``open`` must decide what is to be made of it: nothing is counted yet. Who
        has left by then closes the reader; slot and memory are held until then. False: this is not to be read plainly,
        or not now (its write id is one of ``known_ids``, it is large, there is no memory at hand, the device has too
        much to do): ``open`` it. Raises EntryNotFound, KeyInvalid, NamespaceInvalid.
        """
        known, row_id, row = self._find(namespace, key)
        size = row.header_units * HEADER_UNIT_BYTES + row.payload_bytes
        if size > self.whole_max_bytes or row.write_id in known_ids:
            return False
        size += -size % self._block_bytes
        buffer = self._arena.try_acquire(size)
        if buffer is None:
            return False
        read = WholeRead(self, known, row_id, row, key, buffer, size, done)
        try:
            self._device.begin_read(read)
        except Busy:
            buffer.release()
            return False
        self._index.slots.hold(row_id)
        return True

    def _find(self, namespace: str, key: bytes) -> tuple[Namespace, int, Row]:
        """The published row of a key, and its namespace. Raises EntryNotFound, which is counted; KeyInvalid,
        NamespaceInvalid."""
        check_key(key)
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
            self._counters.lookups["miss"] += 1
            raise EntryNotFound
        found = self._commit.published(self._identity.digest(known.namespace_id, key))
        if found is None:
            self._counters.lookups["miss"] += 1
            raise EntryNotFound
        row_id, row = found
        if row.expires_at and self._commit.is_expired(row):
            self._counters.lookups["expired"] += 1
            self._free_expired(row_id, row)
            raise EntryNotFound
        return known, row_id, row

    async def _open_leased(self, leased: Held, key: bytes, namespace: str, header_only: bool) -> EntryReader:
        """The lease keeps the slot as it is, whatever became of its row."""
        reader = await self._open_row(*leased, key, namespace, header_only=header_only)
        if reader is None:
            raise EntryCorrupt("the leased record failed after its entry had changed")
        self.note_hit(*leased)
        return reader

    async def open_held(self, held: Held) -> EntryReader:
        """The record in a slot that somebody holds, whatever its row has become. Raises EntryCorrupt, EntryUnreadable,
        Busy."""
        reader = await self._open_row(*held, None, "", header_only=False)
        if reader is None:
            raise EntryCorrupt("the held record failed after its entry had changed")
        return reader

    def note_hit(self, row_id: int, row: Row) -> None:
        """An entry was read: it counts, and its recency too, unless its slot is another entry's by now."""
        self._counters.lookups["hit"] += 1
        self._table.touch(row_id, ACCESS_MAX)
        self.space.hits[row.slot_class] += 1

    def slide(self, settings: NamespaceSettings, row: Row) -> None:
        """Move the expiry of an entry that was read, where expiries slide."""
        slide(self._commit, settings, row, self._clock())

    def _free_expired(self, row_id: int, row: Row) -> None:
        try:
            self._commit.free(row_id, row.seq, FreeReason.EXPIRED)
        except Unavailable:
            return  # it stays a miss; the space comes back once the journal takes rows

    async def info(self, row_id: int, row: Row) -> EntryInfo | None:
        """What a live row's record header tells (listings); None if it changed meanwhile or fails. Raises Busy."""
        try:
            reader = await self._open_row(row_id, row, None, "", header_only=True)
        except (EntryCorrupt, EntryUnreadable):
            return None
        if reader is None:
            return None
        reader.close()
        return reader.info

    # -- reading and verifying ------------------------------------------------------------------------------------

    def verified(
        self, record: memoryview, row: Row, key: bytes | None, namespace: str, *, whole: bool = True
    ) -> RecordHead | None:
        """The head of a record that was read, its payload verified too if it is ``whole``; None if it is another
        key's. ``namespace`` is the one it should be of, if that is known. Raises Undecodable."""
        generation = self._table.generation_of_slab[row.slab]
        head = verified_head(record, row, generation, self._identity, key, namespace)
        if key is not None and head.map.key != key:
            return None
        if whole:
            verify_chunks(head, 0, record[head.header_bytes : head.header_bytes + row.payload_bytes])
        return head

    async def _open_row(
        self, row_id: int, row: Row, key: bytes | None, namespace: str, *, header_only: bool
    ) -> EntryReader | None:
        """A reader of this row's record; None if the row changed meanwhile, so that the key is looked up again."""
        wanted_bytes = row.header_bytes if header_only else row.record_bytes
        whole = not header_only and wanted_bytes <= self.whole_max_bytes
        if not whole and not header_only:
            wanted_bytes = row.header_bytes + self._piece_chunks * CHUNK_BYTES
        size = round_up(wanted_bytes, self._block_bytes)
        self._index.slots.hold(row_id)
        buffer: Buffer | None = None
        io: asyncio.Future[None] | None = None
        reader: EntryReader | None = None
        try:
            buffer = self._arena.try_acquire(size) or await self._arena.acquire(size, self._wait_timeout_seconds)
            record = buffer.view[:size]
            offset = self.offset_of(row.slab, row.slot, row.slot_class)
            for left in reversed(range(READ_ATTEMPTS)):
                io = self._device.read(offset, record)
                try:
                    await io
                    head = self.verified(record, row, key, namespace, whole=whole)
                except (ReadFailed, Undecodable) as error:
                    if not left:
                        await self._failed_to_read(row_id, row, error, where="scrub" if key is None else "read")
                    continue
                if head is None:
                    raise EntryNotFound("another key has this digest")
                if whole:
                    reader = EntryReader(self, row_id, row, head, record, buffer)
                else:
                    reader = EntryReader(self, row_id, row, head, first=None if header_only else (buffer, io))
                break
            return reader
        finally:
            if reader is None or header_only:
                self._give_up(buffer, io, row_id if reader is None else None)

    def _give_up(self, buffer: Buffer | None, io: asyncio.Future[None] | None, row_id: int | None) -> None:
        """Release a read's buffer, and the slot ``row_id`` if one is given, both when the device is done with them."""
        if io is not None and not io.done():
            # Only where the one who waits was thrown out, not cancelled: a cancelled one waits for the end.
            assert buffer is not None
            buffer.hold_for(io)
            buffer.release()
            if row_id is not None:
                io.add_done_callback(lambda io: self._late(io, row_id))
            return
        if buffer is not None:
            buffer.release()
        if row_id is not None:
            self.space.let_go(row_id)

    def _late(self, io: asyncio.Future[None], row_id: int) -> None:
        io.exception()  # nobody reads it: a failure is met by the next read
        self.space.let_go(row_id)

    async def _failed_to_read(self, row_id: int, row: Row, error: ReadFailed | Undecodable, *, where: str) -> None:
        unreadable = isinstance(error, ReadFailed)
        reason = QuarantineReason.UNREADABLE if unreadable else QuarantineReason.CORRUPT
        await self.failed(row_id, row, reason, str(error), where=where)

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
        reader = await self._open_row(row_id, row, None, "", header_only=False)
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

    @property
    def piece_bytes(self) -> int:
        """What is read at once of a large value's payload."""
        return self._piece_chunks * CHUNK_BYTES

    async def read_pieces(
        self, reader: EntryReader, row_id: int, row: Row, head: RecordHead, start: int, stop: int
    ) -> AsyncIterator[memoryview]:
        """Pieces of whole chunks, one read ahead of the one handed out."""
        first, last = start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)
        begins = list(range(first, last, self._piece_chunks))
        window = reader.restart(first)
        offset = self._index.table.slot_offset(row_id)
        for position, begin in enumerate(begins):
            if not window:
                await self._start_piece(window, offset, row, begin, last, wait=True)
            if position + 1 < len(begins) and len(window) < 2:
                await self._start_piece(window, offset, row, begins[position + 1], last, wait=False)
            payload_start = begin * CHUNK_BYTES
            payload_stop = min((min(begin + self._piece_chunks, last)) * CHUNK_BYTES, row.payload_bytes)
            skew = row.header_bytes + payload_start - self._aligned_start(row, begin)
            buffer, io = window[0]
            try:
                await io
                payload = buffer.view[skew : skew + payload_stop - payload_start]
                verify_chunks(head, begin, payload)
            except (ReadFailed, Undecodable) as error:
                await self._failed_to_read(row_id, row, error, where="read")
                raise (EntryUnreadable if isinstance(error, ReadFailed) else EntryCorrupt) from error
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
        stop_byte = min(row.header_bytes + min(begin + self._piece_chunks, last) * CHUNK_BYTES, row.record_bytes)
        aligned = self._aligned_start(row, begin)
        size = round_up(stop_byte - aligned, self._block_bytes)
        buffer = self._arena.try_acquire(size)
        if buffer is None:
            if not wait:
                return
            buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        try:
            io = self._device.read(offset + aligned, buffer.view[:size])
        except Busy:
            buffer.release()
            raise
        window.append((buffer, io))

    def _aligned_start(self, row: Row, begin: int) -> int:
        """Where in the record the piece that starts with chunk ``begin`` is read from: the first one with the header,
        as a read that opens the record has it."""
        return (row.header_bytes + begin * CHUNK_BYTES) // self._block_bytes * self._block_bytes if begin else 0
