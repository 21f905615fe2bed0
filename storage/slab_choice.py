"""Which slab of a class is emptied, so that another class can have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from storage.format.row import SlotState
from storage.index import Index


@dataclass(frozen=True, slots=True)
class SlabChoice:
    """``slab`` is -1 if there is none; ``met_leases``: a slab was left alone because slots in it are leased."""

    slab: int
    met_leases: bool


def slab_to_empty(index: Index, givers: Iterable[int], leased_in: Callable[[int], bool]) -> SlabChoice:
    """A slab of the first class of ``givers`` that has one to give.

    Of the half of its slabs that was written to longest ago, the one with the fewest slots in use: a slab just given
    out holds little too, but the newest. Never one with evidence in it, or one that is on its way already.
    """
    table, slots = index.table, index.slots
    written = table.page_seq.reshape(-1, table.geometry.pages_per_slab).max(axis=1)
    met_leases = False
    for kind in givers:
        candidates = []
        for slab in np.flatnonzero(table.slab_class == kind).tolist():
            if leased_in(slab):
                met_leases = True
            elif not slots.is_draining(slab):
                candidates.append(slab)
        candidates.sort(key=lambda slab: int(written[slab]))
        older, newer = candidates[: (len(candidates) + 1) // 2], candidates[(len(candidates) + 1) // 2 :]
        for slab in [*sorted(older, key=lambda slab: slots.busy[slab]), *newer]:
            if not _has_evidence(index, slab):
                return SlabChoice(slab, met_leases)
    return SlabChoice(-1, met_leases)


def _has_evidence(index: Index, slab: int) -> bool:
    states = index.table.lines["state"][index.table.row_ids_of_slab(slab)]
    return bool(((states == SlotState.QUARANTINED) | (states == SlotState.RETIRED)).any())
