"""What the rows of a table add up to: per class, per namespace (A1, A2). One pass over the table, slab by slab."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.format.row import SlotState
from storage.namespaces import Usage
from storage.slot_table import RowIds, SlabLines, SlotTable

DIRECT_MAX = 1 << 14
"""Up to this id a namespace's rows are counted in its own place of an array: a fifth of the time that sorting takes."""


@dataclass(slots=True)
class RowCounts:
    """Lists are per slot class."""

    live: list[int]
    quarantined: list[int]
    retired: list[int]
    expiring: int = 0
    """Live rows that have an expiry."""
    usage: Usage = field(default_factory=dict)
    quarantined_row_ids: RowIds = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def count_rows(table: SlotTable) -> RowCounts:
    classes = len(table.geometry.class_bytes)
    counts = RowCounts([0] * classes, [0] * classes, [0] * classes)
    quarantined = [counts.quarantined_row_ids]
    for part in table.slabs_lines():
        states = part.lines["state"].copy()
        live = (states == SlotState.LIVE) & part.are_slots
        counts.live[part.slot_class] += int(np.count_nonzero(live))
        counts.expiring += int(np.count_nonzero((part.lines["expires_at"] > 0) & live))
        _add_usage(counts.usage, part, live)
        evidence = part.row_ids(states == SlotState.QUARANTINED)
        if len(evidence):
            quarantined.append(evidence)
        counts.quarantined[part.slot_class] += len(evidence)
        counts.retired[part.slot_class] += int(np.count_nonzero((states == SlotState.RETIRED) & part.are_slots))
    counts.quarantined_row_ids = np.concatenate(quarantined)
    return counts


def _add_usage(usage: Usage, part: SlabLines, live: npt.NDArray[np.bool_]) -> None:
    namespace_ids = np.where(live, part.lines["namespace_id"], np.uint32(0))  # 0 is nobody's
    payload_bytes, ids = part.lines["payload_bytes"], None
    if namespace_ids.max() > DIRECT_MAX:
        ids, namespace_ids = np.unique(namespace_ids, return_inverse=True)
    sizes = np.bincount(namespace_ids)
    # As floats: exact, since a slab's bytes are far below 2^53.
    sums = np.bincount(namespace_ids, weights=payload_bytes)
    for position in np.flatnonzero(sizes).tolist():
        namespace_id = position if ids is None else int(ids[position])
        if namespace_id:
            known_count, known_bytes = usage.get((namespace_id, part.slot_class), (0, 0))
            count, total = int(sizes[position]), int(sums[position])
            usage[namespace_id, part.slot_class] = (known_count + count, known_bytes + total)
