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

    async def _header(self, row_id: int) -> RecordHeader | None:
        table = self._index.table
        size = min(round_up(HEADER_MAX_BYTES, self._index.geometry.block_bytes), table.slot_bytes(row_id))
        buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        try:
            await self._device.read(table.slot_offset(row_id), buffer.view[:size])
            return read_header(buffer.view[:size], uuid=self._identity.uuid, secret=self._identity.secret)
        except (ReadFailed, Undecodable):
            return None
        finally:
            buffer.release()

    def _may_be_lost(self, row_id: int, header: RecordHeader) -> bool:
        slab, slot = self._index.table.place_of(row_id)
        present_place = (slab, slot, int(self._index.table.slab_generation[slab]))
        if (header.slab, header.slot, header.generation) != present_place:
            return False
        if header.write_id == self._index.table.row(row_id).write_id:
            return False  # its freeing is known
        if header.write_id >> WRITE_ID_COUNTER_BITS == self._identity.start_count:
            return False  # a put of this start that did not come to an end
        present = self._index.keys.find(header.digest)
        return not present or self._index.table.row(present).write_id < header.write_id
