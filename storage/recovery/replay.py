"""Applying the journal to the table: the flushed part as arrays, the newest row of each slot winning by seq."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from storage.format.catalogue import (
    AcknowledgedRecord,
    CatalogueRecord,
    CounterRecord,
    NamespaceRecord,
    NamespaceWipedRecord,
    PartialRecord,
    RestoredRecord,
    SkippedRecord,
    SlabRecord,
    SlotFailuresRecord,
    SupersededRecord,
)
from storage.format.geometry import LINE_BYTES, NO_CLASS
from storage.format.layout import Defect, Undecodable
from storage.format.row import FreeReason, Rows, SlotState
from storage.index import Index
from storage.key_map import SortedKeys, orders_of, same_start
from storage.namespace_settings import decode_settings
from storage.namespaces import Namespace
from storage.recovery.pages import BadLine
from storage.recovery.report import SkipReason
from storage.recovery.row_rules import RowRules

REMOVES_KEY = frozenset({FreeReason.CLIENT, FreeReason.EVICTED, FreeReason.EXPIRED, FreeReason.QUOTA, FreeReason.WIPED})
"""Reasons with which a free row speaks of its key; the others speak of their slot only."""


class CatalogueState:
    """The catalogue as of the end of the journal: of each thing the record with the highest seq."""

    def __init__(self) -> None:
        self.slabs: dict[int, SlabRecord] = {}
        self.namespaces: dict[int, NamespaceRecord] = {}
        self.wiped: dict[int, int] = {}
        self.next_namespace_id = 1
        self.start_count = 0
        self.highest_seq = 0
        self.partial: PartialRecord | None = None
        self.skipped: list[SkippedRecord] = []
        self.acknowledged: AcknowledgedRecord | None = None
        self.superseded: list[SupersededRecord] = []
        self.restored: dict[tuple[int, int], int] = {}
        self.failures: list[SlotFailuresRecord] = []

    def apply(self, records: list[CatalogueRecord]) -> None:
        """Records in ascending order of seq, as far as they concern the same thing."""
        for record in records:
            self.highest_seq = max(self.highest_seq, record.seq)
            if isinstance(record, SlabRecord):
                known = self.slabs.get(record.slab)
                if known is None or known.seq <= record.seq:
                    self.slabs[record.slab] = record
            elif isinstance(record, NamespaceRecord):
                if record.namespace_id not in self.wiped:
                    self.namespaces[record.namespace_id] = record
                self.next_namespace_id = max(self.next_namespace_id, record.namespace_id + 1)
            elif isinstance(record, NamespaceWipedRecord):
                self.namespaces.pop(record.namespace_id, None)
                self.wiped[record.namespace_id] = record.seq
                self.next_namespace_id = max(self.next_namespace_id, record.namespace_id + 1)
            elif isinstance(record, CounterRecord):
                self.next_namespace_id = max(self.next_namespace_id, record.next_namespace_id)
                self.start_count = max(self.start_count, record.start_count)
            elif isinstance(record, PartialRecord):
                if self.acknowledged is None or self.acknowledged.seq < record.seq:
                    self.partial = record
            elif isinstance(record, SkippedRecord):
                if record.reason not in SkipReason.__members__.values():
                    raise Undecodable(Defect.INVALID, f"catalogue record: skip reason {record.reason!r}")
                self.skipped.append(record)
            elif isinstance(record, SupersededRecord):
                self.superseded.append(record)
            elif isinstance(record, RestoredRecord):
                self.restored[record.slab, record.slot] = record.seq
            elif isinstance(record, SlotFailuresRecord):
                self.failures.append(record)
            elif isinstance(record, AcknowledgedRecord):
                self.acknowledged = record
                if self.partial is not None and self.partial.seq < record.seq:
                    self.partial = None

    def open_skipped(self) -> list[SkippedRecord]:
        """Skipped entries no acknowledgement covers, in the order found; a compaction may have journaled one twice."""
        since = self.acknowledged.seq if self.acknowledged is not None else 0
        unique: dict[tuple[str, int, int, bytes], SkippedRecord] = {}
        for record in sorted(self.skipped, key=lambda r: r.seq):
            restored = self.restored.get((record.slab, record.slot), 0)
            if record.seq > max(since, restored):
                unique.setdefault((record.reason, record.slab, record.slot, record.raw), record)
        return list(unique.values())

    def install_slabs(self, index: Index) -> None:
        """Give the index its slabs. Raises Undecodable for a class or slab the device does not have."""
        geometry, table = index.geometry, index.table
        for slab, record in self.slabs.items():
            if slab >= geometry.slabs or record.slot_class >= len(geometry.class_bytes):
                raise Undecodable(Defect.INVALID, f"catalogue: slab {slab} in class {record.slot_class}")
            table.slab_class[slab] = record.slot_class
            table.slab_generation[slab] = record.generation
            table.slab_seq[slab] = record.seq

    def install_evidence(self, index: Index) -> None:
        """Give the index what is known of quarantined slots; the table is in its final state."""
        for failures in self.failures:
            index.evidence.apply(failures)
        for superseded in self.superseded:
            row = index.table.row(index.table.row_id(superseded.slab, superseded.slot))
            if row.state == SlotState.QUARANTINED and row.seq < superseded.seq:
                index.evidence.apply(superseded)

    def install_namespaces(self, index: Index) -> None:
        """Give the index its namespaces. Raises Undecodable for settings no namespace can have."""
        for record in self.namespaces.values():
            settings = decode_settings(record.settings)
            index.namespaces.add(Namespace(record.namespace_id, record.name, settings, record.seq))
        index.namespaces.wiped = dict(self.wiped)
        index.namespaces.next_id = max(index.namespaces.next_id, self.next_namespace_id)


def apply_rows(index: Index, rows: Rows) -> tuple[npt.NDArray[np.int64], list[BadLine]]:
    """Put the newest row of each slot into the table where it is newer than what stands there.

    Returns the row ids of all slots the journal speaks of, and rows that were written wrong. Rows of a generation that
    ended are dead and dropped.
    """
    if not len(rows):
        return np.empty(0, dtype=np.int64), []
    table = index.table
    row_ids, exists = row_ids_of(index, rows)
    bad = [bad_line(index, rows[i].tobytes()) for i in np.flatnonzero(~exists).tolist()]
    alive = exists & (rows["seq"] >= table.slab_seq[np.minimum(rows["slab"], index.geometry.slabs - 1)])
    row_ids, newest = newest_of_each(row_ids, rows["seq"], np.flatnonzero(alive), len(table.lines))
    rows = rows[newest]
    wrong = RowRules(index).wrong(rows, row_ids)
    bad += [bad_line(index, rows[i].tobytes(), int(row_ids[i])) for i in np.flatnonzero(wrong).tolist()]
    # A slot whose newest row is wrong has no older truth: whatever the table holds was superseded by it.
    table.lines[row_ids[wrong]] = np.zeros((), dtype=table.lines.dtype)
    good = ~wrong & (rows["seq"] > table.lines["seq"][row_ids])
    table.lines[row_ids[good]] = rows[good]
    return row_ids[~wrong], bad


def newest_of_each(
    row_ids: npt.NDArray[np.int64], seqs: npt.NDArray[np.uint64], chosen: npt.NDArray[np.int64], lines: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of the journal's rows at the positions ``chosen`` the one with the highest seq for each row id, of equal ones the
    last: row ids, ascending, and positions.

    Of a long journal most rows were overtaken: no row is moved to find out. One slot per line of the table is filled in
    the order of seq, so that what stands there in the end is the newest; 20 ns a row, where sorting them took 500.
    """
    in_order = seqs[chosen]
    if (in_order[1:] < in_order[:-1]).any():  # rows that a compaction renewed keep their seq
        chosen = chosen[np.argsort(in_order, kind="stable")]
    newest = np.full(lines, -1, dtype=np.int32)
    newest[row_ids[chosen]] = chosen
    found = np.flatnonzero(newest >= 0)
    return found, newest[found].astype(np.int64)


