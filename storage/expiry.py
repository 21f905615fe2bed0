"""Background expiry: returns the space of entries whose time has come, a slice of the table at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from storage.commit import Commit
from storage.format.row import FreeReason, Rows, SlotState
from storage.index import Index
from storage.journal import Unit
from storage.table_walk import PAGES_AT_ONCE, page_runs, row_ids_where
from storage.turns import Turns
from storage.waiting import UNITS_AT_ONCE, wait_all


async def expire(index: Index, commit: Commit, clock: Callable[[], float]) -> None:
    """Free every expired entry, durably. Raises JournalUnavailable."""
    if not index.expiring:
        return

    def are_due(rows: Rows) -> npt.NDArray[np.bool_]:
        due: npt.NDArray[np.bool_] = (rows["expires_at"] != 0) & (rows["expires_at"] <= clock())
        due &= rows["state"] == SlotState.LIVE
        return due

    units: list[Unit] = []
    table, turns = index.table, Turns(PAGES_AT_ONCE)
    for pages in page_runs(table):
        for row_id in row_ids_where(table, pages, are_due).tolist():
            # Joining others takes turns of the loop: the row may be another one by now.
            row = table.row(row_id)
            if row.expires_at and row.expires_at <= clock():
                unit = commit.free(row_id, row.seq, FreeReason.EXPIRED)
                if unit is not None:
                    units.append(unit)
            if len(units) >= UNITS_AT_ONCE:
                await wait_all(units)
                units.clear()
        await turns.after(pages[1] - pages[0])
    await wait_all(units)
