"""Namespaces: names, ids that are never used twice, and exact usage (A2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.errors import NamespaceInvalid, NamespacesFull
from storage.format.catalogue import NamespaceRecord, NamespaceWipedRecord
from storage.format.names import is_namespace_name
from storage.limits import NAMESPACES_MAX
from storage.namespace_settings import DEFAULT_SETTINGS, NamespaceSettings, encode_settings

Usage = dict[tuple[int, int], tuple[int, int]]
"""Per namespace id and slot class: live entries, and their payload bytes."""


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """A namespace as told to others."""

    name: str
    settings: NamespaceSettings
    entries: int
    used_bytes: int
    payload_bytes: int


@dataclass(slots=True)
class Namespace:
    """``used_bytes`` are bytes of slots; usage is the exact sum over the live entries.

    What mutations that are queued will make of it is in ``queued_entries`` and ``queued_bytes``: quotas are decided
    against the sum of both (D3).
    """

    namespace_id: int
    name: str
    settings: NamespaceSettings = DEFAULT_SETTINGS
    seq: int = 0
    entries: int = 0
    used_bytes: int = 0
    payload_bytes: int = 0
    queued_entries: int = 0
    queued_bytes: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    """Live slots by slot class."""

    @property
    def joined_entries(self) -> int:
        return self.entries + self.queued_entries

    @property
    def joined_bytes(self) -> int:
        return self.used_bytes + self.queued_bytes

    def over(self, entries: int = 0, slot_bytes: int = 0) -> tuple[int, int]:
        """By how many entries and bytes of slots so much more would exceed the quota; zeros if it would not."""
        settings = self.settings
        over_entries = over_bytes = 0
        if settings.quota_entries is not None:
            over_entries = max(0, self.joined_entries + entries - settings.quota_entries)
        if settings.quota_bytes is not None:
            over_bytes = max(0, self.joined_bytes + slot_bytes - settings.quota_bytes)
        return over_entries, over_bytes

    def view(self) -> NamespaceView:
        return NamespaceView(self.name, self.settings, self.entries, self.used_bytes, self.payload_bytes)


def namespace_record(namespace: Namespace) -> NamespaceRecord:
    """The record that says of a namespace what stands here."""
    settings = encode_settings(namespace.settings)
    return NamespaceRecord(namespace.seq, namespace.namespace_id, namespace.name, settings)


def check_name(name: str) -> None:
    """Raises NamespaceInvalid."""
    if not is_namespace_name(name):
        raise NamespaceInvalid(f"{name[:40]!r}")


class Namespaces:
    """A wiped namespace's id is dead at once; its rows are freed behind it, and it is ``dying`` until the last is."""

    def __init__(self) -> None:
        self.by_name: dict[str, Namespace] = {}
        self.by_id: dict[int, Namespace] = {}
        self.dying: dict[int, Namespace] = {}
        self.wiped: dict[int, int] = {}
        """Ids that are dead, with the seq of the wipe: as long as a copy or the journal may speak of them."""
        self.next_id = 1

    def add(self, namespace: Namespace) -> None:
        if not namespace.settings.importing:
            self.by_name[namespace.name] = namespace
        self.by_id[namespace.namespace_id] = namespace
        self.next_id = max(self.next_id, namespace.namespace_id + 1)

    def wipe(self, namespace_id: int, seq: int) -> None:
        """The id is dead from ``seq`` on. Does nothing the second time."""
        namespace = self.by_id.pop(namespace_id, None)
        self.wiped.setdefault(namespace_id, seq)
        if namespace is not None:
            if self.by_name.get(namespace.name) is namespace:
                del self.by_name[namespace.name]
            if namespace.entries:
                self.dying[namespace_id] = namespace

    def importing(self) -> list[Namespace]:
        """What imports have gathered so far."""
        return [namespace for namespace in self.by_id.values() if namespace.settings.importing]

    def dying_records(self) -> list[NamespaceWipedRecord]:
        """The wipes of namespaces that still have rows."""
        return [NamespaceWipedRecord(self.wiped[namespace_id], namespace_id) for namespace_id in sorted(self.dying)]

    def forget_wiped(self, through_seq: int) -> None:
        """No copy and no row of the journal speaks of ids that were wiped up to a seq and have no rows any more."""
        for namespace_id in [i for i, seq in self.wiped.items() if seq <= through_seq and i not in self.dying]:
            del self.wiped[namespace_id]

    def owner(self, namespace_id: int) -> Namespace:
        """The namespace of a live row, which may be dying. Raises KeyError."""
        known = self.by_id.get(namespace_id) or self.dying.get(namespace_id)
        if known is None:
            if namespace_id not in self.wiped:
                raise KeyError(namespace_id)
            known = self.dying[namespace_id] = Namespace(namespace_id, "")
        return known

    def draw_id(self, under_way: int = 0) -> int:
        """An id never used before; ``under_way`` are others being created. Raises NamespacesFull."""
        if len(self.by_id) + len(self.dying) + under_way >= NAMESPACES_MAX:
            raise NamespacesFull(f"{NAMESPACES_MAX} namespaces exist")
        self.next_id += 1
        return self.next_id - 1

    def charge(self, namespace_id: int, slot_class: int, slot_bytes: int, payload_bytes: int) -> None:
        namespace = self.owner(namespace_id)
        namespace.entries += 1
        namespace.used_bytes += slot_bytes
        namespace.payload_bytes += payload_bytes
        namespace.slots[slot_class] = namespace.slots.get(slot_class, 0) + 1

    def credit(self, namespace_id: int, slot_class: int, slot_bytes: int, payload_bytes: int) -> None:
        namespace = self.owner(namespace_id)
        namespace.entries -= 1
        namespace.used_bytes -= slot_bytes
        namespace.payload_bytes -= payload_bytes
        namespace.slots[slot_class] -= 1
        if not namespace.entries:
            self.dying.pop(namespace_id, None)

    def recount(self, usage: Usage, class_bytes: tuple[int, ...]) -> None:
        """Set usage to what the live rows alone make of it. Their namespaces are known, or dying."""
        for namespace in (*self.by_id.values(), *self.dying.values()):
            namespace.entries = namespace.used_bytes = namespace.payload_bytes = 0
            namespace.slots = {}
        for (namespace_id, slot_class), (count, payload_bytes) in sorted(usage.items()):
            namespace = self.owner(namespace_id)
            namespace.entries += count
            namespace.used_bytes += count * class_bytes[slot_class]
            namespace.payload_bytes += payload_bytes
            namespace.slots[slot_class] = count
        self.dying = {i: namespace for i, namespace in self.dying.items() if namespace.entries}

    def dying_slots(self, slot_class: int) -> int:
        """Live slots of a class whose namespace was wiped: they are as good as freed."""
        return sum(namespace.slots.get(slot_class, 0) for namespace in self.dying.values())
