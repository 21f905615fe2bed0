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
from collections.abc import Callable
from dataclasses import dataclass

from storage.counters import FREE_REASON_LABELS, EngineCounters
from storage.entries import UNCONDITIONAL, Conditions, Durability
from storage.errors import JournalUnavailable, PreconditionFailed
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceRecord,
    RestoredRecord,
    SlabRecord,
    SlotFailuresRecord,
    SupersededRecord,
)
from storage.format.row import ACCESS_OFFSET, FreeReason, QuarantineReason, Row, SlotState, decode_row
from storage.index import Index
from storage.journal import Journal, Unit
from storage.namespaces import check_name
from storage.row_changes import PutIntent, RowChanges

log = logging.getLogger("rawblockd.storage")

VOLATILE_MAX = 1024
"""Puts at level ``none`` that may wait for a failed journal; each holds a slot."""


FAILURES_UNTIL_RETIRED = 2
"""A slot whose record failed at run time, was freed by an operator and failed again is used no more (R5)."""


@dataclass(slots=True, eq=False)
class PutUnit(Unit):
    """The unit of a put. ``replaced`` is the write id of the entry it replaces, 0 if there was none."""

    intent: PutIntent | None = None
    replaced: int = 0


@dataclass(slots=True)
class Pending:
    """What a queued unit will make of a key. ``row_id`` 0: the key will be gone."""

    unit: Unit | None
    row_id: int
    row: Row | None
    visible: tuple[int, Row] | None
    """What readers see meanwhile instead of the table, if a put at level ``none`` is waiting."""


