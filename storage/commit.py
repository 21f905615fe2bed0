"""Decisions: every mutation is decided here, in one step, when its rows join the journal's queue (D3).

Two views of a key exist. **Joined**: the table plus everything queued; conditions and the slot to free are decided
against it. **Published**: the table, which only durable rows enter; readers see it. The overlay holds the difference,
so undoing a failed commit means forgetting the overlay: the table was never touched.

Puts at level ``none`` are the exception: readers see them as soon as their payload is written, and they outlive a
journal that fails; they wait, bounded in number, until it takes rows again (D1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from storage.counters import FREE_REASON_LABELS, EngineCounters
from storage.entries import UNCONDITIONAL, Conditions, Durability
from storage.errors import JournalUnavailable, NamespaceWiped, PreconditionFailed, QuotaExceeded, SpaceHeld
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceRecord,
    NamespaceWipedRecord,
    RestoredRecord,
    SlabRecord,
    SlotFailuresRecord,
    SupersededRecord,
)
from storage.format.row import ACCESS_OFFSET, FreeReason, QuarantineReason, Row, SlotState, row_of
from storage.index import Index
from storage.journal import Journal, Unit
from storage.namespace_settings import NamespaceSettings, encode_settings
from storage.namespaces import Namespace
from storage.quotas import Quotas
from storage.row_changes import PutIntent, RowChanges

log = logging.getLogger("rawblockd.storage")

_NONE = Durability.NONE
_REPLACED, _EXPIRED = FreeReason.REPLACED, FreeReason.EXPIRED

VOLATILE_MAX = 1024
"""Puts at level ``none`` that may wait for a failed journal; each holds a slot."""


FAILURES_UNTIL_RETIRED = 2
"""A slot whose record failed at run time, was freed by an operator and failed again is used no more (R5)."""


class PutUnit(Unit):
    """The unit of a put. ``replaced`` is the write id of the entry it replaces, 0 if there was none."""

    __slots__ = ("intent", "replaced")

    def __init__(
        self, rows: list[tuple[int, bytes]] | None, intent: PutIntent, replaced: int, durability: Durability
    ) -> None:
        Unit.__init__(self, rows, durability=durability, digest=intent.digest, key=intent.key)
        self.intent = intent
        self.replaced = replaced


class Commit:
    def __init__(self, index: Index, counters: EngineCounters, clock: Callable[[], float]) -> None:
        self._index = index
        self._counters = counters
        self._clock = clock
        self._overlay: dict[bytes, Unit] = {}
        """Of each key that something is queued for, the unit that joined last: what it will make of the key, and what
        readers see meanwhile. A put at level ``none`` that no journal has taken stands here too, without a seq."""
        self._volatile: list[PutIntent] = []
        self._wiping: dict[int, Unit] = {}
        """Namespaces whose wipe joined and is not durable yet: nothing new joins for them."""
        self._rows = RowChanges(index.table, index.seed)
        self.quotas = Quotas(index, self.joined)
        self.journal: Journal
        """Attached once its position is known."""
        self.give_back: Callable[[int], None]
        """Takes the slot of a put that was undone; set by the engine."""
        self.announce: Callable[[Unit], None] = lambda _: None
        """Told each unit that is durable, just before the table is: the event feed."""

    def attach(self, journal: Journal) -> None:
        self.journal = journal
        self._rows.draw_seq = journal.draw_seq

    # -- views ----------------------------------------------------------------------------------------------------

    def published(self, digest: bytes) -> tuple[int, Row] | None:
        """What readers see under a key: row id and row, expired or not."""
        pending = self._overlay.get(digest)
        if pending is not None and pending.visible is not None:
            return pending.visible
        row_id = self._index.keys.find(digest)
        return (row_id, self._index.table.row(row_id)) if row_id else None

    def published_many(self, digests: Sequence[bytes]) -> list[tuple[int, Row] | None]:
        """As ``published``, of many keys."""
        row = self._index.table.row
        row_ids = self._index.keys.find_many(digests)
        found = [(row_id, row(row_id)) if row_id else None for row_id in row_ids]
        if self._overlay:
            for position, digest in enumerate(digests):
                pending = self._overlay.get(digest)
                if pending is not None and pending.visible is not None:
                    found[position] = pending.visible
        return found

    def joined(self, digest: bytes) -> tuple[int, Row] | None:
        """What the key holds once everything queued is durable."""
        pending = self._overlay.get(digest)
        if pending is not None:
            return pending.after
        row_id = self._index.keys.find(digest)
        return (row_id, self._index.table.row(row_id)) if row_id else None

    def pending(self, digest: bytes) -> Unit | None:
        """The queued unit that decides what the key holds; None if nothing is queued."""
        pending = self._overlay.get(digest)
        return pending if pending is not None and pending.last_seq else None

    def is_expired(self, row: Row) -> bool:
        return row.expires_at != 0 and row.expires_at <= self._clock()

    def check_conditions(self, digest: bytes, conditions: Conditions) -> int:
        """The write id under the key, 0 if there is none or it expired. Raises PreconditionFailed."""
        return self._check(self.joined(digest), conditions)

    def _check(self, present: tuple[int, Row] | None, conditions: Conditions) -> int:
        write_id = 0 if present is None or self.is_expired(present[1]) else present[1].write_id
        if conditions is UNCONDITIONAL:
            return write_id
        holds = not (conditions.must_be_absent and write_id)
        holds = holds and not (conditions.must_be_present and not write_id)
        holds = holds and (conditions.write_ids is None or write_id in conditions.write_ids)
        if not holds:
            raise PreconditionFailed(present_write_id=write_id)
        return write_id

    async def wait_for_conditions(self, digest: bytes, conditions: Conditions) -> None:
        """As ``check_conditions``, but a refusal is given only once what it was decided against is durable (D3).

        Then whatever was queued of the key meanwhile: a key that goes on changing keeps nobody waiting (L1). If it was
        undone, it is decided again.
        """
        while True:
            try:
                self.check_conditions(digest, conditions)
                return
            except PreconditionFailed:
                against = self.pending(digest)
                if against is None:
                    raise
                await asyncio.wait([against.done])
                if not isinstance(against.outcome, JournalUnavailable):
                    raise

    # -- mutations ------------------------------------------------------------------------------------------------

    def put(self, intent: PutIntent, conditions: Conditions, durability: Durability) -> PutUnit | None:
        """Join a put and the freeing of what it replaces. None: the journal fails and the put waits (level ``none``).

        Raises PreconditionFailed, JournalUnavailable; the slot then still is the caller's.
        """
        digest, namespace_id = intent.digest, intent.namespace_id
        present = self.joined(digest)
        replaced = 0
        if present is not None or conditions is not UNCONDITIONAL:
            replaced = self._check(present, conditions)
        namespace = self._index.namespaces.by_id.get(namespace_id)
        if namespace is None or namespace_id in self._wiping:
            raise NamespaceWiped
        if durability is _NONE and self.journal.unavailable:
            self._keep_volatile(intent)
            return None
        self.journal.check_available()
        if namespace.settings.has_quota:
            self._make_quota_room(namespace, intent, present)
        rows = []
        if present is not None:
            reason = _REPLACED if replaced else _EXPIRED
            rows.append((present[0], self._rows.free(present[0], present[1], reason)))
        encoded, row = self._rows.live(intent)
        rows.append((intent.row_id, encoded))
        unit = PutUnit(rows, intent, replaced, durability)
        self._supersede(unit, digest)
        after = (intent.row_id, row)
        self._join(unit, present, after, after if durability is _NONE else None)
        self.quotas.note_joined(namespace, intent.row_id, row)
        return unit

    def _make_quota_room(self, namespace: Namespace, intent: PutIntent, present: tuple[int, Row] | None) -> None:
        """Join the freeing of what goes for a put. Raises QuotaExceeded, SpaceHeld: then nothing has joined."""
        table = self._index.table
        slot_bytes = table.slot_bytes(intent.row_id) - (table.slot_bytes(present[0]) if present is not None else 0)
        spare = present[0] if present is not None else 0
        self._free_for_quota(namespace, self.quotas.victims(namespace, int(present is None), slot_bytes, spare))

    def _free_for_quota(self, namespace: Namespace, victims: list[tuple[int, Row]]) -> list[Unit]:
        """Raises JournalUnavailable: then the victims that did not join are in no queue, which is made anew."""
        try:
            return [self._join_free(row_id, row, FreeReason.QUOTA) for row_id, row in victims]
        except JournalUnavailable:
            self.quotas.forget(namespace.namespace_id)
            raise

    def trim(self, namespace: Namespace, passed: int) -> tuple[list[Unit], int | None]:
        """Join the freeing of some entries above a quota that was lowered; as ``Quotas.trim``."""
        victims, passed_now = self.quotas.trim(namespace, passed)
        return self._free_for_quota(namespace, victims), passed_now

    def touch(self, digest: bytes, expires_at: int, conditions: Conditions) -> tuple[Unit, Row] | None:
        """Join a new expiry of an entry; the unit and the row it makes, or None if there is no entry.

        Raises PreconditionFailed, JournalUnavailable.
        """
        write_id = self.check_conditions(digest, conditions)
        present = self.joined(digest)
        if present is None or not write_id:
            return None
        self.journal.check_available()
        row_id, row = present
        unit = Unit(digest=digest)
        encoded = self._rows.restated(row_id, row._replace(expires_at=expires_at), state=SlotState.LIVE)
        unit.rows.append((row_id, encoded))
        touched = row_of(encoded)
        self._join(unit, present, (row_id, touched))
        return unit, touched

    def delete(self, digest: bytes, conditions: Conditions, key: bytes = b"") -> tuple[Unit, int] | None:
        """Join the deletion of a key; the unit and the write id deleted, or None if there is nothing."""
        present = self.joined(digest)
        write_id = self._check(present, conditions)
        if present is None:
            return None
        reason = FreeReason.CLIENT if write_id else FreeReason.EXPIRED
        unit = self._join_free(present[0], present[1], reason)
        unit.key = key
        return (unit, write_id) if write_id else None

    def delete_absent(self, digest: bytes) -> Unit | None:
        """A key that is not there is deleted: what may be quarantined of it must not come back. None: nothing is."""
        unit = Unit(privileged=True)
        if not self._supersede(unit, digest):
            return None
        unit.last_seq = unit.records[-1].seq
        self.journal.queue(unit)
        return unit

    def restore(self, intent: PutIntent) -> Unit:
        """Join the return of a quarantined slot to life; its key is free. Raises JournalUnavailable."""
        self.journal.check_available()
        assert self.joined(intent.digest) is None
        unit = Unit(digest=intent.digest, privileged=True)
        encoded, row = self._rows.live(intent)
        unit.rows.append((intent.row_id, encoded))
        slab, slot = self._index.table.place_of(intent.row_id)
        unit.add(RestoredRecord(self.journal.draw_seq(), slab, slot))
        self._join(unit, None, (intent.row_id, row))
        self.quotas.forget(intent.namespace_id)
        return unit

    def free(self, row_id: int, seq: int, reason: FreeReason) -> Unit | None:
        """Join the freeing of a live row that is still the one with ``seq``; None if it is not."""
        row = self._unchanged(row_id, seq)
        return self._join_free(row_id, row, reason) if row is not None else None

    def quarantine(self, row_id: int, seq: int, reason: QuarantineReason) -> Unit | None:
        """Join the quarantine of a live row that failed, only if it is still the one with ``seq`` (R8)."""
        row = self._unchanged(row_id, seq)
        if row is None:
            return None
        unit = Unit(digest=row.digest)
        unit.rows.append((row_id, self._rows.quarantined(row_id, row, reason)))
        self._join(unit, (row_id, row), None)
        return unit

    def release_quarantined(self, row_id: int) -> Unit:
        """Join the freeing of a quarantined slot, or its retirement if it failed before (R5)."""
        row = self._index.table.row(row_id)
        assert row.state == SlotState.QUARANTINED
        unit = Unit(privileged=True)
        place = (row.slab, row.slot)
        failures = self._index.evidence.failures.get(place, 0) + (row.reason != QuarantineReason.SKIPPED)
        if failures >= FAILURES_UNTIL_RETIRED:
            unit.rows.append((row_id, self._rows.restated(row_id, row, state=SlotState.RETIRED)))
        else:
            unit.rows.append((row_id, self._rows.free(row_id, row, FreeReason.RECOVERY)))
        if failures:
            unit.add(SlotFailuresRecord(self.journal.draw_seq(), *place, failures))
        self._join_plain(unit)
        return unit

    def renewal(self, row_ids: list[int]) -> Unit:
        """A unit, not joined, that journals rows once more as they stand. Publishing changes nothing: seqs decide."""
        unit = Unit(privileged=True, makes_room=True)
        for row_id in row_ids:
            raw = bytearray(self._index.table.raw(row_id))
            raw[ACCESS_OFFSET] = 0
            unit.rows.append((row_id, bytes(raw)))
        return unit

    def restate(self, row_id: int) -> Unit:
        """Join a row as it stands under a new seq, because the journal says otherwise of the slot."""
        row = self._index.table.row(row_id)
        unit = Unit(privileged=True)
        unit.rows.append((row_id, self._rows.restated(row_id, row, state=SlotState(row.state), reason=row.reason)))
        self._join_plain(unit)
        return unit

    def quarantine_skipped(self, row_id: int, row: Row) -> Unit:
        """Join the quarantine of a slot whose row was skipped; ``row`` holds what is known of the entry."""
        unit = Unit(privileged=True)
        unit.rows.append((row_id, self._rows.quarantined(row_id, row, QuarantineReason.SKIPPED)))
        self._join_plain(unit)
        return unit

    def set_aside(self, row_id: int) -> Unit:
        """Join the quarantine of a free slot in flight whose header may be the only trace of a lost entry (R4)."""
        self.journal.check_available()
        unit = Unit(privileged=True)
        row = self._index.table.row(row_id)
        unit.rows.append((row_id, self._rows.quarantined(row_id, row, QuarantineReason.SKIPPED)))
        self._join_plain(unit)
        return unit

    def give_slab(self, slab: int, slot_class: int, generation: int) -> Unit:
        """Join the record that gives a slab to a class; its slab header is written. Raises JournalUnavailable."""
        self.journal.check_available()
        unit = Unit()
        unit.last_seq = self.journal.draw_seq()
        unit.add(SlabRecord(unit.last_seq, slab, slot_class, generation))
        self.journal.queue(unit)
        return unit

    def record(self, make: Callable[[int], CatalogueRecord], *, durability: Durability = Durability.JOURNAL) -> Unit:
        """Join one catalogue record, made from its seq; it may use the journal's reserve."""
        self.journal.check_available()
        unit = Unit(durability=durability, privileged=True)
        unit.last_seq = self.journal.draw_seq()
        unit.add(make(unit.last_seq))
        self.journal.queue(unit)
        return unit

    def name_namespace(self, namespace_id: int, name: str, settings: NamespaceSettings) -> Unit:
        """Join the record that a namespace exists with these settings. Raises JournalUnavailable."""
        encoded = encode_settings(settings)
        return self.record(lambda seq: NamespaceRecord(seq, namespace_id, name, encoded))

    def wipe(self, namespace_id: int) -> Unit:
        """Join the end of a namespace: all its rows are dead from this record on. Raises JournalUnavailable."""
        unit = self.record(lambda seq: NamespaceWipedRecord(seq, namespace_id))
        self._wiping[namespace_id] = unit
        return unit

    def bind_import(self, namespace: Namespace, settings: NamespaceSettings, replaced: Namespace | None) -> Unit:
        """Join, in one unit, the end of a namespace and the beginning of what an import gathered in its place.

        Raises JournalUnavailable.
        """
        self.journal.check_available()
        unit = Unit(privileged=True)
        if replaced is not None:
            unit.add(NamespaceWipedRecord(self.journal.draw_seq(), replaced.namespace_id))
            self._wiping[replaced.namespace_id] = unit
        unit.last_seq = self.journal.draw_seq()
        encoded = encode_settings(settings)
        unit.add(NamespaceRecord(unit.last_seq, namespace.namespace_id, namespace.name, encoded))
        self.journal.queue(unit)
        return unit

    def wiping(self, namespace_id: int) -> Unit | None:
        """The wipe of a namespace that has joined and is not durable yet."""
        return self._wiping.get(namespace_id)

    # -- the journal's side ---------------------------------------------------------------------------------------

    def publish(self, unit: Unit, block: int) -> None:
        """A unit is durable: its rows become the table's, its key leaves the overlay."""
        self.announce(unit)
        apply_row, after = self._index.apply_row, unit.after
        for row_id, encoded in unit.rows:
            apply_row(row_id, encoded, block, after[1] if after is not None and after[0] == row_id else None)
        for record in unit.records:
            self._index.apply_record(record)
            if isinstance(record, NamespaceWipedRecord):
                self._wiping.pop(record.namespace_id, None)
                self.quotas.forget(record.namespace_id)
        if isinstance(unit, PutUnit):
            self.quotas.note_published(unit.intent.row_id)
        if unit.entries or unit.slot_bytes:
            self._settle_charge(unit)
        if unit.digest is not None:
            pending = self._overlay.get(unit.digest)
            if pending is unit:
                del self._overlay[unit.digest]
            elif pending is not None and pending.visible is not None and pending.visible[1].seq <= unit.last_seq:
                pending.visible = None  # the table is newer than the put at level ``none`` that readers saw

    def undo(self, units: list[Unit]) -> None:
        """Forget everything queued. Puts at level ``none`` stay, and wait for the journal."""
        self._overlay.clear()
        self._wiping.clear()
        self.quotas.forget_joining()
        namespaces = self._index.namespaces
        for namespace in (*namespaces.by_id.values(), *namespaces.dying.values()):
            namespace.queued_entries = namespace.queued_bytes = 0
        for unit in units:
            if not isinstance(unit, PutUnit):
                continue
            if unit.durability is _NONE:
                if len(self._volatile) < VOLATILE_MAX:
                    self._keep_volatile(unit.intent)
                    continue
                self._counters.puts["lost"] += 1
            self.give_back(unit.intent.row_id)

    def reopened(self) -> None:
        """The journal takes rows again: join what waited, in its order."""
        waiting, self._volatile = self._volatile, []
        self._overlay.clear()
        for intent in waiting:
            try:
                self.put(intent, UNCONDITIONAL, Durability.NONE)
            except (NamespaceWiped, QuotaExceeded, SpaceHeld):
                self._counters.puts["lost"] += 1
                self.give_back(intent.row_id)

    def _keep_volatile(self, intent: PutIntent) -> None:
        if len(self._volatile) >= VOLATILE_MAX:
            raise JournalUnavailable(f"{VOLATILE_MAX} puts already wait for the journal")
        self._volatile.append(intent)
        row = self._rows.waiting(intent)
        unit = PutUnit(None, intent, 0, _NONE)
        unit.after = unit.visible = (intent.row_id, row)
        self._overlay[intent.digest] = unit

    # -- rows -----------------------------------------------------------------------------------------------------

    def _unchanged(self, row_id: int, seq: int) -> Row | None:
        row = self._index.table.row(row_id)
        if row.state != SlotState.LIVE or row.seq != seq or row.digest in self._overlay or self.journal.unavailable:
            return None
        return row

    def _join(
        self,
        unit: Unit,
        before: tuple[int, Row] | None,
        after: tuple[int, Row] | None,
        visible: tuple[int, Row] | None = None,
    ) -> None:
        """Join a unit that changes a key, and put what it makes of the key in the overlay.

        ``before`` is what the key holds with all that is queued, ``after`` what it will hold.
        """
        assert unit.digest is not None
        unit.last_seq = self._rows.last_seq
        self.journal.queue(unit)
        self._charge(unit, before, after)
        if visible is None:
            pending = self._overlay.get(unit.digest)
            if pending is not None:
                visible = pending.visible
        unit.after, unit.visible = after, visible
        self._overlay[unit.digest] = unit

    def _charge(self, unit: Unit, before: tuple[int, Row] | None, after: tuple[int, Row] | None) -> None:
        """Count what a unit will make of its namespace's usage, until it is published (A2)."""
        class_bytes = self._index.geometry.class_bytes
        if before is not None:
            unit.namespace_id = before[1].namespace_id
            unit.entries -= 1
            unit.slot_bytes -= class_bytes[before[1].slot_class]
        if after is not None:
            unit.namespace_id = after[1].namespace_id
            unit.entries += 1
            unit.slot_bytes += class_bytes[after[1].slot_class]
        if unit.entries or unit.slot_bytes:
            namespace = self._index.namespaces.owner(unit.namespace_id)
            namespace.queued_entries += unit.entries
            namespace.queued_bytes += unit.slot_bytes

    def _settle_charge(self, unit: Unit) -> None:
        """The unit's rows are counted now where they count for good."""
        namespaces = self._index.namespaces
        namespace = namespaces.by_id.get(unit.namespace_id) or namespaces.dying.get(unit.namespace_id)
        if namespace is not None:
            namespace.queued_entries -= unit.entries
            namespace.queued_bytes -= unit.slot_bytes

    def _supersede(self, unit: Unit, digest: bytes) -> bool:
        """Records that quarantined slots of a key must not come back, for a unit that puts or deletes it; whether there
        are any."""
        places = self._index.evidence.about(digest)
        for slab, slot in places:
            unit.add(SupersededRecord(self.journal.draw_seq(), slab, slot))
        return bool(places)

    def _join_plain(self, unit: Unit) -> None:
        unit.last_seq = self._rows.last_seq
        self.journal.queue(unit)

    def _join_free(self, row_id: int, row: Row, reason: FreeReason) -> Unit:
        self.journal.check_available()
        unit = Unit(digest=row.digest)
        unit.rows.append((row_id, self._rows.free(row_id, row, reason)))
        self._supersede(unit, row.digest)
        self._join(unit, (row_id, row), None)
        label = FREE_REASON_LABELS[reason]
        if label in self._counters.evictions:
            self._counters.evictions[label] += 1
        return unit
