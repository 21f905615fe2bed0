"""One moment of a namespace's rows, gathered some pages at a time while mutations go on.

The cut is at a seq: what was live when it began belongs to it, nothing that came later does. Before a row that is not
gathered yet changes, it is kept as it was, and its slot is held: so the order in which the table is gone through, and
how long that takes, make no difference. Rows that changed since are told by their seqs, which are above the cut's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES
from storage.format.row import ROW_DTYPE, Row, Rows, SlotState
from storage.index import Index
from storage.namespaces import Namespace
from storage.slot_table import RowIds
from storage.table_walk import PAGES_AT_ONCE, page_runs, row_ids_where
from storage.turns import Turns


class SnapshotCut:
    """Begins with its creation and is whole after ``gather``; ``end`` it in all cases."""

    def __init__(self, index: Index, namespace: Namespace, seq: int, now: float) -> None:
        self._index, self._namespace_id = index, namespace.namespace_id
        self.seq, self._now = seq, now
        self._parts: list[tuple[RowIds, Rows]] = []
        """Row ids and rows gathered so far, ascending: joined on a thread, where fresh memory costs nobody's time."""
        self.row_ids: RowIds
        self.rows: Rows
        """As they were at the cut; once ``gather`` has ended."""
        self._left: list[int] = []
        """Held slots whose entries went."""
        self._gathered_to = 0
        """Rows below this one are gathered."""
        self._kept: dict[int, bytes] = {}
        """Rows that are not gathered yet and changed since the cut, as they were."""
        self._class_bytes = np.array(index.geometry.class_bytes, dtype=np.int64)
        self.payload_bytes = self.held_bytes = 0
        index.before_change.append(self._keep)

    async def gather(self) -> None:
        """Go through the table once."""
        table = self._index.table
        lines_per_page = self._index.geometry.block_bytes // LINE_BYTES
        turns = Turns(PAGES_AT_ONCE)
        for first, end in page_runs(table):
            self._take(row_ids_where(table, (first, end), self._are_meant), end * lines_per_page)
            await turns.after(end - first)
        self._take(np.empty(0, dtype=np.int64), len(table.lines))
        self.row_ids, self.rows = await asyncio.to_thread(_joined, self._parts)

    def will_hold(self, row_id: int) -> bool:
        """Whether a live row is going to be held that is not yet."""
        return row_id >= self._gathered_to and self._is_meant(self._index.table.row(row_id))

    def note_left(self, row_id: int) -> None:
        """The entry in a held slot went."""
        self._left.append(row_id)

    @property
    def freed_bytes(self) -> int:
        """Of what is held, slots whose entries went meanwhile."""
        left = np.array(self._left, dtype=np.int64)
        positions = np.searchsorted(self.row_ids, left)
        left, positions = left[positions < len(self.row_ids)], positions[positions < len(self.row_ids)]
        left = left[self.row_ids[positions] == left]
        return sum(self._index.table.slot_bytes(row_id) for row_id in left.tolist())

    def end(self, let_go_all: Callable[..., None] | None) -> None:
        """Follow changes no longer, and let go of what is held, if told how."""
        self._index.before_change.remove(self._keep)
        if let_go_all is not None:
            let_go_all(*(row_ids for row_ids, _ in self._parts), np.array(list(self._kept), dtype=np.int64))

    def _are_meant(self, rows: Rows) -> npt.NDArray[np.bool_]:
        expires = rows["expires_at"]
        meant: npt.NDArray[np.bool_] = (rows["namespace_id"] == self._namespace_id) & (rows["state"] == SlotState.LIVE)
        meant &= (rows["seq"] <= self.seq) & ((expires == 0) | (expires > self._now))
        return meant

    def _is_meant(self, row: Row) -> bool:
        """As ``_are_meant``, of one row."""
        is_live = row.namespace_id == self._namespace_id and row.state == SlotState.LIVE
        return is_live and row.seq <= self.seq and (row.expires_at == 0 or row.expires_at > self._now)

    def _keep(self, row_id: int, row: Row) -> None:
        """A live row is about to change."""
        if row_id >= self._gathered_to and self._is_meant(row):
            self._kept[row_id] = self._index.table.raw(row_id)
            self._index.slots.hold_all(np.array([row_id]))

    def _take(self, row_ids: RowIds, end: int) -> None:
        """Gather these rows, and those kept, of all below ``end``."""
        rows = self._index.table.rows(row_ids)
        self._index.slots.hold_all(row_ids)
        kept = [row_id for row_id in self._kept if row_id < end]
        if kept:
            raw = b"".join([self._kept.pop(row_id) for row_id in kept])
            row_ids = np.concatenate((row_ids, kept))
            order = np.argsort(row_ids)
            row_ids = row_ids[order]
            rows = np.concatenate((rows, np.frombuffer(raw, dtype=ROW_DTYPE)))[order]
        self._gathered_to = end
        self._parts.append((row_ids, rows))
        self.payload_bytes += int(rows["payload_bytes"].sum(dtype=np.int64))
        self.held_bytes += int(self._class_bytes[rows["slot_class"]].sum())


def _joined(parts: list[tuple[RowIds, Rows]]) -> tuple[RowIds, Rows]:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
