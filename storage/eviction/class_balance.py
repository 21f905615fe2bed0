"""Which slot class should give a slab to which: a workload whose sizes change gets the slabs it needs.

Per class three things are counted, in windows that halve what lies back: values stored, reads, and values stored again
soon after they had been evicted (the policy knows them). From these follow

- how long a class's slots last at the rate at which it stores: one that stores nothing keeps its slabs for nothing;
- what a slab of the class earns in reads, and what one more would earn: the same, and what came back too late.

A class that has to evict takes a slab from another if that one's slots last more than ``LASTS_RATIO`` times as long
and a slab there earns no more than here; or if values there are stored and hardly ever read, and slabs here earn
``EARNS_RATIO`` times what they could earn there. None of this can hold in both directions at once, so slabs don't go
to and fro; and a scan of values that nobody reads again takes no slab from values that are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.eviction.interface import Eviction

LASTS_RATIO = 2.0
EARNS_RATIO = 4.0
UNREAD_STORES = 32
"""Values of a class are hardly ever read if there are so many stores to a read."""
WINDOW_SHARE = 16
"""A window ends when a sixteenth of the device's bytes was stored, or as many reads and puts took place as there are
entries."""
OPERATIONS_MIN = 1024
IDLE_BELOW = 0.5
"""Reads and stores of a window, halved again and again, that count as none."""


class ClassBalance:
    """``hits`` and ``stored`` are counted up by the engine, per slot class."""

    def __init__(self, class_bytes: Sequence[int], total_bytes: int, slots_per_slab: Sequence[int]) -> None:
        count = len(class_bytes)
        self.hits = [0] * count
        self.stored = [0] * count
        self._class_bytes = class_bytes
        self._slots_per_slab = slots_per_slab
        self._window_bytes = max(1, total_bytes // WINDOW_SHARE)
        self._hits_back = [0.0] * count
        """Of each count the part that lies back: what counts is the difference."""
        self._stored_back = [0.0] * count
        self._returned_back = [0.0] * count
        self._window_start = (0, 0)

    def end_window(self, eviction: Eviction, entries: int) -> None:
        """Halve what lies back, if it is time."""
        stored_bytes = sum(n * size for n, size in zip(self.stored, self._class_bytes, strict=True))
        operations = sum(self.hits) + sum(self.stored)
        bytes_before, operations_before = self._window_start
        enough = operations - operations_before >= max(OPERATIONS_MIN, entries)
        if not enough and stored_bytes - bytes_before < self._window_bytes:
            return
        self._window_start = (stored_bytes, operations)
        for kind in range(len(self.hits)):
            self._hits_back[kind] += (self.hits[kind] - self._hits_back[kind]) / 2
            self._stored_back[kind] += (self.stored[kind] - self._stored_back[kind]) / 2
            self._returned_back[kind] += (eviction.returned(kind) - self._returned_back[kind]) / 2

    def givers(self, slabs: Sequence[int]) -> list[int]:
        """Classes that own slabs: those first whose slabs earn least, of these those whose slots last longest."""
        owners = [kind for kind, count in enumerate(slabs) if count]
        return sorted(owners, key=lambda kind: (self._earns(kind, slabs), -self._lasts(kind, slabs)))

    def may_take(self, taker: int, slabs: Sequence[int], eviction: Eviction) -> list[int]:
        """Classes that should give a slab to ``taker``, the best first. The last slab goes only from an idle class."""
        if not slabs[taker]:
            return []
        lasts, earns = self._lasts(taker, slabs), self._would_earn(taker, slabs, eviction)
        return [
            kind
            for kind in self.givers(slabs)
            if kind != taker
            and (slabs[kind] > 1 or self._is_idle(kind))
            and (
                (self._lasts(kind, slabs) > LASTS_RATIO * lasts and self._earns(kind, slabs) <= earns)
                or self._is_wasted(kind, slabs, eviction, self._earns(taker, slabs))
            )
        ]

    def _is_wasted(self, kind: int, slabs: Sequence[int], eviction: Eviction, earns_elsewhere: float) -> bool:
        """Whether what the class stores is hardly ever read, and would earn far more elsewhere."""
        would_earn = self._would_earn(kind, slabs, eviction)
        stored = self.stored[kind] - self._stored_back[kind]
        return would_earn * slabs[kind] * UNREAD_STORES < stored and would_earn * EARNS_RATIO < earns_elsewhere

    def _earns(self, kind: int, slabs: Sequence[int]) -> float:
        hits = self.hits[kind] - self._hits_back[kind]
        return 0.0 if hits < IDLE_BELOW else hits / slabs[kind]

    def _would_earn(self, kind: int, slabs: Sequence[int], eviction: Eviction) -> float:
        returned = eviction.returned(kind) - self._returned_back[kind]
        return self._earns(kind, slabs) + max(0.0, returned) / slabs[kind]

    def _lasts(self, kind: int, slabs: Sequence[int]) -> float:
        """In windows; infinite for a class that stores nothing."""
        stored = self.stored[kind] - self._stored_back[kind]
        return float("inf") if stored < IDLE_BELOW else slabs[kind] * self._slots_per_slab[kind] / stored

    def _is_idle(self, kind: int) -> bool:
        busy = self.hits[kind] - self._hits_back[kind] + self.stored[kind] - self._stored_back[kind]
        return busy < IDLE_BELOW
