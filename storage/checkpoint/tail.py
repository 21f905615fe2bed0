"""What must be in order before a checkpoint lets the journal's tail move: what would be known from the journal alone.

Where all copies are lost, a rebuild has record headers and the journal. So before a freeing row leaves the journal, the
header of the freed slot is made void; and the journal always names every namespace (R1). Neither takes a step of the
loop that grows with the number of entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from storage.buffers import Buffer
from storage.checkpoint.writing import Writing
from storage.index import Index
from storage.journal import Journal, Unit
from storage.namespaces import namespace_record

LOOKED_AT_ONCE = 512
RENEWED_AT_ONCE = 64
"""Slots and namespaces looked at between two turns of the loop: some 1 ms."""
SEARCHED_AT_ONCE = 1 << 20
"""Rows among which freed ones are searched between two turns of the loop: some 0.1 ms."""
VOIDS_AT_ONCE = 32
"""Headers made void in parallel: the queue depth from which 4 KiB writes gain nothing more."""
VOIDS_GENTLY = 8


class FreedHeaders:
    """Makes headers of freed slots void."""

    def __init__(
        self,
        writing: Writing,
        index: Index,
        journal: Journal,
        renewal: Callable[[list[int]], Unit],
        settle: Callable[[], None],
    ) -> None:
        self._writing = writing
        self._index = index
        self._journal = journal
        self._renewal = renewal
        """Makes a unit that journals rows once more, unchanged."""
        self._settle = settle
        """Lets go what was in limbo only for want of a flush."""
        self._renewed_in: npt.NDArray[np.uint64] | None = None
        """Journal block in which a row was journaled once more, per row; made when the first one is."""

    async def void(self, tail_seq: int, tail: int) -> None:
        """Before freeing rows up to ``tail_seq`` leave the journal, their slots' headers are made void (R1).

        A slot in limbo (a reader holds it) or in flight (a put has it and may yet leave it as it is) keeps its header;
        its freeing row is journaled once more instead, unless it stands in block ``tail`` or behind it already.
        Raises DeviceFailed, Busy, JournalUnavailable.
        """
        if not len(self._index.slots.freed_unvoided):
            return
        size = self._index.geometry.block_bytes
        zeros = await self._writing.buffer(size)
        try:
            zeros.view[:size] = bytes(size)
            for part in self._due(tail_seq):
                await self._renew_used(part, tail_seq, tail)
                idle = self._idle(part, tail_seq)
                depth = VOIDS_GENTLY if self._writing.has_time else VOIDS_AT_ONCE
                for first in range(0, len(idle), depth):
                    batch = idle[first : first + depth]
                    await self._renew_used(batch, tail_seq, tail)  # what was taken meanwhile
                    await self._write_zeros(self._idle(batch, tail_seq), zeros)
                await asyncio.sleep(0)
        finally:
            zeros.release()

    def _due(self, tail_seq: int) -> Iterator[list[int]]:
        """Freed slots whose freeing rows are about to leave the journal, some at a time, perhaps none.

        What is freed while others are being made void has a later seq than ``tail_seq``.
        """
        seqs = self._index.table.lines["seq"]
        for begin in range(0, len(seqs), SEARCHED_AT_ONCE):
            row_ids = self._index.slots.freed_unvoided.between(begin, begin + SEARCHED_AT_ONCE)
            yield []
            for first in range(0, len(row_ids), LOOKED_AT_ONCE):
                part = row_ids[first : first + LOOKED_AT_ONCE]
                yield part[seqs[part] <= tail_seq].tolist()

    def _still_due(self, row_ids: list[int], tail_seq: int) -> list[int]:
        """Meanwhile a slot may have got a record of its own, or even have been freed once more."""
        unvoided, table = self._index.slots.freed_unvoided, self._index.table
        return [r for r in row_ids if r in unvoided and table.row(r).seq <= tail_seq]

    def _idle(self, row_ids: list[int], tail_seq: int) -> list[int]:
        return sorted(r for r in self._still_due(row_ids, tail_seq) if not self._index.slots.is_in_use(r))

    async def _renew_used(self, row_ids: list[int], tail_seq: int, tail: int) -> None:
        """Journal the freeing rows of slots in use once more. Afterwards, in the same step, none is without."""
        step = self._index.geometry.rows_per_journal_block
        while in_use := [r for r in self._still_due(row_ids, tail_seq) if self._must_renew(r, tail)]:
            units = [self._renewal(sorted(in_use)[begin : begin + step]) for begin in range(0, len(in_use), step)]
            for unit, done in [(unit, self._journal.join(unit)) for unit in units]:
                block = await done
                for row_id, _ in unit.rows:
                    self._renewals()[row_id] = block

    def _must_renew(self, row_id: int, tail: int) -> bool:
        return self._index.slots.is_in_use(row_id) and self._renewals()[row_id] < tail

    def _renewals(self) -> npt.NDArray[np.uint64]:
        if self._renewed_in is None:
            self._renewed_in = np.zeros(len(self._index.table.lines), dtype=np.uint64)
        return self._renewed_in

    async def _write_zeros(self, row_ids: list[int], zeros: Buffer) -> None:
        slots, table, size = self._index.slots, self._index.table, self._index.geometry.block_bytes
        if not row_ids:
            return
        slots.begin_voiding(row_ids)
        writes = [self._writing.device.write(table.slot_offset(r), zeros.view[:size]) for r in row_ids]
        for write in writes:
            zeros.hold_for(write)
        results = await asyncio.gather(*writes, return_exceptions=True)
        slots.end_voiding(row_ids)
        self._settle()
        slots.freed_unvoided.difference_update(r for r, e in zip(row_ids, results, strict=True) if e is None)
        for error in results:
            if isinstance(error, BaseException):
                raise error


class NamedNamespaces:
    """Keeps the journal naming every namespace, and every wiped one of which there still are slots: where all copies
    are lost, their record headers alone would not tell which of two ids has a name, and which is dead (R1)."""

    def __init__(self, index: Index, journal: Journal) -> None:
        self._index = index
        self._journal = journal
        self._named_in: dict[tuple[int, int], int] = {}
        """Journal block in which a namespace's record was journaled once more, by id and seq."""

    async def renew(self, tail_seq: int, tail: int) -> None:
        """Journal once more what records up to ``tail_seq`` say, unless it stands in block ``tail`` or behind it.

        Raises JournalUnavailable.
        """
        named = {(n.namespace_id, n.seq): n for n in self._index.namespaces.by_id.values()}
        dying = {(record.namespace_id, record.seq): record for record in self._index.namespaces.dying_records()}
        self._named_in = {
            key: block for key, block in self._named_in.items() if block >= tail and (key in named or key in dying)
        }
        due = [key for key in (*named, *dying) if key[1] <= tail_seq and key not in self._named_in]
        for begin in range(0, len(due), RENEWED_AT_ONCE):
            part = due[begin : begin + RENEWED_AT_ONCE]
            records = [dying[key] if key in dying else namespace_record(named[key]) for key in part]
            units = [Unit(records=[record], privileged=True, makes_room=True) for record in records]
            for record, done in [(r, self._journal.join(unit)) for r, unit in zip(records, units, strict=True)]:
                self._named_in[record.namespace_id, record.seq] = await done
