"""What clients open for a time: leases, snapshots, imports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from storage.engine_life import EngineLife
from storage.entry_reader import EntryReader
from storage.errors import (
    NamespaceNotFound,
    RawblockdError,
)
from storage.format.row import Row
from storage.imports.session import Difference, ImportPolicy, ImportResult, ImportView
from storage.imports.upload import Upload
from storage.leases import Held, LeaseResult, LeaseView
from storage.namespaces import check_name
from storage.snapshots import SnapshotView

EXPORT_STEP = 512
"""Entries of an export whose rows are decoded at a time: 1 ms."""
DIGESTS_STEP = 65_536
"""Digests given at a time: copying them keeps the interpreter for 0.2 ms."""


class EngineSessions(EngineLife):
    """An engine's calls for what holds slots until it is ended."""

    # -- leases ---------------------------------------------------------------------------------------------------

    def lease(
        self, namespace: str, keys: Sequence[bytes], *, ttl_seconds: float, owner: str = "", lease_id: str = ""
    ) -> LeaseResult:
        """Hold the entries of these keys that are there. Raises ParameterInvalid, LeaseNotFound, LeasesFull,
        SpaceHeld."""
        self._check_writable()
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
        namespace_id = known.namespace_id if known is not None else 0
        entries = [self._parts.batch_reads.find(namespace_id, key) if namespace_id else None for key in keys]
        return self._parts.leases.take(namespace, namespace_id, entries, ttl_seconds, owner, lease_id)

    def release(self, lease_id: str) -> None:
        """End a lease. Raises LeaseNotFound."""
        self._check_readable()
        self._parts.leases.release(lease_id)

    def leases(self) -> list[LeaseView]:
        self._check_readable()
        self._parts.leases.end_expired()
        return self._parts.leases.views()

    # -- snapshots ------------------------------------------------------------------------------------------------

    async def take_snapshot(self, namespace: str, *, ttl_seconds: float, owner: str = "") -> SnapshotView:
        """Fix a namespace as it is when this is called. Raises NamespaceNotFound, ParameterInvalid, LeasesFull."""
        self._check_writable()
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
            raise NamespaceNotFound(namespace)
        return await self._parts.snapshots.take(known, ttl_seconds, owner)

    def snapshot(self, snapshot_id: str) -> SnapshotView:
        """Raises SnapshotNotFound."""
        self._check_readable()
        return self._parts.snapshots.view(snapshot_id)

    def snapshots(self) -> list[SnapshotView]:
        self._check_readable()
        return self._parts.snapshots.views()

    def end_snapshot(self, snapshot_id: str) -> None:
        """Raises SnapshotNotFound."""
        self._check_readable()
        self._parts.snapshots.end(snapshot_id)

    async def snapshot_digests(self, snapshot_id: str) -> AsyncGenerator[bytes, None]:
        """Key digests of all entries of a snapshot, 16 bytes each, ascending, a megabyte at a time. Raises
        SnapshotNotFound."""
        self._check_readable()
        digests = await asyncio.to_thread(self._parts.snapshots.find(snapshot_id).digests)
        for begin in range(0, len(digests), DIGESTS_STEP):
            yield digests[begin : begin + DIGESTS_STEP].tobytes()

    async def export_entries(self, snapshot_id: str, *, start: int = 0, since: int = 0) -> int:
        """How many entries ``export`` would give. Raises SnapshotNotFound."""
        self._check_readable()
        return len(await asyncio.to_thread(self._parts.snapshots.find(snapshot_id).changed_since, since, start))

    async def export(
        self, snapshot_id: str, *, start: int = 0, since: int = 0
    ) -> AsyncGenerator[tuple[int, Row, EntryReader | RawblockdError], None]:
        """The entries of a snapshot from position ``start`` on, of those that changed after seq ``since``: position,
        row, and a reader or an error. Raises SnapshotNotFound, also in the middle, when its time is over.

        Positions are those of the snapshot, so that an export that broke off goes on behind the last one it gave.
        """
        self._check_readable()
        snapshot = self._parts.snapshots.find(snapshot_id)
        positions = await asyncio.to_thread(snapshot.changed_since, since, start)
        for begin in range(0, len(positions), EXPORT_STEP):
            part = positions[begin : begin + EXPORT_STEP]
            held = list(snapshot.held(part))
            async with contextlib.aclosing(self._parts.batch_reads.open_held(held)) as readers:
                async for offset, reader in readers:
                    self._parts.snapshots.find(snapshot_id)
                    self._parts.snapshots.used(snapshot)
                    yield int(part[offset]), held[offset][1], reader

    # -- imports --------------------------------------------------------------------------------------------------

    async def begin_import(self, namespace: str, *, ttl_seconds: float, owner: str = "") -> ImportView:
        """Begin to gather the new content of a namespace with a schema. Raises NamespaceNotFound, ParameterInvalid,
        ImportTooLarge, JournalUnavailable."""
        self._check_writable()
        return await self._parts.imports.begin(namespace, ttl_seconds, owner)

    def begin_import_part(self, import_id: str, part: str) -> Upload:
        """Begin to receive a part. Raises ImportNotFound, ImportBusy, PartsInvalid."""
        self._check_writable()
        return self._parts.imports.begin_part(import_id, part)

    async def import_differences(self, import_id: str) -> list[Difference]:
        """For each pair of parts the keys that one has and the other lacks. Raises ImportNotFound."""
        self._check_readable()
        return await self._parts.imports.differences(import_id)

    async def commit_import(self, import_id: str, policy: ImportPolicy) -> ImportResult:
        """Publish an import in place of what the namespace held. Raises ImportNotFound, ImportBusy, ImportRefused,
        PartsInvalid, QuotaExceeded, and what puts raise."""
        self._check_writable()
        return await self._parts.imports.commit(import_id, policy)

    async def abort_import(self, import_id: str) -> None:
        """End an import without a trace. Raises ImportNotFound, ImportBusy."""
        self._check_writable()
        await self._parts.imports.abort(import_id)

    def import_view(self, import_id: str) -> ImportView:
        """Raises ImportNotFound."""
        self._check_readable()
        return self._parts.imports.view(import_id)

    def imports(self) -> list[ImportView]:
        self._check_readable()
        return self._parts.imports.views()

    def _leased(self, namespace: str, lease_id: str, key: bytes) -> Held | None:
        """What a lease holds of a key; None without one. Raises LeaseNotFound."""
        if not lease_id:
            return None
        leases = self._parts.leases
        namespace_id = leases.namespace_id(lease_id, namespace)
        held = leases.find(lease_id, self._identity.digest(namespace_id, key))
        known = self._index.namespaces.by_name.get(namespace)
        if held is None and known is not None and known.namespace_id != namespace_id:
            # Extended after the namespace was wiped, or made: it may hold something under the new id.
            held = leases.find(lease_id, self._identity.digest(known.namespace_id, key))
        return held
