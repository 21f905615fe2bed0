"""An engine's life: recover, serve, drain, stop; and why its state is what it is.

All state belongs to one event loop; there are no locks, and a mutation is ordinary code between two awaits. The parts
are joined in ``storage.assembly`` and run from here.
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
from storage.errors import (
    DeviceFailed,
    Draining,
    ReadOnly,
    SettingsInvalid,
    Starting,
    Unavailable,
)
from storage.events import EventFeed
from storage.eviction import make_eviction
from storage.health import DeviceHealth
from storage.heap import give_back_freed_memory
from storage.options import EngineOptions
from storage.partial import PartialRecovery
from storage.recovery.recover import Recovered, RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress
from storage.starting import write_start
from storage.status import EngineState, Reason

log = logging.getLogger("rawblockd.storage")

_READY, _DRAINING = EngineState.READY, EngineState.DRAINING
"""Looked at by every request: a member of an enumeration takes ten times as long to look up as a global name."""


class EngineLife:
    """What an engine is from its start to its stop, and what state it is in."""

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
        self.make_arena: Callable[[], BufferArena] = lambda: BufferArena(self._options.buffer_bytes)
        """Gives the memory for I/O, as much as the options say; set before ``start`` by who makes it ahead."""

    # -- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, then serve. Raises DeviceRefused, RecoveryRefused, DeviceFailed, Busy, and SettingsInvalid where
        there is not as much memory as ``buffer_bytes`` says.

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
        # Touching the arena's pages takes up to 0.3 s per 256 MiB: not on the loop, and while the recovery runs.
        making = asyncio.create_task(asyncio.to_thread(self.make_arena))
        try:
            recovered = await asyncio.to_thread(self._recover, limits)
        finally:
            # Why a recovery refused is not to be hidden by memory that is wanting, too.
            await asyncio.wait([making])
            if making.exception() is None:
                self._arena = making.result()
                self._memory.callback(self._arena.close)
        lack = making.exception()
        if isinstance(lack, OSError):
            raise SettingsInvalid(f"buffer_bytes = {options.buffer_bytes}: {lack.strerror}", settings=["buffer_bytes"])
        making.result()
        self._device.start(asyncio.get_running_loop())
        around = Surroundings(
            self._device, options, self.counters, self._health, self._clock, self._arena, self.step, self.events
        )
        machine = assemble(recovered, around)
        self._memory.callback(machine.internal.close)
        self._run_on(machine)
        self.step("start_recovered")
        await write_start(self._device, recovered, machine, self.step)
        if not machine.partial.unknown_loss:  # else one may have been committed, by a record that is lost (R4)
            for gathered in self._index.namespaces.importing():
                await machine.namespaces.drop_import(gathered)
        machine.namespaces.free_soon()
        self._space.settle()
        await self._health.self_test(self._device, self._index.geometry, self._internal)
        return recovered

    def _recover(self, limits: RecoveryLimits) -> Recovered:
        """All that takes longer with more entries, on a thread of its own."""
        recovered = recover(self._device, limits, self.progress, self._clock())
        index = recovered.index
        index.eviction = make_eviction(self._options.eviction, index.table, index.namespaces)
        give_back_freed_memory()
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
            self._checkpointer.hurry()
            await self._maintenance.stop()
            await self._write_path.close()
            await self._parts.imports.close()
            await self._parts.namespaces.close()
            await self._commit.quotas.close()
            await self._space.close()
        await self._journal.close()
        if running:
            await self._last_writes(checkpoint=checkpoint)
            await self._checkpointer.close()
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
        if self._machine is None or self._phase is not _READY:
            return []
        reasons: list[Reason] = []
        if self._is_partial():
            reasons.append(Reason.PARTIAL_RECOVERY)
        elif self._maintenance.checkpoint_failed:
            reasons.append(Reason.CHECKPOINT_FAILING)
        elif self._maintenance.checkpoint_overdue:
            reasons.append(Reason.CHECKPOINT_OVERDUE)
        if sum(self._index.quarantined) and not self._is_partial():
            reasons.append(Reason.CORRUPTION)
        for copy in self._checkpointer.copies:  # each request asks for the state: no generator here
            if copy.damaged:
                reasons.append(Reason.COPY_DAMAGED)
                break
        if self._maintenance.scrubber.superblock_damaged:
            reasons.append(Reason.SUPERBLOCK_DAMAGED)
        if self._journal.unavailable:
            reasons.append(Reason.JOURNAL_UNAVAILABLE)
        if self._health.failing:
            reasons.append(Reason.DEVICE_ERRORS)
        return reasons

    @property
    def phase(self) -> EngineState:
        """As ``state``, but ``ready`` whatever it suffers from: quick to ask for."""
        return self._phase

    @property
    def state(self) -> EngineState:
        if self._phase is not _READY:
            return self._phase
        reasons = self.reasons
        if not reasons:
            return _READY
        if Reason.JOURNAL_UNAVAILABLE in reasons or Reason.DEVICE_ERRORS in reasons:
            return EngineState.READ_ONLY
        return EngineState.DEGRADED

    def _check_readable(self) -> None:
        phase = self._phase
        if (phase is not _READY and phase is not _DRAINING) or self._machine is None:
            raise Starting if phase is not EngineState.STOPPED else Draining

    def _check_writable(self) -> None:
        if self._phase is not _READY or self._machine is None:
            self._check_readable()
            raise Draining
        if self._health.failing:
            raise ReadOnly(self._health.why)
