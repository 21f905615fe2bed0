"""What the engine asks of an eviction policy, and the byte of each row that policies share.

The row's access byte holds two bits of reads (0 to 3, counted by ``SlotTable.touch``) and one bit that says that the
entry has proven itself (``MAIN``). It changes without a journal row, and checkpoints carry it coarsely: as it stood
when the row's page was last written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage.format.row import MAIN_FLAG, READS_MASK, FreeReason, Row

ACCESS_MAX = 3
READS = READS_MASK
MAIN = MAIN_FLAG

MayGo = Callable[[int], bool]


class Eviction(Protocol):
    """A policy. All of its calls come from the engine's loop; none of them waits."""

    def on_store(self, row_id: int, row: Row) -> None:
        """The row has just become live; in the table its access byte is 0."""

    def on_free(self, row_id: int, row: Row, reason: FreeReason | None) -> None:
        """``row``, live until now, is about to leave the table; ``reason`` None: as evidence."""

    def victims(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        """Up to ``wanted`` row ids of live entries to evict, the first to go first.

        ``may_go`` says whether a slot would become free by that: held ones would not (L3). The work of one call is
        bounded: none may come back although there are some; after ``CALLS_MAX`` calls in a row there are none.
        """

    def length(self, slot_class: int) -> int:
        """Live entries of the class among which ``victims`` chooses."""

    def returned(self, slot_class: int) -> int:
        """How many entries of the class were stored again soon after they had been evicted, since the start."""

    def was_evicted(self, digest: bytes) -> bool:
        """Whether a key is remembered as recently evicted."""


STEPS_MAX = 2048
"""Entries looked at in one call: some 3 ms at most."""
FRUITLESS_MAX = 65_536
"""Where so many in a row were read of late, all are alike, and the next ones go: else a million entries that were all
read would be passed three times before the first goes."""
CALLS_MAX = FRUITLESS_MAX // STEPS_MAX + 2
