"""The engine's face: get, put, delete, batches, namespaces, checkpoint, acknowledge, status.

Its life is in ``engine_life``, what clients open for a time in ``engine_sessions``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from storage.engine_sessions import EngineSessions
from storage.entries import UNCONDITIONAL, Conditions, Durability, EntryInfo, EntrySketch, PutResult, PutTerms
from storage.entry_reader import EntryReader
from storage.errors import (
    AcknowledgeNothing,
    CheckpointFrozen,
    NamespaceNotFound,
    RawblockdError,
)
from storage.events import Event
from storage.format.parts import Part
from storage.listing import ListingPage
from storage.namespace_settings import DEFAULT_SETTINGS, NamespaceSettings, expiry_of
from storage.namespaces import NamespaceView, check_name
from storage.observation import checkpoint_status, engine_status, recovery_status
from storage.put_session import PutSession
from storage.recovery.report import RecoveryReport, SkippedView
from storage.retry import Retrier, RetryResult
from storage.status import CheckpointStatus, EngineStatus, RecoveryStatus

_new = tuple.__new__

BATCH_SHARE = 8
"""One batch may put this part of the device: its slots are in flight until all of it has arrived."""


class Engine(EngineSessions):
    """Everything that HTTP, metrics and commands ask of the cache. All calls on the loop's thread."""

    # -- entries --------------------------------------------------------------------------------------------------

    async def open_read(
        self,
        namespace: str,
        key: bytes,
        *,
        lease_id: str = "",
        sparse: bool = False,
        known_ids: frozenset[int] = frozenset(),
    ) -> EntryReader:
        """Open an entry for reading, under a lease as that holds it. ``sparse`` reads no more than the header and then
        just the chunks that are asked for: for a part or a range of a value that is read whole otherwise. So is an
        entry read whose write id is one of ``known_ids``.

        Raises EntryNotFound, EntryCorrupt, EntryUnreadable, LeaseNotFound, Busy, Starting.
        """
        self._check_readable()
        leased = self._leased(namespace, lease_id, key)
        return await self._read_path.open(namespace, key, header_only=sparse, known_ids=known_ids, leased=leased)

    def begin_read(
        self,
        namespace: str,
        key: bytes,
        done: Callable[[EntryReader | None], None],
        known_ids: frozenset[int] = frozenset(),
    ) -> bool:
        """Begin the plain read of an entry, whole; True: ``done`` is told. See ``ReadPath.begin``.

        Raises EntryNotFound, KeyInvalid, NamespaceInvalid, Starting.
        """
        self._check_readable()
        return self._read_path.begin(namespace, key, done, known_ids)

    async def head(self, namespace: str, key: bytes, *, lease_id: str = "") -> EntryInfo:
        """What is known of an entry without its payload. Raises as ``open_read``."""
        self._check_readable()
        leased = self._leased(namespace, lease_id, key)
        reader = await self._read_path.open(namespace, key, header_only=True, leased=leased, slides=False)
        reader.close()
        return reader.info

    async def begin_put(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        *,
        content_type: str = "",
        metadata: tuple[tuple[str, str], ...] = (),
        expires_at: int = 0,
        parts: Sequence[Part] = (),
        durability: Durability = Durability.JOURNAL,
        conditions: Conditions = UNCONDITIONAL,
    ) -> PutSession:
        """Reserve slot and buffer for a put. Raises KeyInvalid, NamespaceInvalid, MetadataInvalid, ValueTooLarge, Full,
        NamespacesFull, PreconditionFailed, Busy, ReadOnly, JournalUnavailable, Draining, Starting."""
        try:
            self._check_writable()
            terms = PutTerms(content_type, metadata, expires_at, parts, durability, conditions)
            path = self._write_path
            return path.begin_now(namespace, key, payload_bytes, terms) or await path.begin(
                namespace, key, payload_bytes, terms
            )
        except RawblockdError as error:
            self.counters.put_refused(error.code)
            raise

    def begin_put_now(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        content_type: str = "",
        metadata: tuple[tuple[str, str], ...] = (),
        expires_at: int = 0,
        parts: Sequence[Part] = (),
        durability: Durability = Durability.JOURNAL,
        conditions: Conditions = UNCONDITIONAL,
    ) -> PutSession | None:
        """As ``begin_put``, of a put that has nothing to wait for and nothing special; None of another, which is for
        ``begin_put`` then."""
        try:
            self._check_writable()
            # Straight to the tuple: its own constructor takes twice as long, and every put makes one.
            terms = _new(PutTerms, (content_type, metadata, expires_at, parts, durability, conditions))
            return self._write_path.begin_now(namespace, key, payload_bytes, terms)
        except RawblockdError as error:
            self.counters.put_refused(error.code)
            raise

    async def delete(
        self,
        namespace: str,
        key: bytes,
        *,
        conditions: Conditions = UNCONDITIONAL,
        durability: Durability = Durability.JOURNAL,
    ) -> int:
        """Delete an entry; returns its write id. Raises EntryNotFound, PreconditionFailed, JournalUnavailable.

        Level ``none`` is carried out at level ``journal``: there is no payload to wait for.
        """
        self._check_writable()
        return await self._changes.delete(namespace, key, conditions, durability)

    async def touch(
        self,
        namespace: str,
        key: bytes,
        *,
        expires_at: int,
        conditions: Conditions = UNCONDITIONAL,
        durability: Durability = Durability.JOURNAL,
    ) -> EntrySketch:
        """Give an entry another expiry, 0 for none. Raises EntryNotFound, PreconditionFailed, JournalUnavailable."""
        self._check_writable()
        return await self._changes.touch(namespace, key, expires_at, conditions, durability)

    async def update(
        self,
        namespace: str,
        key: bytes,
        *,
        content_type: str | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
        expires_at: int | None = None,
        conditions: Conditions = UNCONDITIONAL,
        durability: Durability = Durability.JOURNAL,
    ) -> PutResult:
        """Copy an entry's record with other metadata; None keeps. Raises what ``open_read`` and a put raise."""
        self._check_writable()
        return await self._changes.update(
            namespace,
            key,
            content_type=content_type,
            metadata=metadata,
            expires_at=expires_at,
            conditions=conditions,
            durability=durability,
        )

    # -- many at once ---------------------------------------------------------------------------------------------

    @property
    def max_batch_bytes(self) -> int:
        """Payload bytes that one batch may put."""
        self._check_readable()
        geometry = self._index.geometry
        return geometry.slabs * geometry.slot_area_bytes // BATCH_SHARE

    def exists_many(self, namespace: str, keys: Sequence[bytes]) -> list[EntrySketch | RawblockdError | None]:
        """What is known of entries without I/O, in order: None where there is none, KeyInvalid for what is no key."""
        self._check_readable()
        return self._parts.batch_reads.sketches(namespace, keys)

    def open_many(
        self, namespace: str, keys: Sequence[bytes], *, lease_id: str = "", until_error: bool = False
    ) -> AsyncGenerator[list[EntryReader | RawblockdError], None]:
        """Readers or errors, some at a time, together one for each key, in order, with reads ahead; ``until_error``: up
        to the first error. Raises LeaseNotFound, Starting.

        The caller closes the readers of a list before it asks for the next one; they are closed by that at the latest,
        except those that are kept.
        """
        self._check_readable()
        if lease_id:
            self._parts.leases.namespace_id(lease_id, namespace)
            self._parts.leases.find(lease_id, bytes(16))
        leased = (lambda key: self._leased(namespace, lease_id, key)) if lease_id else None
        return self._parts.batch_reads.open(namespace, keys, leased, until_error=until_error)

    async def commit_many(self, puts: Sequence[PutSession]) -> list[PutResult | RawblockdError]:
        """Finish staged puts by one write of the journal: the result or the error of each, in order."""
        self._check_writable()
        return await self._parts.batch_writes.commit(puts)

    async def delete_many(
        self, namespace: str, keys: Sequence[bytes], *, durability: Durability = Durability.JOURNAL
    ) -> list[int | RawblockdError]:
        """Delete many entries: the write id or the error of each key, in order."""
        self._check_writable()
        return await self._changes.delete_many(namespace, keys, durability)

    async def list_entries(
        self, namespace: str, *, prefix: bytes = b"", cursor: str = "", limit: int = 100
    ) -> ListingPage:
        """A page of a namespace's entries. Raises NamespaceNotFound, ParameterInvalid, Busy."""
        self._check_readable()
        return await self._parts.listings.page(namespace, prefix, cursor, limit)

    # -- namespaces -----------------------------------------------------------------------------------------------

    def namespace_settings(self, namespace: str) -> NamespaceSettings:
        """The settings of a namespace; of one that does not exist, what it would have."""
        known = self._index.namespaces.by_name.get(namespace) if self._machine is not None else None
        return DEFAULT_SETTINGS if known is None else known.settings

    def expires_at(self, namespace: str, ttl_seconds: int | None) -> int:
        """When a put now expires, 0 for never; without a TTL of its own it takes its namespace's."""
        return expiry_of(self.namespace_settings(namespace), ttl_seconds, self._clock())

    def namespace(self, namespace: str) -> NamespaceView:
        """Raises NamespaceInvalid, NamespaceNotFound."""
        self._check_readable()
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
            raise NamespaceNotFound(namespace)
        return known.view()

    def namespaces(self) -> list[NamespaceView]:
        self._check_readable()
        return [namespace.view() for namespace in self._index.namespaces.by_name.values()]

    async def set_namespace(self, namespace: str, settings: NamespaceSettings) -> tuple[NamespaceView, bool]:
        """Give a namespace settings, making it if need be; its view, and whether it is new.

        Raises ParameterInvalid, NamespaceInvalid, NamespacesFull, JournalUnavailable.
        """
        self._check_writable()
        return await self._parts.namespaces.set(namespace, settings)

    async def wipe_namespace(self, namespace: str) -> NamespaceView:
        """End a namespace with all its entries; what it was. Raises NamespaceNotFound, JournalUnavailable."""
        self._check_writable()
        return await self._parts.namespaces.wipe(namespace)

    # -- operator -------------------------------------------------------------------------------------------------

    async def checkpoint(self) -> CheckpointStatus:
        """Write a checkpoint now. Raises CheckpointFrozen while partial recovery lasts, DeviceFailed, Busy."""
        self._check_writable()
        if self._is_partial():
            raise CheckpointFrozen
        await self._maintenance.checkpoint()
        assert self._machine is not None
        return checkpoint_status(self._machine, self.counters)

    async def acknowledge(self) -> RecoveryStatus:
        """Accept the loss: free quarantined slots, write a checkpoint, resume automatic ones (R5).

        Raises AcknowledgeNothing, JournalUnavailable, DeviceFailed.
        """
        self._check_writable()
        assert self._partial is not None and self._machine is not None
        if not self._partial.open and not sum(self._index.quarantined):
            raise AcknowledgeNothing
        await self._partial.acknowledge()
        self._space.trust_free_slots()
        await self._maintenance.checkpoint()
        return recovery_status(self._machine, 1.0)

    async def retry(self) -> RetryResult:
        """Try quarantined slots again (R5). Raises AcknowledgeNothing, JournalUnavailable, DeviceFailed, Busy."""
        self._check_writable()
        assert self._partial is not None
        if not self._partial.open and not sum(self._index.quarantined):
            raise AcknowledgeNothing
        was_open = self._partial.open
        retrier = Retrier(
            self._device,
            self._index,
            self._commit,
            self._internal,
            self._identity,
            self._options.wait_timeout_seconds,
        )
        result = await self._partial.retry(retrier)
        if was_open and not self._partial.open:
            self._space.trust_free_slots()
            await self._maintenance.checkpoint()
        return result

    @property
    def recovery_report(self) -> RecoveryReport:
        """What the start found. There is none before it has ended."""
        assert self._machine is not None
        return self._machine.report

    def skipped(self, start: int, limit: int) -> list[SkippedView]:
        """A page of the report's skipped entries."""
        return self._partial.skipped(start, limit) if self._partial is not None else []

    def status(self) -> EngineStatus:
        """One consistent picture."""
        return engine_status(
            self._machine,
            self._device,
            self.counters,
            state=self.state,
            reasons=self.reasons,
            progress_ratio=self.progress.ratio,
        )

    async def event_keys(self, events: Sequence[Event]) -> list[Event]:
        """The events with the keys that reading record headers can still tell."""
        assert self._machine is not None
        return await self._machine.event_keys.add(events)

    async def flush(self) -> None:
        """Make everything acknowledged durable against power loss, and free what limbo may give."""
        await self._maintenance.flush()

    async def expire(self) -> None:
        """Free every expired entry now."""
        await self._maintenance.expire()
