"""S3-FIFO: a small queue in which new entries prove themselves, a main queue, and a memory of what went (Yang 2023).

A tenth of a class's entries are in the small queue. From there an entry that was read twice moves to the main queue;
any other is evicted and its key is remembered. A key that is stored again while it is remembered enters the main queue
at once. The main queue is a CLOCK with a counter of two bits. So an entry that nobody reads takes only a tenth of the
cache's time: a scan passes through the small queue.

The memory of evicted keys reaches back over as many as nine tenths of all entries. It starts empty; the queues survive
a restart in the rows' access bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage.eviction.fingerprints import Fingerprints
from storage.eviction.interface import MAIN, READS, STEPS_MAX, MayGo
from storage.eviction.queued import QueuedEviction
from storage.eviction.weights import Weights
from storage.format.geometry import LINE_BYTES
from storage.format.row import ACCESS_OFFSET, DIGEST_BYTES, DIGEST_OFFSET, Row
from storage.slot_table import SlotTable

SMALL_SHARE = 10
"""One in so many entries of a class is in the small queue."""
READS_TO_MOVE = 2
"""Reads in the small queue that make an entry one of the main queue."""


class S3Fifo(QueuedEviction):
    """Queue 2 x class is the class's small one, the next its main one."""

    QUEUES = 2

    def __init__(self, table: SlotTable, weights: Weights) -> None:
        super().__init__(table, weights)
        self._evicted = Fingerprints()
        self._has_evicted = [False] * self.classes
        self._returned = [0] * self.classes

    def load(self) -> None:
        super().load()
        self._has_evicted = [length > 0 for length in self.queues.lengths[1::2]]

    def queue_of(self, slot_class: int, access: int) -> int:
        return 2 * slot_class + (1 if access & MAIN else 0)

    def queues_of(self, slot_class: int, access: npt.NDArray[np.uint8]) -> list[tuple[int, npt.NDArray[np.bool_]]]:
        main: npt.NDArray[np.bool_] = (access & np.uint8(MAIN)) > 0
        return [(2 * slot_class, ~main), (2 * slot_class + 1, main)]

    def returned(self, slot_class: int) -> int:
        return self._returned[slot_class]

    def was_evicted(self, digest: bytes) -> bool:
        return self._evicted.knows(digest)

    def on_store(self, row_id: int, row: Row) -> None:
        access = self.inherited(row)
        if access is None:
            access = self._access_of_new(row)
        if access:
            self.table.set_access(row_id, access)
        self.queues.append(2 * row.slot_class + (1 if access & MAIN else 0), row_id)

    def _access_of_new(self, row: Row) -> int:
        slot_class = row.slot_class
        if self._evicted.forget(row.digest):
            self._returned[slot_class] += 1
            return MAIN
        if self._has_evicted[slot_class]:
            return 0
        # While the class still grows, nothing has to prove itself: what the small queue can't take is kept.
        small, main = self.queues.lengths[2 * slot_class : 2 * slot_class + 2]
        return MAIN if small * SMALL_SHARE > small + main else 0

    def remember(self, row_id: int) -> None:
        """A row of the small queue is to go: its key is remembered."""
        start = row_id * LINE_BYTES + DIGEST_OFFSET
        self._evicted.add(bytes(self.table.view[start : start + DIGEST_BYTES]))

    def choose(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        self._evicted.resize(sum(self.queues.lengths) * (SMALL_SHARE - 1) // SMALL_SHARE)
        self._has_evicted[slot_class] = True
        return _Choice(self, slot_class, wanted, may_go).run()


class _Choice:
    """One choice of victims. They stay in their queues until their freeing is durable; so the places reached lie
    behind those already chosen, and the lengths leave them out."""

    def __init__(self, policy: S3Fifo, slot_class: int, wanted: int, may_go: MayGo) -> None:
        self._policy, self._wanted, self._may_go = policy, wanted, may_go
        self._queues, self._table, self._view = policy.queues, policy.table, policy.table.view
        self._small, self._main = 2 * slot_class, 2 * slot_class + 1
        self._small_head, self._main_head = self._queues.head(self._small), self._queues.head(self._main)
        self._at_small = self._queues.following[self._small_head]
        self._at_main = self._queues.following[self._main_head]
        self._in_small, self._in_main = self._queues.lengths[self._small], self._queues.lengths[self._main]
        total = self._in_small + self._in_main
        self._main_share = total - total // SMALL_SHARE
        self._chances = policy.weights.look(slot_class)
        self._victims: list[int] = []

    def run(self) -> list[int]:
        for _ in range(STEPS_MAX):
            if len(self._victims) >= self._wanted or not (self._in_small or self._in_main):
                break
            if self._in_small and self._in_main <= self._main_share:
                self._step_small()
            else:
                self._step_main()
        return self._victims

    def _has_turn(self, row_id: int) -> bool:
        return not self._chances or self._policy.weights.has_turn(self._table.namespace_of(row_id), self._chances)

    def _step_small(self) -> None:
        row_id, queues = self._at_small, self._queues
        after = queues.following[row_id]
        if self._has_turn(row_id):
            position = row_id * LINE_BYTES + ACCESS_OFFSET
            if self._view[position] & READS >= READS_TO_MOVE:
                self._move_to_main(row_id, position)
                self._at_small = after
                return
            if self._may_go(row_id):
                self._policy.remember(row_id)
                self._victims.append(row_id)
                self._in_small -= 1
                self._at_small = after
                return
        queues.move_to_end(self._small, row_id)
        self._at_small = after if after != self._small_head else row_id

    def _move_to_main(self, row_id: int, position: int) -> None:
        self._view[position] = MAIN
        self._queues.remove(self._small, row_id)
        self._queues.append(self._main, row_id)
        self._in_small -= 1
        self._in_main += 1
        if self._at_main == self._main_head:
            self._at_main = row_id

    def _step_main(self) -> None:
        row_id, queues = self._at_main, self._queues
        after = queues.following[row_id]
        if self._has_turn(row_id):
            position = row_id * LINE_BYTES + ACCESS_OFFSET
            access = self._view[position]
            if access & READS:
                self._view[position] = access - 1
            elif self._may_go(row_id):
                self._victims.append(row_id)
                self._in_main -= 1
                self._at_main = after
                return
        queues.move_to_end(self._main, row_id)
        self._at_main = after if after != self._main_head else row_id
