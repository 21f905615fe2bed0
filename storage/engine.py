"""The engine's face: start, get, put, delete, checkpoint, acknowledge, status, stop.

All state belongs to one event loop; there are no locks, and a mutation is ordinary code between two awaits. The parts
are joined here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from storage.assembly import Machine, Surroundings, assemble
from storage.buffers import BufferArena
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import UNCONDITIONAL, Conditions, Durability, EntryInfo, EntrySketch, PutResult
from storage.errors import (
    AcknowledgeNothing,
    CheckpointFrozen,
    DeviceFailed,
    Draining,
    NamespaceNotFound,
    RawblockdError,
    ReadOnly,
    Starting,
    Unavailable,
)
from storage.events import Event, EventFeed
from storage.format.parts import Part
from storage.format.row import Row
from storage.health import DeviceHealth
from storage.imports import Difference, ImportPolicy, ImportResult, ImportView, Upload
from storage.leases import Held, LeaseResult, LeaseView
from storage.listing import ListingPage
from storage.namespace_settings import DEFAULT_SETTINGS, NamespaceSettings, expiry_of
from storage.namespaces import NamespaceView, check_name
from storage.observation import checkpoint_status, engine_status, recovery_status
from storage.options import EngineOptions
from storage.partial import PartialRecovery
from storage.put_session import PutSession
from storage.read_path import EntryReader
from storage.recovery.recover import Recovered, RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress, RecoveryReport, SkippedView
from storage.retry import Retrier, RetryResult
from storage.snapshots import SnapshotView
from storage.starting import write_start
from storage.status import CheckpointStatus, EngineState, EngineStatus, Reason, RecoveryStatus

log = logging.getLogger("rawblockd.storage")

EXPORT_STEP = 4096
"""Entries of an export whose rows are decoded at a time: 1 MB."""
BATCH_SHARE = 8
"""One batch may put this part of the device: its slots are in flight until all of it has arrived."""


class Engine:
    def __init__(
        self, device: BlockDevice, options: EngineOptions | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._device = device
        self._options = options or EngineOptions()
        self._clock = clock
        self._phase = EngineState.STARTING
        self.progress = RecoveryProgress()
        self.counters = EngineCounters()
        self.events = EventFeed(self._options.event_buffer_bytes)
        self._health = DeviceHealth()
        self._machine: Machine | None = None
        self._memory = contextlib.ExitStack()
        self._partial: PartialRecovery | None = None
        self.step: Callable[[str], None] = lambda _: None
        """Told the named points a crash test stops at; set before ``start``."""

    # -- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, then serve. Raises DeviceRefused, RecoveryRefused, DeviceFailed, Busy.

        After a start that failed the state is ``failed``; nothing runs any more, and no memory is held.
        """
        self._phase = EngineState.RECOVERING
        ready = False
        try:
            recovered = await self._make_ready()
            ready = True
        finally:
            if not ready:
                self._phase = EngineState.FAILED
                await self._give_up()
        self.counters.corruptions["recovery"] += len(recovered.new_skipped)
        self._maintenance.start()
        self._phase = EngineState.READY
        self.events.open()
        self._log_start(recovered)

    async def _make_ready(self) -> Recovered:
        """Recover, make the parts, and write what a start writes."""
        options = self._options
        limits = RecoveryLimits(
            options.max_skipped_ratio, options.max_skipped_floor, options.accept_loss, options.adopt_seq
        )
        recovered = await asyncio.to_thread(recover, self._device, limits, self.progress, self._clock())
        # Touching the arena's pages takes 0.6 s per 256 MiB: not on the loop.
        self._arena = await asyncio.to_thread(BufferArena, options.buffer_bytes)
        self._memory.callback(self._arena.close)
        self._device.start(asyncio.get_running_loop())
        around = Surroundings(
            self._device, options, self.counters, self._health, self._clock, self._arena, self.step, self.events
        )
        machine = assemble(recovered, around)
        self._memory.callback(machine.internal.close)
        self._run_on(machine)
        self.step("start_recovered")
        await write_start(self._device, recovered, machine, self.step)
        for gathered in self._index.namespaces.importing():
            await machine.namespaces.drop_import(gathered)
        machine.namespaces.free_soon()
        self._space.settle()
        await self._health.self_test(self._device, self._index.geometry, self._internal)
        return recovered

    async def _give_up(self) -> None:
        """End what a start that failed has begun."""
        if self._machine is not None:
            await self._journal.close()  # else it would try on and on to write to a device that is given up
        self._memory.close()

    def _run_on(self, machine: Machine) -> None:
        """Take the parts as the engine's own."""
        self._machine = self._parts = machine
        self._changes = machine.entry_changes
        self._index, self._identity = machine.index, machine.identity
        self._internal = machine.internal
        self._commit, self._journal, self._space = machine.commit, machine.journal, machine.space
        self._read_path, self._write_path = machine.read_path, machine.write_path
        self._partial, self._checkpointer = machine.partial, machine.checkpointer
        self.scrubber, self._maintenance = machine.scrubber, machine.maintenance

    def _log_start(self, recovered: Recovered) -> None:
        report = recovered.report
        fields = {
            "recovered": report.recovered,
            "repaired": sum(report.repaired.values()),
            "skipped": len(report.skipped),
            "lost_unflushed": report.lost_unflushed,
            "journal": report.journal,
            "duration_seconds": round(report.duration_seconds, 3),
        }
        if self._is_partial():
            reasons = {reason: count for reason, count in report.by_reason().items() if count}
            fields |= {"skipped_by_reason": reasons, "unknown_loss": report.unknown_loss}
            log.warning("partial recovery: checkpoints are frozen until it is acknowledged", extra={"fields": fields})
        else:
            log.info("recovered", extra={"fields": fields})

    async def stop(self, *, checkpoint: bool = True) -> None:
        """Refuse mutations, finish what was accepted, write a last checkpoint unless frozen, let go of the device."""
        running = self._phase is EngineState.READY
        self._phase = EngineState.DRAINING
        self.events.close()
        if self._machine is None:
            await self._device.stop()
            self._phase = EngineState.STOPPED
            return
        if running:
            await self._maintenance.stop()
            await self._write_path.close()
            await self._parts.imports.close()
            await self._parts.batch_writes.close()
            await self._parts.namespaces.close()
            await self._space.close()
        await self._journal.close()
        if running:
            await self._last_writes(checkpoint=checkpoint)
        await self._device.stop()
        self._memory.close()
        self._phase = EngineState.STOPPED

    async def _last_writes(self, *, checkpoint: bool) -> None:
        try:
            newest = self._checkpointer.newest
            changed = newest is None or newest.header is None or self._journal.published_seq > newest.header.seq
            if checkpoint and changed and not self._is_partial() and not self._journal.unavailable:
                await self._maintenance.checkpoint()
            else:
                await self._journal.flush()
        except (DeviceFailed, Unavailable) as error:
            # The journal has everything; the next start replays it.
            log.error("the last checkpoint failed", extra={"fields": {"error": str(error)}})

    # -- state ----------------------------------------------------------------------------------------------------

    def _is_partial(self) -> bool:
        return self._partial is not None and self._partial.open

    @property
    def reasons(self) -> list[Reason]:
        """Why the state is not plainly ``ready``; empty if it is."""
        if self._machine is None or self._phase is not EngineState.READY:
            return []
        reasons = []
        if self._is_partial():
            reasons.append(Reason.PARTIAL_RECOVERY)
        elif self._maintenance.checkpoint_failed:
            reasons.append(Reason.CHECKPOINT_FAILING)
        elif self._maintenance.checkpoint_overdue:
            reasons.append(Reason.CHECKPOINT_OVERDUE)
        if sum(self._index.quarantined) and not self._is_partial():
            reasons.append(Reason.CORRUPTION)
        if any(copy.damaged for copy in self._checkpointer.copies):
            reasons.append(Reason.COPY_DAMAGED)
        if self._maintenance.scrubber.superblock_damaged:
            reasons.append(Reason.SUPERBLOCK_DAMAGED)
        if self._journal.unavailable:
            reasons.append(Reason.JOURNAL_UNAVAILABLE)
        if self._health.failing:
            reasons.append(Reason.DEVICE_ERRORS)
        return reasons

    @property
    def state(self) -> EngineState:
        if self._phase is not EngineState.READY:
            return self._phase
        reasons = self.reasons
        if Reason.JOURNAL_UNAVAILABLE in reasons or Reason.DEVICE_ERRORS in reasons:
            return EngineState.READ_ONLY
        return EngineState.DEGRADED if reasons else EngineState.READY

    def _check_readable(self) -> None:
        if self._phase not in (EngineState.READY, EngineState.DRAINING) or self._machine is None:
            raise Starting if self._phase is not EngineState.STOPPED else Draining

    def _check_writable(self) -> None:
        self._check_readable()
        if self._phase is EngineState.DRAINING:
            raise Draining
        if self._health.failing:
            raise ReadOnly(self._health.why)

    # -- entries --------------------------------------------------------------------------------------------------

    async def open_read(self, namespace: str, key: bytes, *, lease_id: str = "", sparse: bool = False) -> EntryReader:
        """Open an entry for reading, under a lease as that holds it. ``sparse`` reads no more than the header and then
        just the chunks that are asked for: for a part or a range of a value that is read whole otherwise.

        Raises EntryNotFound, EntryCorrupt, EntryUnreadable, LeaseNotFound, Busy, Starting.
        """
        self._check_readable()
        leased = self._leased(namespace, lease_id, key)
        return await self._read_path.open(namespace, key, header_only=sparse, leased=leased)

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
            return await self._write_path.begin(
                namespace,
                key,
                payload_bytes,
                content_type=content_type,
                metadata=metadata,
                expires_at=expires_at,
                parts=parts,
                durability=durability,
                conditions=conditions,
            )
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
        self, namespace: str, keys: Sequence[bytes], *, lease_id: str = ""
    ) -> AsyncGenerator[tuple[int, EntryReader | RawblockdError], None]:
        """A reader or an error for each key, in order, with reads ahead. Raises LeaseNotFound, Starting.

        The caller closes a reader before it asks for the next one.
        """
        self._check_readable()
        if lease_id:
            self._parts.leases.namespace_id(lease_id, namespace)
            self._parts.leases.find(lease_id, bytes(16))
        return self._parts.batch_reads.open(namespace, keys, lambda key: self._leased(namespace, lease_id, key))

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

    async def snapshot_digests(self, snapshot_id: str) -> bytes:
        """Key digests of all entries of a snapshot, 16 bytes each, ascending. Raises SnapshotNotFound."""
        self._check_readable()
        digests = await asyncio.to_thread(self._parts.snapshots.find(snapshot_id).digests)
        return digests.tobytes()

    def export_entries(self, snapshot_id: str, *, start: int = 0, since: int = 0) -> int:
        """How many entries ``export`` would give. Raises SnapshotNotFound."""
        self._check_readable()
        return int((self._parts.snapshots.find(snapshot_id).changed_since(since) >= start).sum())

    async def export(
        self, snapshot_id: str, *, start: int = 0, since: int = 0
    ) -> AsyncGenerator[tuple[int, Row, EntryReader | RawblockdError], None]:
        """The entries of a snapshot from position ``start`` on, of those that changed after seq ``since``: position,
        row, and a reader or an error. Raises SnapshotNotFound, also in the middle, when its time is over.

        Positions are those of the snapshot, so that an export that broke off goes on behind the last one it gave.
        """
        self._check_readable()
        snapshot = self._parts.snapshots.find(snapshot_id)
        positions = snapshot.changed_since(since)
        positions = positions[positions >= start]
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
        self.namespace(namespace)
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
