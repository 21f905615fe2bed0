"""The import sessions that are open, with their deadlines, and how each is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from storage.imports.errors import ImportNotFound
from storage.imports.session import ImportSession, ImportState, ImportView, PartView


class Sessions:
    """``monotonic`` is the clock of their deadlines, in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._by_id: dict[str, ImportSession] = {}
        self.beginning = 0
        """Sessions whose namespace without a name is being made."""

    def __len__(self) -> int:
        return len(self._by_id)

    @contextlib.contextmanager
    def one_begins(self) -> Iterator[None]:
        """While it lasts there may be a namespace without a name that belongs to no session yet."""
        self.beginning += 1
        try:
            yield
        finally:
            self.beginning -= 1

    def add(self, session: ImportSession) -> None:
        session.deadline = self._monotonic() + session.ttl_seconds
        self._by_id[session.import_id] = session

    def find(self, import_id: str) -> ImportSession:
        """Raises ImportNotFound."""
        session = self._by_id.get(import_id)
        if session is None:
            raise ImportNotFound
        return session

    def use(self, session: ImportSession) -> None:
        """Its time starts anew. Raises ImportNotFound if it has ended."""
        if self._by_id.get(session.import_id) is not session:
            raise ImportNotFound
        session.deadline = max(session.deadline, self._monotonic() + session.ttl_seconds)

    def find_and_use(self, import_id: str) -> ImportSession:
        """Raises ImportNotFound."""
        session = self.find(import_id)
        self.use(session)
        return session

    def all(self) -> list[ImportSession]:
        return list(self._by_id.values())

    def expired(self) -> list[ImportSession]:
        """Those that nobody used for their time."""
        now = self._monotonic()
        return [s for s in self._by_id.values() if s.deadline <= now and s.state is ImportState.OPEN]

    def remove(self, session: ImportSession) -> None:
        """It was committed. Does nothing the second time."""
        self._by_id.pop(session.import_id, None)

    def forget(self, session: ImportSession) -> None:
        """It has ended, and what it received goes."""
        self.remove(session)
        session.close_spools()
        session.parts.clear()

    def view(self, session: ImportSession) -> ImportView:
        parts = tuple(PartView(n, len(r.keys), r.complete) for n, r in session.parts.items())
        return ImportView(
            session.import_id,
            session.owner,
            session.namespace.name,
            session.state,
            parts,
            sum(received.spool.held_bytes for received in session.parts.values()) + session.namespace.used_bytes,
            max(0.0, session.deadline - self._monotonic()),
            session.committed_ratio,
        )
