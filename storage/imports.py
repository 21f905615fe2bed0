"""Import sessions: a namespace's whole content, received part by part, compared, and published by one record.

Trainers save one tensor after another, each with its own list of keys. A session keeps what it receives in spools;
nothing of it is an entry. Before the commit it tells for each pair of parts which keys are in one and not in the other.
The commit writes complete records, in a namespace that has no name yet, and then gives it the name of the one it
replaces: one record of the journal, before which nothing and behind which everything is visible. Whatever ends a
session before that, a crash too, leaves a namespace without a name, which is wiped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from storage.batch_writes import BatchWrites
from storage.errors import (
    ImportBusy,
    ImportNotFound,
    ImportRefused,
    ImportTooLarge,
    NamespaceNotFound,
    ParameterInvalid,
    PartsInvalid,
    RawblockdError,
    Unavailable,
    ValueTooLarge,
)
from storage.identity import Identity
from storage.import_session import (
    Difference,
    ImportPolicy,
    ImportResult,
    ImportSession,
    ImportState,
    ImportView,
    PartView,
    Plan,
    Received,
    combine,
)
from storage.index import Index
from storage.key_lists import missing_in, repeated
from storage.keys import check_key
from storage.limits import (
    HOLDER_MAX_CHARS,
    IMPORT_KEY_BYTES_MAX,
    IMPORT_KEYS_MAX,
    IMPORTS_MAX,
    LEASE_MAX_SECONDS,
    TRANSFER_MAX_BYTES,
)
from storage.namespace_changes import NamespaceChanges, check_gathered
from storage.namespaces import Namespace, check_name
from storage.put_session import PutSession
from storage.schema import default_bytes
from storage.spool import Spool
from storage.write_path import WritePath

EXAMPLES = 5
"""Keys named in a report for each difference."""
SPOOL_SHARE = 256
"""A slot of a spool is at most this part of the device."""
RECORDS_AT_ONCE = 256
"""Records written and joined together while a session is committed."""
RECORDS_AT_ONCE_BYTES = 32 << 20
"""Their payloads together, or one payload: they are in memory until they are joined."""


class Upload:
    """A part on its way in. Exactly one of ``end`` and ``abort`` ends it."""

    def __init__(self, imports: Imports, session: ImportSession, received: Received) -> None:
        self._imports = imports
        self._session = session
        self._received = received

    async def add(self, keys: Sequence[bytes], rows: bytes | memoryview) -> None:
        """Append keys with their rows, as many bytes as the schema says. Raises PartsInvalid, KeyInvalid,
        ImportTooLarge, ImportNotFound, and what reserving a slot raises."""
        received, session = self._received, self._session
        self._imports.use(session)
        row_bytes = received.spec.part.size_bytes
        if len(rows) != row_bytes * len(keys):
            why = f"{len(keys)} keys with {len(rows)} bytes of rows of {row_bytes} bytes"
            raise PartsInvalid(why, part=received.spec.name)
        self._imports.check_room(session, keys)
        for key in keys:
            check_key(key)
            received.digests += self._imports.digest(session, key)
            received.key_bytes += len(key)
        received.keys += keys
        await received.spool.append(memoryview(rows))

    async def end(self) -> int:
        """All of the part is here; how many keys. Raises ImportRefused for keys that came twice, ImportNotFound,
        WriteFailed."""
        received = self._received
        await received.spool.flush()
        twice = await asyncio.to_thread(repeated, received.listed())
        self._imports.use(self._session)
        if len(twice):
            examples = [received.keys[position] for position in twice[:EXAMPLES].tolist()]
            self.abort()
            raise ImportRefused(
                f"part {received.spec.name!r} has {len(twice)} keys twice, such as {examples}",
                part=received.spec.name,
                repeated=len(twice),
            )
        received.complete = True
        self._session.receiving = ""
        return len(received.keys)

    def abort(self) -> None:
        """Forget what came of the part. Does nothing after ``end``."""
        if not self._received.complete:
            self._imports.forget_part(self._session, self._received)


class Imports:
    """All sessions. ``monotonic`` is the clock of their deadlines, in seconds."""

    def __init__(
        self,
        index: Index,
        identity: Identity,
        namespaces: NamespaceChanges,
        write_path: WritePath,
        batch_writes: BatchWrites,
        monotonic: Callable[[], float],
    ) -> None:
        self._index = index
        self._identity = identity
        self._namespaces = namespaces
        self._write_path = write_path
        self._batch_writes = batch_writes
        self._monotonic = monotonic
        self._sessions: dict[str, ImportSession] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._committing: set[asyncio.Future[None]] = set()
        """One for each commit under way, done when it has ended."""
        self._opening = 0
        self.keeps_strays: Callable[[], bool] = lambda: False
        """True while what belongs to no session may be a committed import whose record a journal gap took: then it is
        evidence (R4), and stays until the loss is accepted."""

    # -- sessions -------------------------------------------------------------------------------------------------

    async def begin(self, name: str, ttl_seconds: float, owner: str) -> ImportView:
        """Begin a session for a namespace with a schema.

        Raises ParameterInvalid, ImportTooLarge, JournalUnavailable.
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
        if len(self._sessions) + self._opening >= IMPORTS_MAX:
            raise ImportTooLarge(f"there are {IMPORTS_MAX} imports")
        self._opening += 1
        try:
            gathered = await self._namespaces.begin_import(name, namespace.settings)
        finally:
            self._opening -= 1
        session = ImportSession(
            secrets.token_hex(16),
            owner,
            gathered,
            gathered.namespace_id,
            gathered.settings.parts,
            ttl_seconds,
            self._monotonic() + ttl_seconds,
        )
        self._sessions[session.import_id] = session
        return self._view(session)

    def find(self, import_id: str) -> ImportSession:
        """Raises ImportNotFound."""
        session = self._sessions.get(import_id)
        if session is None:
            raise ImportNotFound
        return session

    def use(self, session: ImportSession) -> None:
        """Its time starts anew. Raises ImportNotFound if it has ended."""
        if self._sessions.get(session.import_id) is not session:
            raise ImportNotFound
        session.deadline = max(session.deadline, self._monotonic() + session.ttl_seconds)

    def digest(self, session: ImportSession, key: bytes) -> bytes:
        return self._identity.digest(session.digest_id, key)

    def check_room(self, session: ImportSession, keys: Sequence[bytes]) -> None:
        """Raises ImportTooLarge."""
        parts = session.parts.values()
        if sum(len(received.keys) for received in parts) + len(keys) > IMPORT_KEYS_MAX:
            raise ImportTooLarge(f"the keys of all parts together are up to {IMPORT_KEYS_MAX}")
        if sum(received.key_bytes for received in parts) + sum(map(len, keys)) > IMPORT_KEY_BYTES_MAX:
            raise ImportTooLarge(f"the keys of all parts together are up to {IMPORT_KEY_BYTES_MAX} bytes")

    def begin_part(self, import_id: str, name: str) -> Upload:
        """Begin to receive a part. Raises ImportNotFound, ImportBusy, PartsInvalid, ValueTooLarge."""
        session = self.find(import_id)
        self.use(session)
        spec = next((spec for spec in session.specs if spec.name == name), None)
        if spec is None:
            raise PartsInvalid(f"part {name[:64]!r} is not in the schema", part=name[:64])
        if session.state is not ImportState.OPEN or session.receiving:
            raise ImportBusy(session.receiving or session.state.value)
        if name in session.parts:
            raise ImportBusy(f"part {name!r} is here already")
        geometry = self._index.geometry
        area_bytes = min(TRANSFER_MAX_BYTES, geometry.slabs * geometry.slot_area_bytes // SPOOL_SHARE)
        slot_class = geometry.class_for(max(spec.part.size_bytes, area_bytes))
        if slot_class < 0:
            slot_class = len(geometry.class_bytes) - 1
        received = Received(spec, Spool(self._write_path, slot_class, spec.part.size_bytes))
        session.parts[name] = received
        session.receiving = name
        return Upload(self, session, received)

    def forget_part(self, session: ImportSession, received: Received) -> None:
        """Give back what came of a part."""
        received.spool.close()
        if session.parts.get(received.spec.name) is received:
            del session.parts[received.spec.name]
            session.receiving = ""

    # -- comparing ------------------------------------------------------------------------------------------------

    async def differences(self, import_id: str) -> list[Difference]:
        """For each pair of complete parts and each direction, the keys one has and the other lacks.

        Raises ImportNotFound.
        """
        session = self.find(import_id)
        self.use(session)
        parts = [received for received in session.parts.values() if received.complete]
        found = []
        for one, other in itertools.permutations(parts, 2):
            missing = await asyncio.to_thread(missing_in, one.listed(), other.listed())
            if len(missing):
                examples = tuple(one.keys[position] for position in missing[:EXAMPLES].tolist())
                found.append(Difference(one.spec.name, other.spec.name, len(missing), examples))
        return found

    # -- committing -----------------------------------------------------------------------------------------------

    async def commit(self, import_id: str, policy: ImportPolicy) -> ImportResult:
        """Write the records and give the namespace its new content.

        Raises ImportNotFound, ImportBusy, ImportRefused, PartsInvalid, SchemaConflict, QuotaExceeded, and what puts
        raise. After a refusal the session is open as before; what the commit had written goes. After FlushFailed it may
        be committed, though not proven durable against power loss: then the session has ended.
        """
        session = self.find(import_id)
        self.use(session)
        if session.state is not ImportState.OPEN or session.receiving:
            raise ImportBusy(session.receiving or session.state.value)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing.add(ended)
        try:
            return await self._commit(session, policy)
        finally:
            self._committing.remove(ended)
            ended.set_result(None)

    async def _commit(self, session: ImportSession, policy: ImportPolicy) -> ImportResult:
        session.state = ImportState.COMMITTING
        planned = False
        try:
            plan = await self._plan(session, policy)
            planned = True
        finally:
            if not planned:
                session.state = ImportState.OPEN
        binding: asyncio.Task[None] | None = None
        try:
            await self._write(session, plan)
            binding = asyncio.get_running_loop().create_task(self._namespaces.bind(session.namespace))
            await asyncio.shield(binding)
        finally:
            await asyncio.shield(self._end_commit(session, binding))
        return ImportResult(session.namespace.view(), plan.filled, plan.dropped)

    async def _end_commit(self, session: ImportSession, binding: asyncio.Task[None] | None) -> None:
        """What the journal has taken is committed, whoever left meanwhile and whatever failed behind it (D2)."""
        if binding is not None:
            await asyncio.wait([binding])
            if not binding.cancelled():
                binding.exception()  # who commits has it, if he is still there
        if session.namespace.settings.importing:
            await self._start_anew(session)
            return
        session.state = ImportState.COMMITTED
        self._sessions.pop(session.import_id, None)
        self._let_go(session)

    async def _plan(self, session: ImportSession, policy: ImportPolicy) -> Plan:
        """Which records there will be. Raises ImportRefused, PartsInvalid, SchemaConflict, ValueTooLarge."""
        known = self._index.namespaces.by_name.get(session.namespace.name)
        if known is not None:
            check_gathered(session.namespace, known)
        largest = sum(spec.part.size_bytes for spec in session.specs)
        if largest > self._write_path.max_value_bytes:  # before so much is filled with a default
            raise ValueTooLarge(
                f"a record of {largest} bytes; the largest value is about {self._write_path.max_value_bytes} bytes"
            )
        absent = [spec for spec in session.specs if spec.name not in session.parts]
        if absent and policy is not ImportPolicy.DEFAULT:
            names = [spec.name for spec in absent]
            raise ImportRefused(f"parts {names} did not come", missing_parts=names)
        plan = await asyncio.to_thread(combine, list(session.parts.values()), policy)
        for spec in session.specs:
            if spec.name not in session.parts:
                plan.filled[spec.name] = len(plan.keys)
                plan.positions[spec.name] = np.full(len(plan.keys), -1, dtype=np.int64)
        for spec in session.specs:
            if plan.filled.get(spec.name) and spec.default is None:
                why = f"part {spec.name!r} has no default and lacks {plan.filled[spec.name]} keys"
                raise PartsInvalid(why, part=spec.name)
        if policy is ImportPolicy.REJECT and plan.dropped:
            raise ImportRefused(f"{plan.dropped} keys are not in every part", incomplete=plan.dropped)
        return plan

    async def _write(self, session: ImportSession, plan: Plan) -> None:
        """All records, complete ones, joined to the namespace without a name."""
        parts = tuple(spec.part for spec in session.specs)
        payload_bytes = sum(part.size_bytes for part in parts)
        at_once = min(RECORDS_AT_ONCE, max(1, RECORDS_AT_ONCE_BYTES // max(1, payload_bytes)))
        for begin in range(0, len(plan.keys), at_once):
            self.use(session)
            step = slice(begin, begin + at_once)
            payloads = await self._payloads(session, plan, step)
            puts: list[PutSession] = []
            try:
                for key, payload in zip(plan.keys[step], payloads, strict=True):
                    put = await self._write_path.begin(
                        session.namespace.name,
                        key,
                        len(payload),
                        parts=parts,
                        import_id=session.namespace.namespace_id,
                    )
                    puts.append(put)
                    if payload:
                        await put.write(payload)
                    put.stage()
                row_ids = [put.intent.row_id for put in puts if put.intent is not None]
                self._index.slots.hold_all(np.array(row_ids, dtype=np.int64))
                session.row_ids += row_ids
                for outcome in await self._batch_writes.commit(puts):
                    if isinstance(outcome, RawblockdError):
                        raise outcome
            finally:
                for put in puts:
                    put.abort()
            session.committed_ratio = min(1.0, (begin + len(puts)) / max(1, len(plan.keys)))

    async def _payloads(self, session: ImportSession, plan: Plan, step: slice) -> list[bytes]:
        """The parts of some records, one behind the other in the schema's order."""
        columns: list[list[bytes]] = []
        for spec in session.specs:
            positions = plan.positions[spec.name][step]
            received = session.parts.get(spec.name)
            known = np.flatnonzero(positions >= 0)
            fill = default_bytes(spec) if len(known) < len(positions) else b""
            column = [fill] * len(positions)
            if received is not None and len(known):
                rows = await received.spool.read(positions[known])
                for index, row in zip(known.tolist(), rows, strict=True):
                    column[index] = row
            columns.append(column)
        return [b"".join(row) for row in zip(*columns, strict=True)]

    async def _start_anew(self, session: ImportSession) -> None:
        """A commit failed: what it wrote goes with its namespace, the session goes on with another one."""
        failed = session.namespace
        self._let_go(session)
        session.committed_ratio = 0.0
        self._opening += 1
        try:
            await self._namespaces.drop_import(failed)
            session.namespace = await self._namespaces.begin_import(failed.name, failed.settings)
            session.state = ImportState.OPEN
        except RawblockdError:
            self._forget(session)
        finally:
            self._opening -= 1

    def _let_go(self, session: ImportSession) -> None:
        """The records are the namespace's own now, or go with it."""
        if session.row_ids:
            self._write_path.space.let_go_all(np.array(session.row_ids, dtype=np.int64))
            session.row_ids = []
        if session.state is ImportState.COMMITTED:
            for received in session.parts.values():
                received.spool.close()

    # -- ending ---------------------------------------------------------------------------------------------------

    async def abort(self, import_id: str) -> None:
        """End a session; nothing of it stays. Raises ImportNotFound, ImportBusy, JournalUnavailable."""
        session = self.find(import_id)
        if session.state is ImportState.COMMITTING:
            raise ImportBusy(session.state.value)
        self._forget(session)
        await self._namespaces.drop_import(session.namespace)

    def end_expired(self) -> None:
        """End sessions that nobody used for their time."""
        now = self._monotonic()
        for session in list(self._sessions.values()):
            if session.deadline <= now and session.state is ImportState.OPEN:
                self._forget(session)
        if self._dropping or self._opening or self.keeps_strays():
            return
        # Of those that expired, and of others that could not be wiped when they ended.
        kept = {session.namespace.namespace_id for session in self._sessions.values()}
        for namespace in self._index.namespaces.importing():
            if namespace.namespace_id not in kept:
                task = asyncio.get_running_loop().create_task(self._drop(namespace))
                self._dropping.add(task)
                task.add_done_callback(self._dropping.discard)

    async def _drop(self, namespace: Namespace) -> None:
        with contextlib.suppress(Unavailable):  # tried again the next time
            await self._namespaces.drop_import(namespace)

    def _forget(self, session: ImportSession) -> None:
        self._sessions.pop(session.import_id, None)
        for received in session.parts.values():
            received.spool.close()
        session.parts.clear()

    async def close(self) -> None:
        """End everything, commits under way too; the next start wipes what is left."""
        for session in list(self._sessions.values()):
            self._forget(session)
        if self._committing:
            await asyncio.wait(self._committing)
        if self._dropping:
            await asyncio.wait(self._dropping)

    # -- looking --------------------------------------------------------------------------------------------------

    def view(self, import_id: str) -> ImportView:
        """Raises ImportNotFound."""
        return self._view(self.find(import_id))

    def views(self) -> list[ImportView]:
        return [self._view(session) for session in self._sessions.values()]

    def _view(self, session: ImportSession) -> ImportView:
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
