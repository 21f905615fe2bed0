"""What policies of queues share: rows in first-in-first-out queues per slot class, rebuilt from the rows at a start."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from storage.eviction.interface import FRUITLESS_MAX, MAIN, READS, STEPS_MAX, MayGo
from storage.eviction.queues import Queues
from storage.eviction.weights import Weights
from storage.format.row import FreeReason, Row, SlotState
from storage.slot_table import SlotTable


class QueuedEviction(ABC):
    """Common part of ``Clock`` and ``S3Fifo``; each class has ``QUEUES`` queues."""

    QUEUES = 1

    def __init__(self, table: SlotTable, weights: Weights) -> None:
        self.table = table
        self.weights = weights
        self.classes = len(table.geometry.class_bytes)
        self.queues = Queues(len(table.lines), self.classes * self.QUEUES)
        self._fruitless = [0] * self.classes
        self._replaced: tuple[bytes, int] | None = None
        """Digest and access byte of an entry just replaced: its successor inherits what is known of the key."""

    def load(self) -> None:
        """Rebuild the queues from the live rows: oldest seq first, in the queue that the access byte names."""
        row_ids = self.table.row_ids()
        lines = self.table.lines
        live = row_ids[lines["state"][row_ids] == SlotState.LIVE]
        access = lines["access"][live] & (READS | MAIN)
        lines["access"][live] = access
        queues = self.queue_of_many(lines["slot_class"][live].astype(np.int64), access)
        order = np.lexsort((lines["seq"][live], queues))
        live, queues = live[order], queues[order]
        bounds = np.searchsorted(queues, np.arange(len(self.queues.lengths) + 1))
        for queue in range(len(self.queues.lengths)):
            self.queues.fill(queue, live[bounds[queue] : bounds[queue + 1]])

    # -- what a policy says ---------------------------------------------------------------------------------------

    @abstractmethod
    def queue_of(self, slot_class: int, access: int) -> int:
        """The queue of a live row."""

    @abstractmethod
    def queue_of_many(
        self, slot_classes: npt.NDArray[np.int64], access: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.int64]:
        """As ``queue_of``, of many rows."""

    @abstractmethod
    def on_store(self, row_id: int, row: Row) -> None:
        """See ``Eviction``."""

    @abstractmethod
    def choose(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        """Up to ``wanted`` victims of one class within ``STEPS_MAX`` steps."""

    # -- what the engine asks -------------------------------------------------------------------------------------

    def on_free(self, row_id: int, row: Row, reason: FreeReason | None) -> None:
        self.queues.remove(self.queue_of(row.slot_class, row.access), row_id)
        if reason is FreeReason.REPLACED:
            self._replaced = (row.digest, row.access)

    def inherited(self, row: Row) -> int | None:
        """The access byte of the entry that this one has just replaced; None if there was none."""
        replaced, self._replaced = self._replaced, None
        return replaced[1] if replaced is not None and replaced[0] == row.digest else None

    def victims(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        if self._fruitless[slot_class] < FRUITLESS_MAX:
            victims = self.choose(slot_class, wanted, may_go)
        else:
            victims = self._first(slot_class, wanted, may_go)
        self._fruitless[slot_class] = 0 if victims else self._fruitless[slot_class] + STEPS_MAX
        return victims

    def _first(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        """The first of the class's queues that may go, read or not."""
        victims: list[int] = []
        for queue in range(slot_class * self.QUEUES, (slot_class + 1) * self.QUEUES):
            head = self.queues.head(queue)
            row_id = self.queues.following[head]
            for _ in range(STEPS_MAX):
                if row_id == head or len(victims) >= wanted:
                    break
                if may_go(row_id):
                    victims.append(row_id)
                row_id = self.queues.following[row_id]
        return victims

    def length(self, slot_class: int) -> int:
        first = slot_class * self.QUEUES
        return sum(self.queues.lengths[first : first + self.QUEUES])

    def returned(self, slot_class: int) -> int:
        return 0

    def was_evicted(self, digest: bytes) -> bool:
        return False
