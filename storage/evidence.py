"""What quarantined slots are evidence of: which keys, and whether something later is known of them (R5, R8).

A quarantined slot may be made live again by ``retry``, but never over a key that was put or deleted since: that is
remembered durably, by a record in the same unit as the put or delete. Slots that failed before are remembered too: one
that fails twice is retired.
"""

from __future__ import annotations

from storage.format.catalogue import SlotFailuresRecord, SupersededRecord

NO_DIGEST = bytes(16)
TOUCHED_MAX = 65536
"""Keys remembered while a quarantined slot's key is unknown, 100 B each; with more, such a slot can't be settled."""
FAILURES_MAX = 2048
"""Slots whose failures are remembered: 20 B each in the catalogue, 40 KiB of its 64 KiB for state."""

Place = tuple[int, int]
"""Slab and slot."""


class Evidence:
    def __init__(self) -> None:
        self._by_digest: dict[bytes, set[Place]] = {}
        self.unknown: set[Place] = set()
        """Quarantined slots of which not even the key's digest is known."""
        self.superseded: set[Place] = set()
        self.superseding: set[Place] = set()
        """As ``superseded``, from the moment the put or delete joins, and also if it is undone."""
        self.leaving: set[Place] = set()
        """Slots whose freeing, or return to life, has joined and is not durable yet: nobody else decides of them."""
        self._touched: set[bytes] = set()
        self._overflowed = False
        self.failures: dict[Place, int] = {}

    def add(self, digest: bytes, place: Place) -> None:
        """A slot was quarantined."""
        if digest == NO_DIGEST:
            self.unknown.add(place)
        else:
            self._by_digest.setdefault(digest, set()).add(place)

    def remove(self, digest: bytes, place: Place) -> None:
        """A slot is quarantined no more."""
        self.unknown.discard(place)
        self.superseded.discard(place)
        self.superseding.discard(place)
        self.leaving.discard(place)
        places = self._by_digest.get(digest)
        if places is not None:
            places.discard(place)
            if not places:
                del self._by_digest[digest]

    def about(self, digest: bytes) -> list[Place]:
        """Quarantined slots of a key that nothing later is known of; to be called for each key put or deleted."""
        if self.unknown:
            self._touch(digest)
        places = self._by_digest.get(digest)
        if not places:
            return []
        self.superseding |= places
        return sorted(places - self.superseded)

    def _touch(self, digest: bytes) -> None:
        if len(self._touched) < TOUCHED_MAX:
            self._touched.add(digest)
        else:
            self._overflowed = True

    def forget_touched(self) -> None:
        """Earlier starts may have put or deleted any key: their rows need not be in the journal any more."""
        self._overflowed = True

    def untouched(self, digest: bytes) -> bool:
        """True if it is certain that the key of a slot whose key was unknown was neither put nor deleted meanwhile."""
        return digest not in self._touched and not self._overflowed

    def apply(self, record: SupersededRecord | SlotFailuresRecord) -> None:
        """A durable record of the journal or the catalogue."""
        place = (record.slab, record.slot)
        if isinstance(record, SupersededRecord):
            self.superseded.add(place)
        elif record.failures:
            self.failures[place] = record.failures
            if len(self.failures) > FAILURES_MAX:
                del self.failures[next(iter(self.failures))]
        else:
            self.failures.pop(place, None)
