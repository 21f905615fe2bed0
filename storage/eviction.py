"""CLOCK over the slot table: which entries of a class go when it needs slots.

Each class has a hand that moves over its slots. A live slot with a zero access counter is a victim; others lose one.
New entries start at zero and are met only after the hand came round, so that a scan passes through without
displacing what is read (second chance, Corbató 1968; counter up to 3 as in CLOCK with multiple bits).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from storage.format.row import SlotState
from storage.slot_table import SlotTable

ACCESS_MAX = 3
STRIDE = 512
"""Slots looked at in one step: one array operation, some 20 µs."""


class Clock:
    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._hands = [(0, 0)] * len(table.geometry.class_bytes)

    def victims(self, slot_class: int, wanted: int, may_go: Callable[[int], bool]) -> list[int]:
        """Up to ``wanted`` row ids of live slots to evict, in the order of the hand.

        ``may_go`` says whether a slot would become free by that: held ones would not (L3).
        """
        table = self._table
        slabs = np.flatnonzero(table.slab_class == slot_class)
        if not len(slabs):
            return []
        slots = table.geometry.slots_per_slab(slot_class)
        victims: list[int] = []
        turn, position = self._hands[slot_class]
        # Every slot is met at most ACCESS_MAX + 1 times: then its counter is zero and it went, or it may not go.
        steps = (ACCESS_MAX + 1) * (len(slabs) * -(-slots // STRIDE) + 1)
        while len(victims) < wanted and steps:
            steps -= 1
            if position >= slots:
                turn, position = turn + 1, 0
            row_ids = table.row_ids_of_slab(int(slabs[turn % len(slabs)]))[position : position + STRIDE]
            position += self._sweep(row_ids, wanted, may_go, victims)
        self._hands[slot_class] = (turn % len(slabs), position)
        return victims

    def _sweep(
        self,
        row_ids: np.ndarray[tuple[int], np.dtype[np.int64]],
        wanted: int,
        may_go: Callable[[int], bool],
        victims: list[int],
    ) -> int:
        """Collect victims among ``row_ids``; returns how many slots the hand passed."""
        access = self._table.lines["access"]
        live = self._table.lines["state"][row_ids] == SlotState.LIVE
        counters = access[row_ids]
        passed = len(row_ids)
        chosen = set(victims)
        for offset in np.flatnonzero(live & (counters == 0)).tolist():
            row_id = int(row_ids[offset])
            if row_id not in chosen and may_go(row_id):
                victims.append(row_id)
                if len(victims) >= wanted:
                    passed = offset + 1
                    break
        spared = row_ids[:passed][(live & (counters > 0))[:passed]]
        access[spared] -= 1
        return passed
