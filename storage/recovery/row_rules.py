"""What a row at its place may be (B4), asked of many rows at once: checksum, ranges, place, namespace, size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage.format.geometry import LINE_BYTES
from storage.format.row import HEADER_UNIT_BYTES, Rows, SlotState, checksums_of, implausible_of
from storage.index import Index
from storage.slot_table import RowIds

Mask = npt.NDArray[np.bool_]


class RowRules:
    """The rules under an index's slabs and namespaces, which must be in their final state."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._namespace_ids = np.array([*index.namespaces.by_id, *index.namespaces.wiped], dtype=np.uint32)
        self._class_bytes = np.zeros(256, dtype=np.int64)
        self._class_bytes[: len(index.geometry.class_bytes)] = index.geometry.class_bytes

    def wrong(self, rows: Rows, row_ids: RowIds) -> Mask:
        """Which of the rows that stand at ``row_ids`` are not what a row there may be."""
        return self.mistaken(rows) | self.misplaced(rows, row_ids)

    def mistaken(self, rows: Rows) -> Mask:
        """Which rows' checksums don't hold."""
        result: Mask = rows["checksum"] != checksums_of(self._index.seed, rows)
        return result

    def misplaced(self, rows: Rows, row_ids: RowIds) -> Mask:
        """Which rows are not what a row there may be, whatever their checksums."""
        wrong = implausible_of(rows)
        wrong |= ~self._in_place(rows, row_ids)
        live = (rows["state"] == SlotState.LIVE) | (rows["state"] == SlotState.STAGED)
        record_bytes = rows["header_units"].astype(np.int64) * HEADER_UNIT_BYTES + rows["payload_bytes"]
        wrong |= live & (record_bytes > self._class_bytes[rows["slot_class"]])
        wrong |= live & ~np.isin(rows["namespace_id"], self._namespace_ids)
        return wrong

    def _in_place(self, rows: Rows, row_ids: RowIds) -> Mask:
        """Which rows name the place they stand in and their slab's class, and are of its generation."""
        geometry, table = self._index.geometry, self._index.table
        # Quotients and then remainders from them: np.divmod takes five times as long.
        per_page = geometry.block_bytes // LINE_BYTES
        pages = row_ids // per_page
        slabs = pages // geometry.pages_per_slab
        slots = (pages - slabs * geometry.pages_per_slab) * geometry.rows_per_page + (row_ids - pages * per_page) - 1
        result: Mask = (rows["slab"] == slabs) & (rows["slot"] == slots)
        result &= rows["slot_class"] == table.slab_class[slabs]
        result &= rows["seq"] >= table.slab_seq[slabs]
        return result
