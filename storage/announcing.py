"""From durable rows to events: what each row of the journal says to somebody who keeps an index of entries.

The same reading serves a unit that was just published and the journal that a recovery reads:

============================================  ===================================================================
row or record                                 event
============================================  ===================================================================
live                                          ``stored``; with what it ``replaced`` if the row before freed that
free: client, evicted, expired, quota,        ``deleted`` with that reason
corrupt
free: replaced                                none of its own: it is told with what replaced it
free: wiped                                   none: the namespace's ``wiped`` said it of all its entries at once
free: recovery; retired                       none: the entry was ``deleted`` when its slot was quarantined
quarantined: corrupt, unreadable              ``deleted`` (corrupt)
quarantined: skipped                          none: its skipped record says it
skipped record                                ``deleted`` (recovery), if it is certain which entry it is; else
                                              nobody's index can be right, and all resync
live, with a restored record                  ``stored`` (recovery)
namespace wiped                               ``wiped``
namespace of a committed import               ``imported``: its entries are told by a listing
============================================  ===================================================================
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping

from storage.events import DELETED, IMPORTED, STORED, UNKNOWN_LOSS, WIPED, Event, EventFeed
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceRecord,
    NamespaceWipedRecord,
    RestoredRecord,
    SkippedRecord,
)
from storage.format.layout import Undecodable
from storage.format.row import ROW_STRUCT, FreeReason, QuarantineReason, Row, SlotState, decode_row
from storage.journal import Unit
from storage.namespaces import Namespace
from storage.recovery.report import SkipReason

RECOVERY, CORRUPT = "recovery", "corrupt"

_FREED: dict[int, str] = {
    FreeReason.CLIENT: "client",
    FreeReason.EVICTED: "evicted",
    FreeReason.EXPIRED: "expired",
    FreeReason.QUOTA: "quota",
    FreeReason.CORRUPT: CORRUPT,
}
_LIVE, _FREE, _QUARANTINED = int(SlotState.LIVE), int(SlotState.FREE), int(SlotState.QUARANTINED)
_STATE = Row._fields.index("state")
_REPLACED, _SKIPPED = int(FreeReason.REPLACED), int(QuarantineReason.SKIPPED)


Fields = tuple[int, int, int, int, int, int, bytes, int, int, int]
"""Of a row: state, reason, namespace id, slab, seq, write id, digest, payload bytes, expiry, slot."""

fields_of: Callable[[bytes], Fields] = struct.Struct("<4xBxxBIIQQ16sI4xIH2x").unpack
"""Decoding a whole row takes twice the time, and this is done for each put."""
_new = tuple.__new__


class RowReader:
    """Reads rows in the order of their seqs. Remembers one thing: what the row before freed for its successor."""

    def __init__(self) -> None:
        self._freed_digest = b""
        self._freed_write_id = 0

    def replaced_by(self, digest: bytes) -> int:
        """The write id of what the row before freed for a live one of this key; 0 if it did not."""
        replaced = self._freed_write_id if digest == self._freed_digest else 0
        self._freed_digest = b""
        return replaced

    def event(self, row: Fields, namespace: str, why: str = "", key: bytes = b"", time: float = 0.0) -> Event | None:
        """The row's event. ``why`` is the reason of a live row; ``key`` the row's, where it is known."""
        state, reason, _, slab, seq, write_id, digest, size, expires_at, slot = row
        if state == _LIVE:
            replaced = self.replaced_by(digest)
            # Straight to the tuple: the named tuple's own constructor takes half as long again.
            return _new(
                Event, (seq, STORED, namespace, write_id, why, replaced, size, expires_at, key, slab, slot, time)
            )
        if state == _FREE:
            if reason == _REPLACED:
                self._freed_digest, self._freed_write_id = digest, write_id
                return None
            gone = _FREED.get(reason)
        else:
            gone = CORRUPT if state == _QUARANTINED and reason != _SKIPPED else None
        if gone is None:
            return None
        return Event(seq, DELETED, namespace, write_id, gone, 0, 0, 0, key, slab, slot, time)


def skipped_event(record: SkippedRecord, seed: int, name_of: Callable[[int], str], time: float = 0.0) -> Event | None:
    """The deletion of a skipped entry; None if it isn't certain which entry that was."""
    claimed: Row | None = None
    with contextlib.suppress(Undecodable):
        claimed = decode_row(seed, record.raw)
    if claimed is not None and (claimed.state != _LIVE or record.reason == SkipReason.STALE_PAGE):
        claimed = None  # what the slot held later is not known
    if record.key:  # from the record's header, which proves whose it is
        namespace_id, write_id = record.namespace_id, record.write_id
        if claimed is not None and claimed.write_id != write_id:
            return None
    elif claimed is not None:
        namespace_id, write_id = claimed.namespace_id, claimed.write_id
    else:
        return None
    namespace = name_of(namespace_id)
    if not namespace:
        return None
    return Event(
        record.seq, DELETED, namespace, write_id, RECOVERY, 0, 0, 0, record.key, record.slab, record.slot, time
    )


