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

    First of all slabs of all givers only the half that was written to longest ago counts: a class of few slabs may have
    in each of them what was put last. Within a class the slab with the fewest slots in use goes. Never one with
    evidence in it, or one that is on its way already.
    """
    table, slots = index.table, index.slots
    written = table.page_seq.reshape(-1, table.geometry.pages_per_slab).max(axis=1)
    met_leases = False
    candidates: list[list[int]] = []
    for kind in givers:
        mine = []
        # Only then are all rows of the class's slabs read, which is what takes long here.
        may_have_evidence = bool(index.quarantined[kind] or index.retired[kind])
        for slab in np.flatnonzero(table.slab_class == kind).tolist():
            if leased_in(slab):
                met_leases = True
            elif not slots.is_draining(slab) and not (may_have_evidence and _has_evidence(index, slab)):
                mine.append(slab)
        candidates.append(mine)
    ages = sorted(int(written[slab]) for mine in candidates for slab in mine)
    if not ages:
        return SlabChoice(-1, met_leases)
    middle = ages[(len(ages) - 1) // 2]
    for latest in (middle, ages[-1]):
        for mine in candidates:
            old = [slab for slab in mine if written[slab] <= latest]
            if old:
                return SlabChoice(min(old, key=lambda slab: (slots.busy[slab], int(written[slab]))), met_leases)
    raise AssertionError("the last round takes any")


def _has_evidence(index: Index, slab: int) -> bool:
    states = index.table.lines["state"][index.table.row_ids_of_slab(slab)]
    return bool(((states == SlotState.QUARANTINED) | (states == SlotState.RETIRED)).any())
