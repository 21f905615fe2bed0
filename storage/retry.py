"""``retry``: try quarantined slots again, and make live what is provably whole and still wanted (R5).

A record is restored when header and payload verify and nothing later is known of its slot or key; it then counts as
repaired. What was put or deleted since is superseded and stays as evidence until it is acknowledged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from storage.buffers import BufferArena
from storage.commit import Commit
from storage.device.interface import BlockDevice
from storage.errors import JournalUnavailable, ReadFailed
from storage.format.layout import Undecodable, round_up
from storage.format.record import HEADER_UNIT_BYTES, RecordHeader, pack_chunk_checksums, payload_checksum, read_header
from storage.format.row import QuarantineReason, Row
from storage.identity import Identity
from storage.index import Index
from storage.limits import CHUNK_BYTES, HEADER_MAX_BYTES, TRANSFER_MAX_BYTES
from storage.recovery.report import SkipReason
from storage.row_changes import PutIntent
from storage.verify import verify_chunks

log = logging.getLogger("rawblockd.storage")

RETRIABLE = frozenset(
    {
        SkipReason.CHECKSUM,
        SkipReason.STALE_PAGE,
        SkipReason.UNREADABLE,
        SkipReason.WRONG_PLACE,
        SkipReason.WRONG_DEVICE,
        SkipReason.HEADER_MISMATCH,
    }
)
"""The others say that a later row of the slot may be lost or wrong: there a header that verifies proves nothing."""


@dataclass(slots=True)
class RetryResult:
    restored: int = 0
    superseded: int = 0
    still_skipped: int = 0


class Retrier:
    def __init__(
        self,
        device: BlockDevice,
        index: Index,
        commit: Commit,
        arena: BufferArena,
        identity: Identity,
        wait_timeout_seconds: float,
    ) -> None:
        self._device = device
        self._index = index
        self._commit = commit
        self._arena = arena
        self._identity = identity
        self._wait_timeout_seconds = wait_timeout_seconds

    async def run(self, row_ids: list[int]) -> tuple[RetryResult, list[int]]:
        """Try each slot; returns the counts and the row ids restored. Raises JournalUnavailable, Busy."""
        result, restored = RetryResult(), []
        for row_id in row_ids:
            outcome = await self._try(row_id)
            if outcome == "restored":
                restored.append(row_id)
                result.restored += 1
            elif outcome == "superseded":
                result.superseded += 1
            else:
                result.still_skipped += 1
        return result, restored

    async def _try(self, row_id: int) -> str:
        row = self._index.table.row(row_id)
        if self._index.table.place_of(row_id) in self._index.evidence.superseded:
            return "superseded"
        header = await self._verified(row_id)
        place = self._index.table.place_of(row_id)
        leaving = self._index.evidence.leaving
        if self._index.table.row(row_id) != row or place in leaving:
            return "skipped"  # acknowledged while this read, or restored by another retry
        if header is None or not self._agrees(row_id, row, header):
            return "skipped"
        # Asked once more: while this read, the key may have been put or deleted, durably or not yet.
        if place in self._index.evidence.superseding:
            return "superseded"
        known = any(row.digest)
        untouched = known or self._index.evidence.untouched(header.digest)
        if not untouched or self._commit.joined(header.digest) is not None:
            return "superseded"
        unit = self._commit.restore(_intent(row_id, header))
        leaving.add(place)
        try:
            await unit.reached()
        except JournalUnavailable:
            leaving.discard(place)
            raise
        log.info(
            "entry restored",
            extra={"fields": {"slab": row.slab, "slot": row.slot, "write_id": f"{header.write_id:016x}"}},
        )
        return "restored"

    def _agrees(self, row_id: int, row: Row, header: RecordHeader) -> bool:
        slab, slot = self._index.table.place_of(row_id)
        table = self._index.table
        place = (slab, slot, int(table.slab_class[slab]), int(table.slab_generation[slab]))
        if (header.slab, header.slot, header.slot_class, header.generation) != place:
            return False
        if header.digest != self._identity.digest(header.namespace_id, header.map.key):
            return False
        if any(row.digest) and header.digest != row.digest:
            return False  # another key than the one whose puts and deletions were watched
        if header.namespace_id not in self._index.namespaces.by_id:
            return False
        claimed = not row.write_id or header.write_id == row.write_id
        return claimed or row.reason == QuarantineReason.SKIPPED

    async def _verified(self, row_id: int) -> RecordHeader | None:
        """The slot's header, if it and the whole payload verify."""
        block = self._index.geometry.block_bytes
        offset = self._index.table.slot_offset(row_id)
        slot_bytes = self._index.table.slot_bytes(row_id)
        buffer = await self._arena.acquire(TRANSFER_MAX_BYTES, self._wait_timeout_seconds)
        try:
            head = min(slot_bytes, round_up(HEADER_MAX_BYTES, block))
            await self._device.read(offset, buffer.view[:head])
            header = read_header(buffer.view[:head], uuid=self._identity.uuid, secret=self._identity.secret)
            if header.header_bytes + header.payload_bytes > slot_bytes:
                return None
            step = (TRANSFER_MAX_BYTES - 2 * block) // CHUNK_BYTES
            for chunk in range(0, len(header.chunk_checksums), step):
                begin = header.header_bytes + chunk * CHUNK_BYTES
                end = min(begin + step * CHUNK_BYTES, header.header_bytes + header.payload_bytes)
                aligned = begin // block * block
                size = round_up(end - aligned, block)
                await self._device.read(offset + aligned, buffer.view[:size])
                verify_chunks(header, chunk, buffer.view[begin - aligned : end - aligned])
        except (ReadFailed, Undecodable):
            return None
        finally:
            buffer.release()
        return header


def _intent(row_id: int, header: RecordHeader) -> PutIntent:
    return PutIntent(
        row_id,
        header.namespace_id,
        header.digest,
        header.write_id,
        header.payload_bytes,
        payload_checksum(pack_chunk_checksums(header.chunk_checksums)),
        header.header_bytes // HEADER_UNIT_BYTES,
        header.expires_at,
    )