class Announcer:
    """Tells the feed of each unit as it becomes durable."""

    def __init__(
        self,
        feed: EventFeed,
        namespaces: Mapping[int, Namespace],
        seed: int,
        lost: dict[int, tuple[str, int]],
        clock: Callable[[], float],
    ) -> None:
        self._feed = feed
        self._namespaces = namespaces
        self._seed = seed
        self._lost = lost
        """Puts announced by an earlier start that did not survive, by row id; until their slots' rows say so."""
        self._clock = clock
        self._rows = RowReader()

    def announce(self, unit: Unit) -> None:
        """Called before the table takes the unit's rows: a wiped namespace still has its name."""
        if unit.makes_room:
            return  # says again what was said
        time = self._clock()
        starting = not self._feed.is_open
        reason = RECOVERY if starting else ""
        for record in unit.records:
            if isinstance(record, RestoredRecord):
                reason = RECOVERY
            else:
                self._announce_record(record, time)
        after = unit.after
        for row_id, encoded in unit.rows:
            if after is not None and after[0] == row_id and not self._lost and after[1][_STATE] == _LIVE:
                self._announce_put(unit, after[1], reason, time)
                continue
            row = fields_of(encoded)
            if self._lost and row_id in self._lost:
                self._survivor(Row._make(ROW_STRUCT.unpack(encoded)), *self._lost.pop(row_id), time)
                continue
            namespace = self._namespaces.get(row[2])
            if namespace is None or (starting and row[0] != _LIVE):
                # Wiped, or never used; or freed before already: a start restates slots that the journal has wrong.
                continue
            if namespace.settings.importing:
                continue  # nobody's entries yet
            event = self._rows.event(row, namespace.name, reason, unit.key if row[6] == unit.digest else b"", time)
            if event is not None:
                self._feed.append(event)
        if unit.last_seq > self._feed.seq:
            self._feed.seq = unit.last_seq

    def _announce_put(self, unit: Unit, row: Row, reason: str, time: float) -> None:
        """As of any row, of one that is there decoded: what each put comes to."""
        _, _, _, _, _, namespace_id, slab, seq, write_id, digest, size, _, expires_at, slot, _ = row
        namespace = self._namespaces.get(namespace_id)
        if namespace is None or namespace.settings.importing:
            return  # wiped, or nobody's entry yet
        replaced = self._rows.replaced_by(digest)
        self._feed.stored(
            (seq, STORED, namespace.name, write_id, reason, replaced, size, expires_at, unit.key, slab, slot, time)
        )

    def _announce_record(self, record: CatalogueRecord, time: float) -> None:
        if isinstance(record, NamespaceWipedRecord):
            self._wiped(record, time)
        elif isinstance(record, NamespaceRecord):
            self._named(record, time)
        elif isinstance(record, SkippedRecord):
            self._skipped(record, time)

    def _survivor(self, row: Row, namespace: str, write_id: int, time: float) -> None:
        """The first row of a slot whose last announced put is lost: that one is gone, whatever the slot holds now."""
        if row.state == SlotState.LIVE:
            name = self._name_of(row.namespace_id)
            self._feed.append(
                Event(row.seq, STORED, name, row.write_id, RECOVERY, write_id, row.payload_bytes, row.expires_at)
            )
        else:
            gone = Event(row.seq, DELETED, namespace, write_id, RECOVERY, slab=row.slab, slot=row.slot, time=time)
            self._feed.append(gone)

    def _named(self, record: NamespaceRecord, time: float) -> None:
        known = self._namespaces.get(record.namespace_id)
        if known is not None and known.settings.importing:
            self._feed.append(Event(record.seq, IMPORTED, record.name, time=time))

    def _wiped(self, record: NamespaceWipedRecord, time: float) -> None:
        known = self._namespaces.get(record.namespace_id)
        name = known.name if known is not None and not known.settings.importing else ""
        if name:
            self._feed.append(Event(record.seq, WIPED, name, time=time))

    def _skipped(self, record: SkippedRecord, time: float) -> None:
        event = skipped_event(record, self._seed, self._name_of, time)
        if event is not None:
            self._feed.append(event)
        else:
            self._feed.cut(record.seq, UNKNOWN_LOSS)

    def _name_of(self, namespace_id: int) -> str:
        namespace = self._namespaces.get(namespace_id)
        return namespace.name if namespace is not None else ""
