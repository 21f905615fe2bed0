"""The index: slot table, key map, slots and namespaces moved together, one durable row at a time.

Everything but the table is derived from it, so they can't disagree; ``apply_row`` is the only way a row changes
while the daemon runs, and it is called only for rows that stand in the journal (D3).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from storage.eviction.interface import Eviction
from storage.eviction.none import NoEviction
from storage.evidence import Evidence
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceRecord,
    NamespaceWipedRecord,
    SlabRecord,
    SlotFailuresRecord,
    SupersededRecord,
)
from storage.format.geometry import LINE_BYTES, NO_CLASS, Geometry
from storage.format.row import ACCESS_OFFSET, STATE_OFFSET, FreeReason, Row, SlotState, row_of, seed_of
from storage.key_map import KeyMap, SortedKeys, sorted_keys
from storage.namespace_settings import decode_settings
from storage.namespaces import Namespace, Namespaces
from storage.row_counts import RowCounts, count_rows
from storage.slot_table import SlotTable
from storage.slots import Slots
from storage.status import CapacityStatus, ClassStatus, SlotCounts

# Plain numbers: looking a member of an enumeration up takes longer than the comparison, and each put makes five.
_FREE, _LIVE = int(SlotState.FREE), int(SlotState.LIVE)
_QUARANTINED, _RETIRED = int(SlotState.QUARANTINED), int(SlotState.RETIRED)
_FREE_REASONS = tuple(FreeReason)


class Index:
    """What the daemon knows of its slots."""

    def __init__(self, geometry: Geometry, uuid: bytes) -> None:
        self.geometry = geometry
        self.seed = seed_of(uuid)
        self.table = SlotTable(geometry)
        self.keys = KeyMap(self.table, geometry.buckets)
        self.slots = Slots(self.table)
        self.namespaces = Namespaces()
        self.evidence = Evidence()
        self.eviction: Eviction = NoEviction()
        """Told of each entry that comes and goes; set once everything is recovered."""
        self.quarantined = [0] * len(geometry.class_bytes)
        self.retired = [0] * len(geometry.class_bytes)
        self.live = [0] * len(geometry.class_bytes)
        self.expiring = 0
        """Live rows that have an expiry."""
        self.before_change: list[Callable[[int, Row], None]] = []
        """Told row id and row before a live row changes or goes: snapshots that are being taken."""

    def derive(self, keys: SortedKeys | None = None) -> None:
        """Build everything derived from the table, which was just recovered and holds no duplicate key.

        ``keys`` are ``sorted_keys`` of this table, where the caller has them.
        """
        self.keys = KeyMap(self.table, self.geometry.buckets)
        # Side by side: nearly all of both is in calls that leave the interpreter to others. What needs memory stays on
        # this thread: the C library keeps what others have used.
        with ThreadPoolExecutor(1, "rawblockd-derive") as beside:
            counting = beside.submit(self._count)
            self.keys.build(sorted_keys(self.table) if keys is None else keys)
            counts = counting.result()
        for row in self.table.rows(counts.quarantined_row_ids):
            self.evidence.add(row["digest"].tobytes(), (int(row["slab"]), int(row["slot"])))
        self.namespaces.recount(counts.usage, self.geometry.class_bytes)
        self.expiring, self.live = counts.expiring, counts.live
        self.quarantined, self.retired = counts.quarantined, counts.retired

    def _count(self) -> RowCounts:
        self.table.refresh_page_seqs()
        self.derive_slots()
        return count_rows(self.table)

    def derive_slots(self) -> None:
        """Derive free slots alone anew, after rows changed that nobody was using."""
        self.slots = Slots(self.table)
        self.slots.load()

    # -- changes --------------------------------------------------------------------------------------------------

    def apply_row(self, row_id: int, encoded: bytes, block: int, decoded: Row | None = None) -> None:
        """Make a row that stands in journal block ``block`` the state of its slot, unless that is newer already."""
        table = self.table
        new = row_of(encoded) if decoded is None else decoded
        if new.state == _LIVE and not table.view[row_id * LINE_BYTES + STATE_OFFSET]:
            if new.seq > table.seq_of(row_id):  # of a free slot's row nothing else matters
                self._become_live(row_id, new, encoded)
            return
        old = table.row(row_id)
        if new.seq <= old.seq:
            return
        slot_class = new.slot_class
        slot_bytes = self.geometry.class_bytes[slot_class]
        was, state = old.state, new.state
        if self.before_change and was == _LIVE:
            for tell in self.before_change:
                tell(row_id, old)
        if was == state == _LIVE and old.write_id == new.write_id:
            self._restate(row_id, old, new, encoded)
            return
        if was == _LIVE:
            self.eviction.on_free(row_id, old, _FREE_REASONS[new.reason] if state == _FREE else None)
            self.keys.remove(old.digest, row_id)
            self.namespaces.credit(old.namespace_id, slot_class, slot_bytes, old.payload_bytes)
            self.live[slot_class] -= 1
            self.expiring -= old.expires_at != 0
            self.slots.note_left(row_id)
        elif was == _QUARANTINED:
            self.quarantined[slot_class] -= 1
            self.evidence.remove(old.digest, (old.slab, old.slot))
        if state == _LIVE:
            self._become_live(row_id, new, encoded)
            return
        table.set_row(row_id, encoded, new.seq)
        if state == _QUARANTINED:
            self.quarantined[slot_class] += 1
            self.evidence.add(new.digest, (new.slab, new.slot))
            self.slots.in_flight.discard(row_id)
        elif state == _RETIRED:
            self.retired[slot_class] += 1
        elif was != _FREE:
            self.slots.freed(row_id, block, slot_class)

    def _become_live(self, row_id: int, new: Row, encoded: bytes) -> None:
        slot_class = new.slot_class
        self.table.set_row(row_id, encoded, new.seq)
        self.keys.insert(new.digest, row_id)
        self.eviction.on_store(row_id, new)
        slot_bytes = self.geometry.class_bytes[slot_class]
        self.namespaces.charge(new.namespace_id, slot_class, slot_bytes, new.payload_bytes)
        self.live[slot_class] += 1
        if new.expires_at:
            self.expiring += 1
        self.slots.became_live(row_id)

    def _restate(self, row_id: int, old: Row, new: Row, encoded: bytes) -> None:
        """The same entry with another expiry: its place, its key and what was counted of its reads stay."""
        self.expiring += (new.expires_at != 0) - (old.expires_at != 0)
        self.table.set_row(row_id, encoded, new.seq)
        self.table.view[row_id * LINE_BYTES + ACCESS_OFFSET] = old.access

    def apply_record(self, record: CatalogueRecord) -> None:
        """Make a durable catalogue record the state of what it speaks of, unless that is newer already."""
        if isinstance(record, SlabRecord):
            if record.seq <= self.table.slab_seq[record.slab]:
                return
            self.slots.left_class(record.slab)
            row_ids = self.table.give_slab(record.slab, record.slot_class, record.generation, record.seq, self.seed)
            self.slots.adopt_slab(record.slot_class, row_ids)
        elif isinstance(record, NamespaceRecord):
            known = self.namespaces.by_id.get(record.namespace_id)
            if record.namespace_id in self.namespaces.wiped:
                return
            settings = decode_settings(record.settings)
            if known is None:
                self.namespaces.add(Namespace(record.namespace_id, record.name, settings, record.seq))
            elif known.seq < record.seq:
                known.settings = settings
                known.seq = record.seq
                self.namespaces.add(known)  # a committed import has its name now
        elif isinstance(record, SupersededRecord | SlotFailuresRecord):
            self.evidence.apply(record)
        elif isinstance(record, NamespaceWipedRecord):
            self.namespaces.wipe(record.namespace_id, record.seq)

    # -- counts ---------------------------------------------------------------------------------------------------

    def class_statuses(self) -> list[ClassStatus]:
        """Per class: free + live + quarantined + retired + limbo + in flight = total (A1)."""
        geometry, slots = self.geometry, self.slots
        in_flight = [0] * len(geometry.class_bytes)
        for row_id in slots.in_flight:
            in_flight[self.table.slab_class[self.table.place_of(row_id)[0]]] += 1
        statuses = []
        for slot_class, slot_bytes in enumerate(geometry.class_bytes):
            slot_counts = SlotCounts(
                free=slots.free_total(slot_class),
                live=self.live[slot_class],
                quarantined=self.quarantined[slot_class],
                retired=self.retired[slot_class],
                limbo=slots.limbo_total[slot_class],
                in_flight=in_flight[slot_class],
                total=slots.slabs_of_class[slot_class] * geometry.slots_per_slab(slot_class),
            )
            statuses.append(ClassStatus(slot_bytes, slots.slabs_of_class[slot_class], slot_counts))
        return statuses

    def capacity(self, classes: list[ClassStatus]) -> CapacityStatus:
        """The classes' sums."""
        geometry = self.geometry
        total = SlotCounts()
        for status in classes:
            for name in ("free", "live", "quarantined", "retired", "limbo", "in_flight", "total"):
                setattr(total, name, getattr(total, name) + getattr(status.slots, name))
        return CapacityStatus(
            slots=total,
            used_bytes=sum(status.slots.live * status.slot_bytes for status in classes),
            payload_bytes=sum(n.payload_bytes for n in self.namespaces.by_id.values()),
            total_bytes=geometry.slabs * geometry.slot_area_bytes,
            max_entries=geometry.max_entries,
            reserved_bytes=geometry.reserved_bytes,
            memory_full_bytes=geometry.memory_full_bytes,
            free_slabs=int((self.table.slab_class == NO_CLASS).sum()),
        )