def removed_since(index: Index, rows: Rows) -> list[int]:
    """Row ids of live rows whose key is removed later, from another slot, by ``rows``: what lies between is lost."""
    removals = rows[(rows["state"] == SlotState.FREE) & np.isin(rows["reason"], list(REMOVES_KEY))]
    latest: dict[bytes, int] = {}
    for digest, seq in zip(removals["digest"], removals["seq"].tolist(), strict=True):
        latest[digest.tobytes()] = max(seq, latest.get(digest.tobytes(), 0))
    table = index.table
    live = table.live_row_ids()
    keys = zip(live.tolist(), table.lines["digest"][live], table.lines["seq"][live].tolist(), strict=True)
    return [row_id for row_id, digest, seq in keys if seq < latest.get(digest.tobytes(), 0)]


def row_ids_of(index: Index, rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Row id of each row by the place it names, and whether the device has that place.

    Of a row of a generation that ended it is enough if the slab has it under any class.
    """
    geometry, table = index.geometry, index.table
    slabs = rows["slab"].astype(np.int64)
    slots = rows["slot"].astype(np.int64)
    known = np.minimum(slabs, geometry.slabs - 1)
    slots_of_class = np.zeros(NO_CLASS + 1, dtype=np.int64)
    slots_of_class[: len(geometry.class_bytes)] = [*map(geometry.slots_per_slab, range(len(geometry.class_bytes)))]
    exists = (slabs < geometry.slabs) & (slots < geometry.slots_per_slab_max) & (table.slab_class[known] != NO_CLASS)
    exists &= (slots < slots_of_class[table.slab_class[known]]) | (rows["seq"] < table.slab_seq[known])
    pages = slots // geometry.rows_per_page
    positions = slots - pages * geometry.rows_per_page
    row_ids = (slabs * geometry.pages_per_slab + pages) * (geometry.block_bytes // LINE_BYTES) + 1 + positions
    return np.where(exists, row_ids, 0), exists


def bad_line(index: Index, raw: bytes, row_id: int = 0) -> BadLine:
    """A row of the journal that was written wrong; ``row_id`` is 0 if the device does not have the place it names."""
    reason = SkipReason.INVALID_ROW if row_id else SkipReason.OUT_OF_RANGE
    return BadLine(row_id, -1, index.table.page_of(row_id), reason, raw)


def duplicate_keys(index: Index, keys: SortedKeys, proven: Callable[[int], bool]) -> list[int]:
    """Row ids of live rows whose key is held by another one too; there are none unless something was lost.

    ``keys`` are all live rows. The newest row that its record header proves keeps the key; ``proven`` is asked of
    duplicates alone.
    """
    table = index.table
    suspects = same_start(keys)
    digests = table.rows(suspects)["digest"]
    high, low = orders_of(np.ascontiguousarray(digests))
    order = np.lexsort((low, high))
    suspects, high, low = suspects[order], high[order], low[order]
    groups: dict[int, list[int]] = {}
    first = 0
    for position in (np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1])) + 1).tolist():
        if position - 1 not in groups.get(first, [first]):
            first = position - 1
        groups.setdefault(first, [first]).append(position)
    others: list[int] = []
    for positions in groups.values():
        group = suspects[positions].tolist()
        group.sort(key=lambda row_id: (proven(row_id), int(table.lines["seq"][row_id])))
        others += group[:-1]
    return others
