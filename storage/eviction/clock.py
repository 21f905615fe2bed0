"""CLOCK with a counter: a queue per class; an entry that was read goes to its end once per read, up to three times.

New entries start unread at the end of the queue (Corbató 1968, with a counter of two bits). An entry that nobody reads
goes after one pass, but until then it takes as much of the cache's time as any: a scan as long as the cache displaces
what is read less than once per pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage.eviction.interface import READS, STEPS_MAX, MayGo
from storage.eviction.queued import QueuedEviction
from storage.format.geometry import LINE_BYTES
from storage.format.row import ACCESS_OFFSET, Row


class Clock(QueuedEviction):
    def queue_of(self, slot_class: int, access: int) -> int:
        return slot_class

    def queues_of(self, slot_class: int, access: npt.NDArray[np.uint8]) -> list[tuple[int, npt.NDArray[np.bool_]]]:
        return [(slot_class, np.ones(len(access), dtype=np.bool_))]

    def on_store(self, row_id: int, row: Row) -> None:
        access = self.inherited(row)
        if access:
            self.table.set_access(row_id, access)
        self.queues.append(row.slot_class, row_id)

    def choose(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        queues, table, view, weights = self.queues, self.table, self.table.view, self.weights
        following = queues.following
        chances = weights.look(slot_class)
        victims: list[int] = []
        head = queues.head(slot_class)
        row_id = following[head]
        for _ in range(STEPS_MAX):
            if row_id == head or len(victims) >= wanted:
                break
            after = following[row_id]
            if not chances or weights.has_turn(table.namespace_of(row_id), chances):
                position = row_id * LINE_BYTES + ACCESS_OFFSET
                access = view[position]
                if access & READS:
                    view[position] = access - 1
                elif may_go(row_id):
                    victims.append(row_id)
                    row_id = after
                    continue
            queues.move_to_end(slot_class, row_id)
            if after != head:  # else it is the last that is left, and its turn comes again
                row_id = after
        return victims
