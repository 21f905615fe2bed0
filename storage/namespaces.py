"""Namespaces: names, ids that are never used twice, and exact usage (A2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from storage.errors import NamespaceInvalid, NamespacesFull
from storage.format.names import is_namespace_name
from storage.format.row import Rows
from storage.limits import NAMESPACES_MAX


@dataclass(slots=True)
class Namespace:
    """``used_bytes`` are bytes of slots; all three are exact sums over the live entries."""

    namespace_id: int
    name: str
    settings: dict[str, int | str] = field(default_factory=dict)
    seq: int = 0
    entries: int = 0
    used_bytes: int = 0
    payload_bytes: int = 0


def check_name(name: str) -> None:
    """Raises NamespaceInvalid."""
    if not is_namespace_name(name):
        raise NamespaceInvalid(f"{name[:40]!r}")


class Namespaces:
    def __init__(self) -> None:
        self.by_name: dict[str, Namespace] = {}
        self.by_id: dict[int, Namespace] = {}
        self.next_id = 1

    def add(self, namespace: Namespace) -> None:
        self.by_name[namespace.name] = namespace
        self.by_id[namespace.namespace_id] = namespace
        self.next_id = max(self.next_id, namespace.namespace_id + 1)

    def draw_id(self, under_way: int = 0) -> int:
        """An id never used before; ``under_way`` are others being created. Raises NamespacesFull."""
        if len(self.by_id) + under_way >= NAMESPACES_MAX:
            raise NamespacesFull(f"{NAMESPACES_MAX} namespaces exist")
        self.next_id += 1
        return self.next_id - 1

    def charge(self, namespace_id: int, slot_bytes: int, payload_bytes: int) -> None:
        namespace = self.by_id[namespace_id]
        namespace.entries += 1
        namespace.used_bytes += slot_bytes
        namespace.payload_bytes += payload_bytes

    def credit(self, namespace_id: int, slot_bytes: int, payload_bytes: int) -> None:
        namespace = self.by_id[namespace_id]
        namespace.entries -= 1
        namespace.used_bytes -= slot_bytes
        namespace.payload_bytes -= payload_bytes

    def recount(self, live_rows: Rows, class_bytes: tuple[int, ...]) -> None:
        """Set usage from the live rows alone. Their namespaces are known."""
        ids, positions = np.unique(live_rows["namespace_id"], return_inverse=True)
        slot_bytes = np.array(class_bytes, dtype=np.int64)[live_rows["slot_class"]]
        for namespace in self.by_id.values():
            namespace.entries = namespace.used_bytes = namespace.payload_bytes = 0
        used = np.zeros(len(ids), dtype=np.int64)
        payload = np.zeros(len(ids), dtype=np.int64)
        np.add.at(used, positions, slot_bytes)
        np.add.at(payload, positions, live_rows["payload_bytes"].astype(np.int64))
        counts = np.bincount(positions, minlength=len(ids)) if len(ids) else np.zeros(0, dtype=np.int64)
        for index, namespace_id in enumerate(ids.tolist()):
            namespace = self.by_id[namespace_id]
            namespace.entries = int(counts[index])
            namespace.used_bytes = int(used[index])
            namespace.payload_bytes = int(payload[index])
