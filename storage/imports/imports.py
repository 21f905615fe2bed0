"""All import sessions of an engine, from their beginning to their end.

Trainers save one tensor after another, each with its own list of keys. A session keeps what it receives in spools;
nothing of it is an entry. Before the commit it tells for each pair of parts which keys are in one and not in the other.
The commit writes complete records, in a namespace that has no name yet, and then gives it the name of the one it
replaces (``commits``). Whatever ends a session before that, a crash too, leaves a namespace without a name, which is
wiped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable

from storage.batch_writes import BatchWrites
from storage.errors import NamespaceNotFound, ParameterInvalid, Unavailable
from storage.identity import Identity
from storage.imports.commits import Commits
from storage.imports.errors import ImportBusy, ImportTooLarge
from storage.imports.key_lists import missing_in
from storage.imports.session import (
    EXAMPLES,
    Difference,
    ImportPolicy,
    ImportResult,
    ImportSession,
    ImportState,
    ImportView,
)
from storage.imports.sessions import Sessions
from storage.imports.upload import Upload, receive_part
from storage.index import Index
from storage.limits import HOLDER_MAX_CHARS, IMPORTS_MAX, LEASE_MAX_SECONDS
from storage.namespace_changes import NamespaceChanges
from storage.namespaces import Namespace, check_name
from storage.write_path import WritePath


class Imports:
    """All sessions. ``clock`` is that of entries, ``monotonic`` that of the sessions' deadlines, both in seconds."""

    def __init__(
        self,
        index: Index,
        identity: Identity,
        namespaces: NamespaceChanges,
        write_path: WritePath,
        batch_writes: BatchWrites,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._index = index
        self._identity = identity
        self._namespaces = namespaces
        self._write_path = write_path
        self._sessions = Sessions(monotonic)
        self._commits = Commits(self._sessions, index, namespaces, write_path, batch_writes, clock)
        self._dropping: set[asyncio.Task[None]] = set()
        self.keeps_strays: Callable[[], bool] = lambda: False
        """True while what belongs to no session may be a committed import whose record a journal gap took: then it is
        evidence (R4), and stays until the loss is accepted."""

    async def begin(self, name: str, ttl_seconds: float, owner: str) -> ImportView:
        """Begin a session for a namespace with a schema.

        Raises NamespaceNotFound, NamespaceInvalid, ParameterInvalid, ImportTooLarge, JournalUnavailable.
        """
        namespace = self._index.namespaces.by_name.get(name)
        if namespace is None:
            check_name(name)
            raise NamespaceNotFound(name)
        if not namespace.settings.parts:
            raise ParameterInvalid("an import takes a namespace with a schema", parameter="parts")
        if not 0 < ttl_seconds <= LEASE_MAX_SECONDS:
            raise ParameterInvalid(
                f"a session lasts more than 0 and up to {LEASE_MAX_SECONDS:.0f} seconds", parameter="ttl_seconds"
            )
        if len(owner) > HOLDER_MAX_CHARS or not owner.isprintable():
            raise ParameterInvalid(f"an owner is up to {HOLDER_MAX_CHARS} printable characters", parameter="owner")
        self.end_expired()
        if len(self._sessions) + self._sessions.beginning >= IMPORTS_MAX:
            raise ImportTooLarge(f"there are {IMPORTS_MAX} imports")
        with self._sessions.one_begins():
            gathered = await self._namespaces.begin_import(name, namespace.settings)
        session = ImportSession(
            secrets.token_hex(16), owner, gathered, gathered.namespace_id, gathered.settings.parts, ttl_seconds
        )
        self._sessions.add(session)
        return self._sessions.view(session)

    def begin_part(self, import_id: str, name: str) -> Upload:
        """Begin to receive a part. Raises ImportNotFound, ImportBusy, PartsInvalid, ValueTooLarge."""
        session = self._sessions.find_and_use(import_id)
        received = receive_part(session, name, self._index.geometry, self._write_path)
        return Upload(self._sessions, self._identity, session, received)

    async def differences(self, import_id: str) -> list[Difference]:
        """For each pair of complete parts and each direction, the keys one has and the other lacks.

        Raises ImportNotFound.
        """
        session = self._sessions.find_and_use(import_id)
        parts = [received for received in session.parts.values() if received.complete]
        found = []
        for one, other in itertools.permutations(parts, 2):
            missing = await asyncio.to_thread(missing_in, one.listed(), other.listed())
            if len(missing):
                examples = tuple(one.keys[position] for position in missing[:EXAMPLES].tolist())
                found.append(Difference(one.spec.name, other.spec.name, len(missing), examples))
        return found

    async def commit(self, import_id: str, policy: ImportPolicy) -> ImportResult:
        """Write the records and give the namespace its new content.

        Raises ImportNotFound, ImportBusy, ImportRefused, PartsInvalid, SchemaConflict, QuotaExceeded, and what puts
        raise. After a refusal the session is open as before; what the commit had written goes. After FlushFailed it may
        be committed, though not proven durable against power loss: then the session has ended.
        """
        return await self._commits.commit(self._sessions.find_and_use(import_id), policy)

    async def abort(self, import_id: str) -> None:
        """End a session; nothing of it stays. Raises ImportNotFound, ImportBusy, JournalUnavailable."""
        session = self._sessions.find(import_id)
        if session.state is ImportState.COMMITTING:
            raise ImportBusy(session.state.value)
        self._sessions.forget(session)
        await self._namespaces.drop_import(session.namespace)

    def end_expired(self) -> None:
        """End sessions that nobody used for their time."""
        for session in self._sessions.expired():
            self._sessions.forget(session)
        if self._dropping or self._sessions.beginning or self.keeps_strays():
            return
        # Of those that expired, and of others that could not be wiped when they ended.
        kept = {session.namespace.namespace_id for session in self._sessions.all()}
        for namespace in self._index.namespaces.importing():
            if namespace.namespace_id not in kept:
                task = asyncio.get_running_loop().create_task(self._drop(namespace))
                self._dropping.add(task)
                task.add_done_callback(self._dropping.discard)

    async def _drop(self, namespace: Namespace) -> None:
        with contextlib.suppress(Unavailable):  # tried again the next time
            await self._namespaces.drop_import(namespace)

    async def close(self) -> None:
        """End everything, commits under way too; the next start wipes what is left."""
        for session in self._sessions.all():
            self._sessions.forget(session)
        await self._commits.close()
        if self._dropping:
            await asyncio.wait(self._dropping)

    def view(self, import_id: str) -> ImportView:
        """Raises ImportNotFound."""
        return self._sessions.view(self._sessions.find(import_id))

    def views(self) -> list[ImportView]:
        return [self._sessions.view(session) for session in self._sessions.all()]
