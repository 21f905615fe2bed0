"""No eviction: a full device says so."""

from __future__ import annotations

from storage.eviction.interface import MayGo
from storage.format.row import FreeReason, Row


class NoEviction:
    """Chooses nothing and remembers nothing."""

    def on_store(self, row_id: int, row: Row) -> None:
        pass

    def on_free(self, row_id: int, row: Row, reason: FreeReason | None) -> None:
        pass

    def victims(self, slot_class: int, wanted: int, may_go: MayGo) -> list[int]:
        return []

    def length(self, slot_class: int) -> int:
        return 0

    def returned(self, slot_class: int) -> int:
        return 0

    def was_evicted(self, digest: bytes) -> bool:
        return False
