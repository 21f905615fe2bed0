"""What holds slots for long, leases, snapshots and imports, seen together by those who look for room (L3)."""

from __future__ import annotations

from storage.imports.imports import Imports
from storage.index import Index
from storage.leases import Leases
from storage.snapshots import Snapshots


class Holds:
    def __init__(self, index: Index, leases: Leases, snapshots: Snapshots, imports: Imports) -> None:
        self._index = index
        self._leases = leases
        self._snapshots = snapshots
        self._imports = imports

    def end_expired(self) -> None:
        """End what has had its time."""
        self._leases.end_expired()
        self._snapshots.end_expired()
        self._imports.end_expired()

    def in_slab(self, slab: int) -> bool:
        """Whether a slot of the slab is held."""
        return self._leases.in_slab(slab) or bool(self._index.slots.held_in_slab[slab])

    def slots_of_class(self, slot_class: int) -> int:
        """Held slots of a class; one that is held twice counts twice."""
        at_once = self._index.slots.held_in_slab[self._index.table.slab_class == slot_class].sum()
        return self._leases.slots_of_class(slot_class) + int(at_once)

    def holder(self) -> str:
        """Who holds most; empty if nobody holds anything."""
        imports = ((view.held_bytes, f"import of {view.namespace}") for view in self._imports.views())
        return max([self._leases.holder(), self._snapshots.holder(), *imports])[1]
