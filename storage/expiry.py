"""Background expiry: returns the space of entries whose time has come, a slice of the table at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from storage.commit import Commit
from storage.format.geometry import NO_CLASS
from storage.format.row import FreeReason, SlotState
from storage.index import Index
from storage.journal import Unit
from storage.waiting import UNITS_AT_ONCE, wait_all

SLICE_ROWS = 65536
"""Rows looked at between two turns of the loop: some 200 µs."""


async def expire(index: Index, commit: Commit, clock: Callable[[], float]) -> None:
    """Free every expired entry, durably. Raises JournalUnavailable."""
    units: list[Unit] = []
    if not index.expiring:
        return
    seen = 0
    table = index.table
    for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
        row_ids = table.row_ids_of_slab(slab)
        expires = table.lines["expires_at"][row_ids]
        due = (expires != 0) & (expires <= clock()) & (table.lines["state"][row_ids] == SlotState.LIVE)
        for row_id in row_ids[due].tolist():
            unit = commit.free(row_id, table.row(row_id).seq, FreeReason.EXPIRED)
            if unit is not None:
                units.append(unit)
            if len(units) >= UNITS_AT_ONCE:
                await wait_all(units)
                units.clear()
        seen += len(row_ids)
        if seen >= SLICE_ROWS:
            seen = 0
            await asyncio.sleep(0)
    await wait_all(units)
