"""The engine's face: start, get, put, delete, checkpoint, acknowledge, status, stop.

All state belongs to one event loop; there are no locks, and a mutation is ordinary code between two awaits. The parts
are joined here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from storage.assembly import Machine, Surroundings, assemble
from storage.buffers import BufferArena
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import UNCONDITIONAL, Conditions, Durability, EntryInfo
from storage.errors import (
    AcknowledgeNothing,
    CheckpointFrozen,
    DeviceFailed,
    Draining,
    EntryNotFound,
    RawblockdError,
    ReadOnly,
    Starting,
    Unavailable,
)
from storage.health import DeviceHealth
from storage.keys import check_key
from storage.observation import checkpoint_status, engine_status, recovery_status
from storage.options import EngineOptions
from storage.partial import PartialRecovery
from storage.put_session import PutSession
from storage.read_path import EntryReader
from storage.recovery.recover import Recovered, RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress, RecoveryReport, SkippedView
from storage.retry import Retrier, RetryResult
from storage.starting import write_start
from storage.status import CheckpointStatus, EngineState, EngineStatus, Reason, RecoveryStatus

log = logging.getLogger("rawblockd.storage")

OVERDUE_INTERVALS = 3


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
        around = Surroundings(self._device, options, self.counters, self._health, self._clock, self._arena, self.step)
        machine = assemble(recovered, around)
        self._memory.callback(machine.internal.close)
        self._run_on(machine)
        self.step("start_recovered")
        await write_start(self._device, recovered, machine, self.step)
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
        self._machine = machine
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
        if self._machine is None:
            await self._device.stop()
            self._phase = EngineState.STOPPED
            return
        if running:
            await self._maintenance.stop()
            await self._write_path.close()
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
        elif self._is_overdue():
            reasons.append(Reason.CHECKPOINT_OVERDUE)
        if sum(self._index.quarantined) and not self._is_partial():
            reasons.append(Reason.CORRUPTION)
        if self._journal.unavailable:
            reasons.append(Reason.JOURNAL_UNAVAILABLE)
        if self._health.failing:
            reasons.append(Reason.DEVICE_ERRORS)
        return reasons

    def _is_overdue(self) -> bool:
        newest = self._checkpointer.newest
        if newest is None or newest.header is None or not self._options.background:
            return False
        age = self._clock() - newest.header.written_ms / 1000
        changed = self._journal.published_seq > newest.header.seq
        return changed and age > OVERDUE_INTERVALS * self._options.checkpoint_interval_seconds

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

    async def open_read(self, namespace: str, key: bytes) -> EntryReader:
        """Open an entry for reading. Raises EntryNotFound, EntryCorrupt, EntryUnreadable, Busy, Starting."""
        self._check_readable()
        return await self._read_path.open(namespace, key)

    async def head(self, namespace: str, key: bytes) -> EntryInfo:
        """What is known of an entry without its payload. Raises as ``open_read``."""
        self._check_readable()
        reader = await self._read_path.open(namespace, key, header_only=True)
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
        durability: Durability = Durability.JOURNAL,
        conditions: Conditions = UNCONDITIONAL,
    ) -> PutSession:
        """Reserve slot and buffer for a put. Raises KeyInvalid, NamespaceInvalid, MetadataInvalid, ValueTooLarge, Full,
        NamespacesFull, PreconditionFailed, Busy, ReadOnly, JournalUnavailable, Draining, Starting."""
        self._check_writable()
        try:
            return await self._write_path.begin(
                namespace,
                key,
                payload_bytes,
                content_type=content_type,
                metadata=metadata,
                expires_at=expires_at,
                durability=durability,
                conditions=conditions,
            )
        except RawblockdError:
            self.counters.puts["refused"] += 1
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
        check_key(key)
        known = self._index.namespaces.by_name.get(namespace)
        digest = self._identity.digest(known.namespace_id, key) if known is not None else bytes(16)
        earlier = self._write_path.behind(digest)
        if earlier is not None:
            await asyncio.wait([earlier])
        await self._commit.wait_for_conditions(digest, conditions)
        deleted = self._commit.delete(digest, conditions)
        if deleted is None:
            # What was there may be gone by a row that is still queued: readers see the entry until it is durable.
            pending = self._commit.pending(digest)
            if pending is not None and pending.done is not None:
                await asyncio.shield(pending.done)
            absent = self._commit.delete_absent(digest)
            if absent is not None and absent.done is not None:
                await asyncio.shield(absent.done)
            self.counters.deletes["missing"] += 1
            raise EntryNotFound
        unit, write_id = deleted
        assert unit.done is not None
        try:
            block = await asyncio.shield(unit.done)
            if durability is Durability.FLUSH:
                await self._journal.flush_through(block)
        except (Unavailable, DeviceFailed):
            self.counters.deletes["failed"] += 1
            raise
        self.counters.deletes["deleted"] += 1
        return write_id

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

    async def flush(self) -> None:
        """Make everything acknowledged durable against power loss, and free what limbo may give."""
        await self._maintenance.flush()

    async def expire(self) -> None:
        """Free every expired entry now."""
        await self._maintenance.expire()
