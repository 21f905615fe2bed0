"""What the rows of a table add up to: per class, per namespace (A1, A2). One pass over the table, slab by slab."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from storage.format.row import SlotState
from storage.namespaces import Usage
from storage.slot_table import RowIds, SlabLines, SlotTable


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
        states = part.lines["state"]
        live = np.flatnonzero((states == SlotState.LIVE) & part.are_slots)
        evidence = part.row_ids(states == SlotState.QUARANTINED)
        if len(evidence):
            quarantined.append(evidence)
        counts.live[part.slot_class] += len(live)
        counts.quarantined[part.slot_class] += len(evidence)
        counts.retired[part.slot_class] += len(part.row_ids(states == SlotState.RETIRED))
        counts.expiring += int(np.count_nonzero(part.lines["expires_at"][live]))
        _add_usage(counts.usage, part, live)
    counts.quarantined_row_ids = np.concatenate(quarantined)
    return counts


def _add_usage(usage: Usage, part: SlabLines, live: RowIds) -> None:
    namespace_ids, payload_bytes = part.lines["namespace_id"][live], part.lines["payload_bytes"][live]
    unique, positions = np.unique(namespace_ids, return_inverse=True)
    sizes = np.bincount(positions, minlength=len(unique))
    # As floats: exact, since a slab's bytes are far below 2^53.
    sums = np.bincount(positions, weights=payload_bytes, minlength=len(unique))
    for namespace_id, count, total in zip(unique.tolist(), sizes.tolist(), sums.tolist(), strict=True):
        known_count, known_bytes = usage.get((namespace_id, part.slot_class), (0, 0))
        usage[namespace_id, part.slot_class] = (known_count + count, known_bytes + int(total))
