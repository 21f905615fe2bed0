"""After a journal gap a free slot may hold an entry whose row was lost: its header is asked before reuse (R4)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from storage.buffers import BufferArena
from storage.commit import Commit
from storage.device.interface import BlockDevice
from storage.errors import ReadFailed
from storage.format.layout import Undecodable, round_up
from storage.format.record import RecordHeader, read_header
from storage.format.row import ROW_BYTES
from storage.format.slab_header import SlabHeader, decode_slab_header
from storage.identity import Identity
from storage.index import Index
from storage.limits import HEADER_MAX_BYTES, WRITE_ID_COUNTER_BITS

log = logging.getLogger("rawblockd.storage")


class FreeSlotExaminer:
    def __init__(
        self,
        device: BlockDevice,
        index: Index,
        commit: Commit,
        arena: BufferArena,
        identity: Identity,
        wait_timeout_seconds: float,
        found: Callable[[int, bytes, RecordHeader], None],
    ) -> None:
        self._device = device
        self._index = index
        self._commit = commit
        self._arena = arena
        self._identity = identity
        self._wait_timeout_seconds = wait_timeout_seconds
        self._found = found
        """Told the row id, raw row and record header of a slot that is set aside."""

    async def may_use(self, row_id: int) -> bool:
        """True if the slot, taken by a put, holds no record that may have been lost; else it is quarantined.

        Raises JournalUnavailable, Busy.
        """
        header = await self._header(row_id)
        if header is None or not self._may_be_lost(row_id, header):
            return True
        raw = self._index.table.raw(row_id)
        unit = self._commit.set_aside(row_id)
        assert unit.done is not None
        await unit.done
        self._found(row_id, raw, header)
        log.warning(
            "free slot set aside: it may hold an entry the journal lost",
            extra={"fields": {"slab": header.slab, "slot": header.slot, "write_id": f"{header.write_id:016x}"}},
        )
        return False

    async def may_give(self, slab: int) -> bool:
        """True if nothing in a spare slab may be an entry the journal lost; else each such slot is reported.

        The slab is asked for itself: what the journal lost may be that the slab was given at all. Raises Busy.
        """
        owner = await self._slab_header(slab)
        if owner is None:
            return True
        lost = 0
        for slot in range(self._index.geometry.slots_per_slab(owner.slot_class)):
            offset = self._index.geometry.slot_offset(slab, slot, owner.slot_class)
            header = await self._read(offset, self._index.geometry.class_bytes[owner.slot_class])
            if header is not None and self._may_be_lost_with(owner, slot, header):
                row_id = self._index.table.row_id(slab, slot)
                self._found(row_id, bytes(ROW_BYTES), header)
                lost += 1
        if lost:
            log.warning(
                "slab kept back: it may hold entries the journal lost",
                extra={"fields": {"slab": slab, "entries": lost}},
            )
        return not lost

    async def _slab_header(self, slab: int) -> SlabHeader | None:
        geometry = self._index.geometry
        size = geometry.block_bytes
        buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        try:
            await self._device.read(geometry.slab_offset(slab), buffer.view[:size])
            return decode_slab_header(
                buffer.view[:size],
                uuid=self._identity.uuid,
                secret=self._identity.secret,
                slab=slab,
                classes=len(geometry.class_bytes),
            )
        except (ReadFailed, Undecodable):
            return None
        finally:
            buffer.release()

    async def _header(self, row_id: int) -> RecordHeader | None:
        table = self._index.table
        return await self._read(table.slot_offset(row_id), table.slot_bytes(row_id))

    async def _read(self, offset_bytes: int, slot_bytes: int) -> RecordHeader | None:
        size = min(round_up(HEADER_MAX_BYTES, self._index.geometry.block_bytes), slot_bytes)
        buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        try:
            await self._device.read(offset_bytes, buffer.view[:size])
            return read_header(buffer.view[:size], uuid=self._identity.uuid, secret=self._identity.secret)
        except (ReadFailed, Undecodable):
            return None
        finally:
            buffer.release()

    def _may_be_lost_with(self, owner: SlabHeader, slot: int, header: RecordHeader) -> bool:
        """As ``_may_be_lost``, for a slab as its header names it, which the table may not know."""
        place = (owner.slab, slot, owner.slot_class, owner.generation)
        if (header.slab, header.slot, header.slot_class, header.generation) != place:
            return False
        if owner.generation == int(self._index.table.slab_generation[owner.slab]):
            return self._may_be_lost(self._index.table.row_id(owner.slab, slot), header)
        return self._is_news(header)

    def _may_be_lost(self, row_id: int, header: RecordHeader) -> bool:
        slab, slot = self._index.table.place_of(row_id)
        present_place = (slab, slot, int(self._index.table.slab_generation[slab]))
        if (header.slab, header.slot, header.generation) != present_place:
            return False
        if header.write_id == self._index.table.row(row_id).write_id:
            return False  # its freeing is known
        return self._is_news(header)

    def _is_news(self, header: RecordHeader) -> bool:
        if header.write_id >> WRITE_ID_COUNTER_BITS == self._identity.start_count:
            return False  # a put of this start that did not come to an end
        present = self._index.keys.find(header.digest)
        return not present or self._index.table.row(present).write_id < header.write_id
