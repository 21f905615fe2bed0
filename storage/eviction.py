"""CLOCK over the slot table: which entries of a class go when it needs slots.

Each class has a hand that moves over its slots. A live slot with a zero access counter is a victim; others lose one.
New entries start at zero and are met only after the hand came round, so that a scan passes through without
displacing what is read (second chance, Corbató 1968; counter up to 3 as in CLOCK with multiple bits).

The hand goes from slab to slab in a ring. A slab that joins the class joins the ring behind the hand, whatever its
number: it is filled with what is newest, which must be met last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from storage.format.row import SlotState
from storage.slot_table import SlotTable

ACCESS_MAX = 3
STRIDE = 512
"""Slots looked at in one step: one array operation, some 20 µs."""


class Ring:
    """The slabs of a class in the order in which the hand meets them; it is over the first, at ``position``."""

    def __init__(self, table: SlotTable, slot_class: int) -> None:
        self._table = table
        self._slot_class = slot_class
        self.position = 0
        self._slabs: deque[int] = deque()
        self._members = np.empty((2, 0), dtype=np.int64)
        """Slabs and their generations, as of the last look: a slab that left and came back is a new one."""

    def __len__(self) -> int:
        return len(self._slabs)

    @property
    def slab(self) -> int:
        return self._slabs[0]

    def advance(self) -> None:
        """Go on to the next slab."""
        self._slabs.rotate(-1)
        self.position = 0

    def look(self) -> None:
        """Take note of slabs that left and of slabs that joined the class."""
        table = self._table
        slabs = np.flatnonzero(table.slab_class == self._slot_class)
        members = np.stack((slabs, table.slab_generation[slabs].astype(np.int64)))
        if np.array_equal(members, self._members):
            return
        before = set(zip(*self._members.tolist(), strict=True))
        after = set(zip(*members.tolist(), strict=True))
        stayed = {slab for slab, _ in before & after}
        joined = [slab for slab, _ in sorted(after - before)]
        if self._slabs and self._slabs[0] not in stayed:
            self.position = 0
        self._slabs = deque(slab for slab in self._slabs if slab in stayed)
        # Several at once, as after a start: what was written longest ago first.
        written = table.page_seq.reshape(-1, table.geometry.pages_per_slab)[joined].max(axis=1)
        self._slabs.extend(slab for _, slab in sorted(zip(written.tolist(), joined, strict=True)))
        self._members = members


class Clock:
    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._rings = [Ring(table, slot_class) for slot_class in range(len(table.geometry.class_bytes))]

    def victims(self, slot_class: int, wanted: int, may_go: Callable[[int], bool]) -> list[int]:
        """Up to ``wanted`` row ids of live slots to evict, in the order of the hand.

        ``may_go`` says whether a slot would become free by that: held ones would not (L3).
        """
        table, ring = self._table, self._rings[slot_class]
        ring.look()
        if not ring:
            return []
        slots = table.geometry.slots_per_slab(slot_class)
        victims: list[int] = []
        # Every slot is met at most ACCESS_MAX + 1 times: then its counter is zero and it went, or it may not go.
        steps = (ACCESS_MAX + 1) * (len(ring) * -(-slots // STRIDE) + 1)
        while len(victims) < wanted and steps:
            steps -= 1
            if ring.position >= slots:
                ring.advance()
            row_ids = table.row_ids_of_slab(ring.slab)[ring.position : ring.position + STRIDE]
            ring.position += self._sweep(row_ids, wanted, may_go, victims)
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
