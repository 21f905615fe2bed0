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
        """Rebuild the queues from the live rows: oldest seq first, in the queue that the access byte names.

        Seq and row id are sorted as one number, in a tenth of the time that an order of the seqs takes. For both to fit
        into it, entries older than some thousand billion mutations count as equally old.
        """
        parts = list(self.table.slabs_lines())
        rows = sum(len(part.lines) for part in parts)
        keys, queues = np.empty(rows, dtype=np.uint64), np.empty(rows, dtype=np.uint8)  # used as far as they are set
        bits = len(self.table.lines).bit_length()
        oldest = max(0, int(self.table.page_seq.max()) - (1 << 64 - bits) + 1)
        count = 0
        for part in parts:
            live = part.row_ids(part.lines["state"] == SlotState.LIVE)
            place = slice(count, count + len(live))
            count += len(live)
            access: npt.NDArray[np.uint8] = part.lines["access"][live - part.first] & np.uint8(READS | MAIN)
            part.lines["access"][live - part.first] = access
            ages = np.maximum(part.lines["seq"][live - part.first], oldest) - np.uint64(oldest)
            keys[place] = ages << np.uint64(bits) | live.astype(np.uint64)
            queues[place] = self.queue_of_many(np.full(len(live), part.slot_class), access)
        for queue in np.flatnonzero(np.bincount(queues[:count], minlength=1)).tolist():
            mine = keys[:count][queues[:count] == queue]
            mine.sort()
            mine &= np.uint64((1 << bits) - 1)
            self.queues.fill(queue, mine)

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
