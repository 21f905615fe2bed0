"""What holds slots for long, leases and snapshots, seen together by those who look for room (L3)."""

from __future__ import annotations

from storage.leases import Leases
from storage.snapshots import Snapshots


class Holds:
    def __init__(self, leases: Leases, snapshots: Snapshots) -> None:
        self._leases = leases
        self._snapshots = snapshots

    def end_expired(self) -> None:
        """End what has had its time."""
        self._leases.end_expired()
        self._snapshots.end_expired()

    def in_slab(self, slab: int) -> bool:
        """Whether a slot of the slab is held."""
        return self._leases.in_slab(slab) or self._snapshots.in_slab(slab)

    def slots_of_class(self, slot_class: int) -> int:
        """Held slots of a class; one that is held twice counts twice."""
        return self._leases.slots_of_class(slot_class) + self._snapshots.slots_of_class(slot_class)

    def holder(self) -> str:
        """Who holds most; empty if nobody holds anything."""
        return max(self._leases.holder(), self._snapshots.holder())[1]
