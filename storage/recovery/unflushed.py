"""The unflushed end of the journal: rows whose payload a power loss may have dropped are proven before they count (R3).

Rows are taken in the order of the journal. A put counts if header and payload in its slot are its own; it then frees
whatever its key held. Otherwise it is lost, with the freeing row beside it, and the version before it stands: that
version's slot was not reused, because a slot leaves limbo only after a flush behind its freeing row (D4).
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field

import numpy as np

from storage.device.interface import BlockDevice
from storage.errors import DeviceGone, ReadFailed
from storage.format.layout import Undecodable, round_up
from storage.format.row import ROW_STRUCT, FreeReason, Row, Rows, SlotState, encode_row
from storage.identity import Identity
from storage.index import Index
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES
from storage.recovery.reading import UNREADABLE_MIN, check_alive
from storage.recovery.replay import REMOVES_KEY, row_ids_of
from storage.recovery.row_rules import RowRules
from storage.verify import verified_header, verify_chunks


@dataclass(slots=True)
class Unflushed:
    unproven: set[int] = field(default_factory=set)
    """Row ids of the last puts to their slots that did not arrive: each is an entry lost."""
    corrections: set[int] = field(default_factory=set)
    """Row ids whose state is not what the journal says: they are journaled anew before the next flush."""
    wrong: list[tuple[int, bytes]] = field(default_factory=list)
    """Rows that were written wrong: row id, 0 if the device does not have the place, and raw row."""


class Prover:
    def __init__(self, device: BlockDevice, index: Index, identity: Identity) -> None:
        self._device = device
        self._index = index
        self._identity = identity
        self._memory = mmap.mmap(-1, 2 * TRANSFER_MAX_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._proofs = 0
        self._unreadable = 0

    def apply(self, rows: Rows) -> Unflushed:
        """Apply rows behind the last flush to the derived index, in order."""
        result = Unflushed()
        row_ids, exists = row_ids_of(self._index, rows)
        wrong = np.ones(len(rows), dtype=bool)
        wrong[exists] = RowRules(self._index).wrong(rows[exists], row_ids[exists])
        current = rows["seq"] > self._index.table.lines["seq"][row_ids]
        raws = [rows[i].tobytes() for i in range(len(rows))]
        last = {row_id: position for position, row_id in enumerate(row_ids.tolist())}
        previous: tuple[int, bytes] | None = None
        for position, raw in enumerate(raws):
            row, row_id = Row._make(ROW_STRUCT.unpack(raw)), int(row_ids[position])
            if wrong[position]:
                if exists[position] and row.seq < self._index.table.slab_seq[row.slab]:
                    continue  # of a generation that ended
                result.wrong.append((row_id, raw))
                continue
            if not current[position] and row.seq <= self._index.table.row(row_id).seq:
                continue
            if row.state == SlotState.FREE and row.reason == FreeReason.REPLACED:
                previous = (row_id, raw)  # counts only with the put that replaced it
                continue
            replaced, previous = previous, None
            if row.state == SlotState.LIVE:
                self._put(row_id, raw, row, replaced, result)
                if row_id in result.unproven and last[row_id] > position:
                    # Freed again later: its slot may have been used by another put since, after a flush that no
                    # block tells of any more. Nobody misses it.
                    result.unproven.discard(row_id)
            else:
                self._other(row_id, raw, row, result)
        return result

    def _put(self, row_id: int, raw: bytes, row: Row, replaced: tuple[int, bytes] | None, result: Unflushed) -> None:
        if not self._proven(row_id, row):
            result.unproven.add(row_id)
            result.corrections.add(row_id)
            if replaced is not None:
                result.corrections.add(replaced[0])
            return
        if self._index.keys.find(row.digest) != row_id:  # else an earlier start journaled it anew
            self._free_present(row.digest, replaced, row, result)
        self._index.apply_row(row_id, raw, 0)
        result.corrections.discard(row_id)
        result.unproven.discard(row_id)

    def _other(self, row_id: int, raw: bytes, row: Row, result: Unflushed) -> None:
        """A row without a put. If it removes a key, the key is gone whichever slot held it."""
        if row.state == SlotState.FREE and row.reason in REMOVES_KEY:
            self._free_present(row.digest, (row_id, raw), row, result)
        self._index.apply_row(row_id, raw, 0)

    def _free_present(self, digest: bytes, expected: tuple[int, bytes] | None, by: Row, result: Unflushed) -> None:
        """Free the slot that holds the key. ``expected`` is the journal's row for it, if it is that slot."""
        present = self._index.keys.find(digest)
        if expected is not None and expected[0] != present:
            # The slot the journal frees never came to hold the key here, because the put before it was lost.
            self._index.apply_row(expected[0], expected[1], 0)
        if not present or (by.state != SlotState.LIVE and expected is not None and expected[0] == present):
            return
        if expected is not None and expected[0] == present:
            self._index.apply_row(present, expected[1], 0)
            return
        old = self._index.table.row(present)
        self._index.apply_row(present, self._freed(old, by.seq), 0)
        result.corrections.add(present)

    def _freed(self, row: Row, seq: int) -> bytes:
        return encode_row(
            self._index.seed,
            state=SlotState.FREE,
            slot_class=row.slot_class,
            slab=row.slab,
            slot=row.slot,
            seq=seq,
            namespace_id=row.namespace_id,
            write_id=row.write_id,
            digest=row.digest,
            reason=FreeReason.REPLACED,
        )

    def _proven(self, row_id: int, row: Row) -> bool:
        """Header and payload in the slot are this row's."""
        block_bytes = self._index.geometry.block_bytes
        offset = self._index.table.slot_offset(row_id)
        head_bytes = round_up(row.header_bytes, block_bytes)
        generation = int(self._index.table.slab_generation[row.slab])
        self._proofs += 1
        try:
            self._device.read_now(offset, self._view[:head_bytes])
            header = verified_header(self._view[:head_bytes], row, generation, self._identity)
            step = TRANSFER_MAX_BYTES // CHUNK_BYTES
            for chunk in range(0, len(header.chunk_checksums), step):
                begin = row.header_bytes + chunk * CHUNK_BYTES
                end = min(begin + TRANSFER_MAX_BYTES, row.record_bytes)
                aligned = begin // block_bytes * block_bytes
                view = self._view[: round_up(end - aligned, block_bytes)]
                self._device.read_now(offset + aligned, view)
                verify_chunks(header, chunk, view[begin - aligned : end - aligned])
        except Undecodable:
            return False
        except ReadFailed as error:
            # The payload may have arrived, it can't be read. The row stands, and its reader meets the damage (R7).
            self._note_unreadable(error)
        return True

    def _note_unreadable(self, error: ReadFailed) -> None:
        """Raises DeviceGone where it is the device that fails."""
        check_alive(error)
        self._unreadable += 1
        if self._unreadable >= UNREADABLE_MIN and self._unreadable * 2 > self._proofs:
            raise DeviceGone(f"{self._unreadable} of {self._proofs} records can't be read") from error

    def close(self) -> None:
        # While an error is on its way, its traceback may hold a view; the memory then goes with it.
        with contextlib.suppress(BufferError):
            self._view.release()
            self._memory.close()
