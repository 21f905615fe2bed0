"""What a recovery would make of the device, recounted from the rows alone (A1, A2)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from storage.format.geometry import NO_CLASS
from storage.format.row import QuarantineReason, Rows, SlotState
from storage.index import Index
from storage.offline.findings import Damage, Findings
from storage.offline.opening import OpenCache
from storage.recovery.errors import InvalidRowsFound, TooMuchSkipped
from storage.recovery.recover import Recovered, RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress
from storage.slot_table import RowIds

ANYTHING = RecoveryLimits(max_skipped_ratio=1.0, max_skipped_floor=1 << 62, accept_loss=True)
"""Limits that refuse nothing: to look at what can be had."""

Clock = Callable[[], float]


def recovered_state(
    cache: OpenCache, findings: Findings, limits: RecoveryLimits | None = None, clock: Clock = time.time
) -> Recovered:
    """What a start would make of the device. A refusal for too much damage is noted, and its state still returned.

    Raises RecoveryRefused for what no limit can accept, DeviceFailed, Undecodable.
    """
    try:
        return recover(cache.device, limits or RecoveryLimits(), RecoveryProgress(), clock())
    except (TooMuchSkipped, InvalidRowsFound) as error:
        findings.refusal = error.code
    return recover(cache.device, ANYTHING, RecoveryProgress(), clock())


def live_row_ids(index: Index) -> RowIds:
    """Row ids of live rows, in the order of the device."""
    row_ids = index.table.row_ids()
    live: RowIds = row_ids[index.table.lines["state"][row_ids] == SlotState.LIVE]
    return live


def quarantined_row_ids(index: Index) -> RowIds:
    row_ids = index.table.row_ids()
    quarantined: RowIds = row_ids[index.table.lines["state"][row_ids] == SlotState.QUARANTINED]
    return quarantined


def check_state(index: Index, findings: Findings) -> None:
    """The invariants of a state at rest."""
    live = live_row_ids(index)
    rows = index.table.lines[live]
    check_slots(index, findings)
    check_usage(index, rows, findings)
    check_keys(rows, findings)
    check_overlaps(index, live, findings)
    check_quarantine(index, findings)


def check_slots(index: Index, findings: Findings) -> None:
    """A1, per class: free + live + quarantined + retired = slots."""
    table, geometry = index.table, index.geometry
    row_ids = table.row_ids()
    states = table.lines["state"][row_ids]
    classes = table.lines["slot_class"][row_ids]
    for slot_class, status in enumerate(index.class_statuses()):
        slots = status.slots
        counted = np.bincount(states[classes == slot_class], minlength=len(SlotState))
        claimed = {
            SlotState.FREE: slots.free,
            SlotState.LIVE: slots.live,
            SlotState.STAGED: 0,
            SlotState.QUARANTINED: slots.quarantined,
            SlotState.RETIRED: slots.retired,
        }
        where = f"class {slot_class}"
        for state, count in claimed.items():
            if counted[state] != count:
                findings.add(Damage.ACCOUNTING, where, f"A1: {count} slots {state.name.lower()}, {counted[state]} rows")
        total = int((table.slab_class == slot_class).sum()) * geometry.slots_per_slab(slot_class)
        if not slots.total == total == sum(claimed.values()):
            findings.add(Damage.ACCOUNTING, where, f"A1: {sum(claimed.values())} of {total} slots accounted for")


def check_usage(index: Index, live: Rows, findings: Findings) -> None:
    """A2: what a namespace uses is the sum over its live entries."""
    sizes = np.array(index.geometry.class_bytes, dtype=np.int64)[live["slot_class"]]
    for namespace_id, namespace in index.namespaces.by_id.items():
        own = live["namespace_id"] == namespace_id
        counted = (int(own.sum()), int(sizes[own].sum()), int(live["payload_bytes"][own].sum(dtype=np.int64)))
        claimed = (namespace.entries, namespace.used_bytes, namespace.payload_bytes)
        if counted != claimed:
            why = f"A2: entries, slot and payload bytes are {claimed}, the rows make {counted}"
            findings.add(Damage.ACCOUNTING, f"namespace {namespace.name}", why)
    if len(live) != index.keys.entries:
        findings.add(Damage.ACCOUNTING, "key map", f"A2: {index.keys.entries} keys, {len(live)} live rows")


def check_keys(live: Rows, findings: Findings) -> None:
    """No key is held by two slots."""
    digests = np.ascontiguousarray(live["digest"]).view(np.uint64).reshape(-1, 2)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    same = (digests[order][1:] == digests[order][:-1]).all(axis=1)
    for position in np.flatnonzero(same).tolist():
        first, second = (live[order[position + step]] for step in (0, 1))
        why = f"also held by slab {second['slab']} slot {second['slot']}"
        findings.add(Damage.DUPLICATE_KEY, f"slab {first['slab']} slot {first['slot']}", why)


def check_overlaps(index: Index, live: RowIds, findings: Findings) -> None:
    """No two live slots share a byte, and none leaves its slab."""
    geometry, table = index.geometry, index.table
    rows = table.lines[live]
    slabs = rows["slab"].astype(np.int64)
    sizes = np.array(geometry.class_bytes, dtype=np.int64)[table.slab_class[slabs]]
    first_slots = geometry.slabs_offset + slabs * geometry.slab_bytes + geometry.block_bytes
    starts = first_slots + rows["slot"].astype(np.int64) * sizes
    ends = starts + sizes
    bad = ends > geometry.slabs_offset + (slabs + 1) * geometry.slab_bytes
    bad |= table.slab_class[slabs] == NO_CLASS
    order = np.argsort(starts, kind="stable")
    bad[order[1:]] |= starts[order][1:] < ends[order][:-1]
    for position in np.flatnonzero(bad).tolist():
        where = f"slab {rows['slab'][position]} slot {rows['slot'][position]}"
        findings.add(Damage.SLOT_OVERLAP, where, "shares bytes with another slot or leaves its slab")


def check_quarantine(index: Index, findings: Findings) -> None:
    """Slots set aside while the daemon ran; those of skipped entries are counted as such."""
    rows = index.table.lines[quarantined_row_ids(index)]
    for row in rows[rows["reason"] != QuarantineReason.SKIPPED]:
        reason = QuarantineReason(int(row["reason"])).name.lower()
        findings.add(Damage.QUARANTINED_SLOT, f"slab {row['slab']} slot {row['slot']}", reason)
