"""The commit of an import: complete records in a namespace without a name, then one record that gives it its name.

Before that record nothing of it is visible, behind it everything is. What the journal has taken is committed, whoever
left meanwhile; a commit that failed leaves its session open, with another namespace without a name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from storage.batch_writes import BatchWrites
from storage.entries import PutTerms
from storage.errors import RawblockdError
from storage.imports.plan import Plan, make_plan
from storage.imports.session import ImportPolicy, ImportResult, ImportSession, ImportState
from storage.imports.sessions import Sessions
from storage.index import Index
from storage.namespace_changes import NamespaceChanges, check_gathered
from storage.namespace_settings import expiry_of
from storage.put_session import PutSession
from storage.schema import default_bytes
from storage.write_path import WritePath

RECORDS_AT_ONCE = 256
"""Records written and joined together while a session is committed."""
RECORDS_AT_ONCE_BYTES = 32 << 20
"""Their payloads together, or one payload: they are in memory until they are joined."""


class Commits:
    """Of one engine; of a session one at a time."""

    def __init__(
        self,
        sessions: Sessions,
        index: Index,
        namespaces: NamespaceChanges,
        write_path: WritePath,
        batch_writes: BatchWrites,
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._index = index
        self._namespaces = namespaces
        self._write_path = write_path
        self._batch_writes = batch_writes
        self._clock = clock
        self._under_way: set[asyncio.Future[None]] = set()
        """One for each commit, done when it has ended."""

    async def commit(self, session: ImportSession, policy: ImportPolicy) -> ImportResult:
        """Write the records and give the namespace its new content. Raises as ``Imports.commit``."""
        session.check_idle()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            return await self._commit(session, policy)
        finally:
            self._under_way.remove(ended)
            ended.set_result(None)

    async def close(self) -> None:
        """Wait for those under way."""
        if self._under_way:
            await asyncio.wait(self._under_way)

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
            await asyncio.shield(self._end(session, binding))
        return ImportResult(session.namespace.view(), plan.filled, plan.dropped)

    async def _plan(self, session: ImportSession, policy: ImportPolicy) -> Plan:
        known = self._index.namespaces.by_name.get(session.namespace.name)
        if known is not None:
            check_gathered(session.namespace, known)
        return await make_plan(session, policy, self._write_path.max_value_bytes)

    # -- writing --------------------------------------------------------------------------------------------------

    async def _write(self, session: ImportSession, plan: Plan) -> None:
        """All records, complete ones, joined to the namespace without a name."""
        known = self._index.namespaces.by_name.get(session.namespace.name)
        settings = session.namespace.settings if known is None else known.settings
        began_seconds = self._clock()
        payload_bytes = sum(spec.part.size_bytes for spec in session.specs)
        at_once = min(RECORDS_AT_ONCE, max(1, RECORDS_AT_ONCE_BYTES // max(1, payload_bytes)))
        for begin in range(0, len(plan.keys), at_once):
            self._sessions.use(session)
            step = slice(begin, begin + at_once)
            payloads = await self._payloads(session, plan, step)
            # As of a put that names no time to live: the stream has none to name. Counted from the commit for all.
            expiries = [expiry_of(settings, None, began_seconds) for _ in payloads]
            await self._write_records(session, plan.keys[step], payloads, expiries)
            session.committed_ratio = min(1.0, (begin + len(payloads)) / max(1, len(plan.keys)))

    async def _write_records(
        self, session: ImportSession, keys: list[bytes], payloads: list[bytes], expiries: list[int]
    ) -> None:
        parts = tuple(spec.part for spec in session.specs)
        namespace = session.namespace
        puts: list[PutSession] = []
        try:
            for key, payload, expires_at in zip(keys, payloads, expiries, strict=True):
                put = await self._write_path.begin(
                    namespace.name,
                    key,
                    len(payload),
                    PutTerms(expires_at=expires_at, parts=parts),
                    namespace.namespace_id,
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

    # -- how it ended ---------------------------------------------------------------------------------------------

    async def _end(self, session: ImportSession, binding: asyncio.Task[None] | None) -> None:
        """What the journal has taken is committed, whoever left meanwhile and whatever failed behind it (D2)."""
        if binding is not None:
            await asyncio.wait([binding])
            if not binding.cancelled():
                binding.exception()  # who commits has it, if he is still there
        if session.namespace.settings.importing:
            await self._start_anew(session)
            return
        session.state = ImportState.COMMITTED
        self._sessions.remove(session)
        self._let_go(session)
        session.close_spools()

    async def _start_anew(self, session: ImportSession) -> None:
        """A commit failed: what it wrote goes with its namespace, the session goes on with another one."""
        failed = session.namespace
        self._let_go(session)
        session.committed_ratio = 0.0
        with self._sessions.one_begins():
            try:
                await self._namespaces.drop_import(failed)
                session.namespace = await self._namespaces.begin_import(failed.name, failed.settings)
                session.state = ImportState.OPEN
            except RawblockdError:
                self._sessions.forget(session)

    def _let_go(self, session: ImportSession) -> None:
        """The records are the namespace's own now, or go with it."""
        if session.row_ids:
            self._write_path.space.let_go_all(np.array(session.row_ids, dtype=np.int64))
            session.row_ids = []