class Commit:
    def __init__(self, index: Index, counters: EngineCounters, clock: Callable[[], float]) -> None:
        self._index = index
        self._counters = counters
        self._clock = clock
        self._overlay: dict[bytes, Pending] = {}
        self._volatile: list[PutIntent] = []
        self._creating: dict[str, asyncio.Future[int]] = {}
        self._ids_under_way = 0
        """Namespace ids drawn whose record is not durable yet."""
        self._rows = RowChanges(index.table, index.seed, lambda: self.journal.draw_seq())
        self.journal: Journal
        """Set by the engine once the journal's position is known."""
        self.give_back: Callable[[int], None]
        """Takes the slot of a put that was undone; set by the engine."""

    # -- views ----------------------------------------------------------------------------------------------------

    def published(self, digest: bytes) -> tuple[int, Row] | None:
        """What readers see under a key: row id and row, expired or not."""
        pending = self._overlay.get(digest)
        if pending is not None and pending.visible is not None:
            return pending.visible
        row_id = self._index.keys.find(digest)
        return (row_id, self._index.table.row(row_id)) if row_id else None

    def joined(self, digest: bytes) -> tuple[int, Row] | None:
        """What the key holds once everything queued is durable."""
        pending = self._overlay.get(digest)
        if pending is not None:
            return (pending.row_id, pending.row) if pending.row is not None else None
        row_id = self._index.keys.find(digest)
        return (row_id, self._index.table.row(row_id)) if row_id else None

    def pending(self, digest: bytes) -> Unit | None:
        """The queued unit that decides what the key holds; None if nothing is queued."""
        pending = self._overlay.get(digest)
        return pending.unit if pending is not None else None

    def is_expired(self, row: Row) -> bool:
        return row.expires_at != 0 and row.expires_at <= self._clock()

    def check_conditions(self, digest: bytes, conditions: Conditions) -> int:
        """The write id under the key, 0 if there is none or it expired. Raises PreconditionFailed."""
        present = self.joined(digest)
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
        """As ``check_conditions``, but a refusal is given only once what it was decided against is durable (D3)."""
        while True:
            try:
                self.check_conditions(digest, conditions)
                return
            except PreconditionFailed:
                pending = self.pending(digest)
                if pending is None or pending.done is None:
                    raise
                await asyncio.wait([pending.done])

    # -- mutations ------------------------------------------------------------------------------------------------

    def put(self, intent: PutIntent, conditions: Conditions, durability: Durability) -> PutUnit | None:
        """Join a put and the freeing of what it replaces. None: the journal fails and the put waits (level ``none``).

        Raises PreconditionFailed, JournalUnavailable; the slot then still is the caller's.
        """
        replaced = self.check_conditions(intent.digest, conditions)
        if self.journal.unavailable and durability is Durability.NONE:
            self._keep_volatile(intent)
            return None
        self.journal.check_available()
        unit = PutUnit(durability=durability, digest=intent.digest, intent=intent, replaced=replaced)
        present = self.joined(intent.digest)
        if present is not None:
            reason = FreeReason.EXPIRED if self.is_expired(present[1]) else FreeReason.REPLACED
            unit.rows.append((present[0], self._rows.free(present[0], present[1], reason)))
        encoded = self._rows.live(intent)
        unit.rows.append((intent.row_id, encoded))
        unit.records += self._superseded(intent.digest)
        visible = (intent.row_id, decode_row(self._index.seed, encoded)) if durability is Durability.NONE else None
        self._join(unit, intent.row_id, encoded, visible)
        return unit

    def delete(self, digest: bytes, conditions: Conditions) -> tuple[Unit, int] | None:
        """Join the deletion of a key; the unit and the write id deleted, or None if there is nothing."""
        write_id = self.check_conditions(digest, conditions)
        present = self.joined(digest)
        if present is None:
            return None
        reason = FreeReason.CLIENT if write_id else FreeReason.EXPIRED
        unit = self._join_free(present[0], present[1], reason)
        return (unit, write_id) if write_id else None

    def delete_absent(self, digest: bytes) -> Unit | None:
        """A key that is not there is deleted: what may be quarantined of it must not come back. None: nothing is."""
        records = self._superseded(digest)
        if not records:
            return None
        unit = Unit(records=records, privileged=True, last_seq=records[-1].seq)
        self.journal.join(unit)
        return unit

    def restore(self, intent: PutIntent) -> Unit:
        """Join the return of a quarantined slot to life; its key is free. Raises JournalUnavailable."""
        self.journal.check_available()
        assert self.joined(intent.digest) is None
        unit = Unit(digest=intent.digest, privileged=True)
        encoded = self._rows.live(intent)
        unit.rows.append((intent.row_id, encoded))
        slab, slot = self._index.table.place_of(intent.row_id)
        unit.records.append(RestoredRecord(self.journal.draw_seq(), slab, slot))
        self._join(unit, intent.row_id, encoded, None)
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
        self._join(unit, 0, None, None)
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
            unit.records.append(SlotFailuresRecord(self.journal.draw_seq(), *place, failures))
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

    def renew(self, row_id: int) -> Unit:
        """Join a row once more, so that its place in the journal may be given up. Raises JournalUnavailable."""
        unit = self.renewal([row_id])
        self.journal.join(unit)
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
        unit.records.append(SlabRecord(unit.last_seq, slab, slot_class, generation))
        self.journal.join(unit)
        return unit

    def record(self, make: Callable[[int], CatalogueRecord], *, durability: Durability = Durability.JOURNAL) -> Unit:
        """Join one catalogue record, made from its seq; it may use the journal's reserve."""
        self.journal.check_available()
        unit = Unit(durability=durability, privileged=True)
        unit.last_seq = self.journal.draw_seq()
        unit.records.append(make(unit.last_seq))
        self.journal.join(unit)
        return unit

    async def namespace_id(self, name: str) -> int:
        """The id of a namespace, created durably if it is new.

        Raises NamespaceInvalid, NamespacesFull, JournalUnavailable.
        """
        known = self._index.namespaces.by_name.get(name)
        if known is not None:
            return known.namespace_id
        check_name(name)
        creating = self._creating.get(name)
        if creating is None:
            creating = asyncio.ensure_future(self._create_namespace(name))
            self._creating[name] = creating
            creating.add_done_callback(lambda future: self._created(name, future))
        return await asyncio.shield(creating)

    async def _create_namespace(self, name: str) -> int:
        self.journal.check_available()
        namespace_id = self._index.namespaces.draw_id(self._ids_under_way)
        self._ids_under_way += 1
        try:
            unit = self.record(lambda seq: NamespaceRecord(seq, namespace_id, name, {}))
            assert unit.done is not None
            await unit.done
        finally:
            self._ids_under_way -= 1
        return namespace_id

    def _created(self, name: str, future: asyncio.Future[int]) -> None:
        del self._creating[name]
        if not future.cancelled():
            future.exception()  # whoever waited has it; nobody waiting is no error

    # -- the journal's side ---------------------------------------------------------------------------------------

    def publish(self, unit: Unit, block: int) -> None:
        """A unit is durable: its rows become the table's, its key leaves the overlay."""
        for row_id, encoded in unit.rows:
            self._index.apply_row(row_id, encoded, block)
        for record in unit.records:
            self._index.apply_record(record)
        if unit.digest is not None:
            pending = self._overlay.get(unit.digest)
            if pending is not None and pending.unit is unit:
                del self._overlay[unit.digest]
            elif pending is not None and pending.visible is not None and pending.visible[1].seq <= unit.last_seq:
                pending.visible = None  # the table is newer than the put at level ``none`` that readers saw

    def undo(self, units: list[Unit]) -> None:
        """Forget everything queued. Puts at level ``none`` stay, and wait for the journal."""
        self._overlay.clear()
        for unit in units:
            if isinstance(unit, PutUnit) and unit.durability is Durability.NONE and unit.intent is not None:
                if len(self._volatile) < VOLATILE_MAX:
                    self._keep_volatile(unit.intent)
                    continue
                self._counters.puts["lost"] += 1
            if isinstance(unit, PutUnit) and unit.intent is not None:
                self.give_back(unit.intent.row_id)

    def reopened(self) -> None:
        """The journal takes rows again: join what waited, in its order."""
        waiting, self._volatile = self._volatile, []
        self._overlay.clear()
        for intent in waiting:
            self.put(intent, UNCONDITIONAL, Durability.NONE)

    def _keep_volatile(self, intent: PutIntent) -> None:
        if len(self._volatile) >= VOLATILE_MAX:
            raise JournalUnavailable(f"{VOLATILE_MAX} puts already wait for the journal")
        self._volatile.append(intent)
        row = self._rows.waiting(intent)
        self._overlay[intent.digest] = Pending(None, intent.row_id, row, (intent.row_id, row))

    # -- rows -----------------------------------------------------------------------------------------------------

    def _unchanged(self, row_id: int, seq: int) -> Row | None:
        row = self._index.table.row(row_id)
        if row.state != SlotState.LIVE or row.seq != seq or row.digest in self._overlay or self.journal.unavailable:
            return None
        return row

    def _join(self, unit: Unit, row_id: int, encoded: bytes | None, visible: tuple[int, Row] | None) -> None:
        """Join a unit that changes a key, and put what it makes of the key in the overlay."""
        assert unit.digest is not None
        unit.last_seq = self._rows.last_seq
        self.journal.join(unit)
        before = self._overlay.get(unit.digest)
        if visible is None and before is not None:
            visible = before.visible
        row = decode_row(self._index.seed, encoded) if encoded is not None else None
        self._overlay[unit.digest] = Pending(unit, row_id, row, visible)

    def _superseded(self, digest: bytes) -> list[CatalogueRecord]:
        """Records that quarantined slots of a key must not come back, for a unit that puts or deletes it."""
        places = self._index.evidence.about(digest)
        return [SupersededRecord(self.journal.draw_seq(), slab, slot) for slab, slot in places]

    def _join_plain(self, unit: Unit) -> None:
        unit.last_seq = self._rows.last_seq
        self.journal.join(unit)

    def _join_free(self, row_id: int, row: Row, reason: FreeReason) -> Unit:
        self.journal.check_available()
        unit = Unit(digest=row.digest)
        unit.rows.append((row_id, self._rows.free(row_id, row, reason)))
        unit.records += self._superseded(row.digest)
        self._join(unit, 0, None, None)
        label = FREE_REASON_LABELS[reason]
        if label in self._counters.evictions:
            self._counters.evictions[label] += 1
        return unit
