"""An index kept elsewhere: it knows of the engine nothing but its events."""

from __future__ import annotations

from storage.engine import Engine
from storage.events import DELETED, IMPORTED, STORED, WIPED, Event, Position
from storage.format.row import SlotState

Entry = tuple[str, int]
"""Namespace and write id: what an ETag names."""


def live_entries(engine: Engine) -> set[Entry]:
    """What the engine can serve, from its rows; expired entries that are not freed yet included."""
    index = engine._index
    lines = index.table.lines[index.table.row_ids()]
    names = {n.namespace_id: n.name for n in index.namespaces.by_name.values()}
    live = lines[lines["state"] == SlotState.LIVE]
    pairs = zip(live["namespace_id"].tolist(), live["write_id"].tolist(), strict=True)
    return {(names[number], write_id) for number, write_id in pairs if number in names}


class Mirror:
    """Follows an engine that is at rest, from where it left off; makes itself anew only when told to resync."""

    def __init__(self) -> None:
        self.entries: set[Entry] = set()
        self.position: Position | None = None
        self.resyncs: list[str] = []
        self.seen: list[Event] = []

    def copy(self) -> Mirror:
        other = Mirror()
        other.entries, other.position = set(self.entries), self.position
        other.resyncs, other.seen = list(self.resyncs), list(self.seen)
        return other

    def follow(self, engine: Engine) -> None:
        """Catch up, and be equal to what the engine serves."""
        if self.position is None:
            self.entries = live_entries(engine)
        imported: set[str] = set()
        subscription = engine.events.subscribe(self.position)
        try:
            while not subscription.waiting:
                resync, events = subscription.take()
                if resync is not None:
                    self.resyncs.append(resync.reason)
                    self.entries = live_entries(engine)
                    self.position = subscription.position
                for event in events:
                    self._take(event)
                    if event.kind == IMPORTED:
                        imported.add(event.namespace)
            self.position = Position.parse(str(subscription.position))
        finally:
            subscription.close()
        # What a listing would tell of it.
        self.entries |= {entry for entry in live_entries(engine) if entry[0] in imported}
        assert self.entries == live_entries(engine)

    def _take(self, event: Event) -> None:
        assert self.position is None or event.seq > self.position.seq, "events come in the order of seqs, each once"
        self.position = Position(event.seq)
        self.seen.append(event)
        if event.kind == STORED:
            if event.replaced:
                self.entries.discard((event.namespace, event.replaced))
            self.entries.add((event.namespace, event.write_id))
        elif event.kind == DELETED:
            self.entries.discard((event.namespace, event.write_id))
        else:
            assert event.kind in (WIPED, IMPORTED)
            self.entries = {entry for entry in self.entries if entry[0] != event.namespace}
