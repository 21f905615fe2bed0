"""What policies of queues share: rows in first-in-first-out queues per slot class, rebuilt from the rows at a start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

import numpy as np
import numpy.typing as npt

from storage.eviction.interface import FRUITLESS_MAX, MAIN, READS, STEPS_MAX, MayGo
from storage.eviction.queues import Queues
from storage.eviction.weights import Weights
from storage.format.row import FreeReason, Row, SlotState
from storage.slot_table import SlotTable


class _Numbers:
    """Numbers that come in parts, in one piece of memory; it is reserved for all, and used as far as they come."""

    def __init__(self, most: int) -> None:
        self._all: npt.NDArray[np.uint64] = np.empty(most, dtype=np.uint64)
        self._count = 0

    def add(self, part: npt.NDArray[np.uint64]) -> None:
        self._all[self._count : self._count + len(part)] = part
        self._count += len(part)

    def taken(self) -> npt.NDArray[np.uint64]:
        return self._all[: self._count]


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
        bits = len(self.table.lines).bit_length()
        oldest = max(0, int(self.table.page_seq.max()) - (1 << 64 - bits) + 1)
        parts = list(self.table.slabs_lines())
        lines_of_class: Counter[int] = Counter()
        for part in parts:
            lines_of_class[part.slot_class] += len(part.lines)
        numbers: dict[int, _Numbers] = {}
        for part in parts:
            lines = part.lines
            live = (lines["state"] == SlotState.LIVE) & part.are_slots
            access = lines["access"].copy()
            odd = live & (access & np.uint8(0xFF ^ (READS | MAIN)) != 0)
            if odd.any():
                lines["access"][odd] &= np.uint8(READS | MAIN)
            ages = np.maximum(lines["seq"], oldest) - np.uint64(oldest)
            ages <<= np.uint64(bits)
            ages |= np.arange(part.first, part.first + len(lines), dtype=np.uint64)
            for queue, among in self.queues_of(part.slot_class, access):
                if queue not in numbers:
                    numbers[queue] = _Numbers(lines_of_class[part.slot_class])
                numbers[queue].add(ages[live & among])
        for queue in list(numbers):
            mine = numbers.pop(queue).taken()
            mine.sort()
            mine &= np.uint64((1 << bits) - 1)
            self.queues.fill(queue, mine)

    # -- what a policy says ---------------------------------------------------------------------------------------

    @abstractmethod
    def queue_of(self, slot_class: int, access: int) -> int:
        """The queue of a live row."""

    @abstractmethod
    def queues_of(self, slot_class: int, access: npt.NDArray[np.uint8]) -> list[tuple[int, npt.NDArray[np.bool_]]]:
        """As ``queue_of``, of many rows of a class: each of its queues, and which of the rows are in it."""

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
