"""Joining the engine's parts: what each of them is given, in the order they depend on one another."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from storage.announcing import Announcer
from storage.batch_reads import BatchReads
from storage.batch_writes import BatchWrites
from storage.buffers import BufferArena
from storage.checkpoint.checkpointer import Checkpointer
from storage.commit import Commit
from storage.compaction import Compactor
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entry_changes import EntryChanges
from storage.event_keys import EventKeys
from storage.events import EventFeed
from storage.examine import FreeSlotExaminer
from storage.health import DeviceHealth
from storage.holds import Holds
from storage.identity import Identity
from storage.imports.imports import Imports
from storage.index import Index
from storage.journal import GROUP_BYTES, Journal
from storage.known_keys import KnownKeys
from storage.leases import Leases
from storage.listing import Listings
from storage.maintenance import Maintenance
from storage.namespace_changes import NamespaceChanges
from storage.options import EngineOptions
from storage.partial import PartialRecovery
from storage.read_path import ReadPath
from storage.recovery.recover import Recovered
from storage.recovery.report import RecoveryReport
from storage.scrubber import Scrubber
from storage.slab_headers import SlabHeaders
from storage.snapshots import Snapshots
from storage.space import Space
from storage.write_path import WritePath

INTERNAL_BUFFER_BYTES = 8 << 20
"""For journal, checkpoint and examination, never a request: 2 x 1 MiB of pages, a stream of 1 MiB, the journal's."""
SCRUB_UNLIMITED_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an engine is made in: the device, what it was told, and what outlives a start."""

    device: BlockDevice
    options: EngineOptions
    counters: EngineCounters
    health: DeviceHealth
    clock: Callable[[], float]
    arena: BufferArena
    step: Callable[[str], None]
    events: EventFeed


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of a running engine."""

    uuid: bytes
    report: RecoveryReport
    index: Index
    identity: Identity
    arena: BufferArena
    internal: BufferArena
    commit: Commit
    journal: Journal
    space: Space
    read_path: ReadPath
    write_path: WritePath
    batch_reads: BatchReads
    batch_writes: BatchWrites
    entry_changes: EntryChanges
    namespaces: NamespaceChanges
    leases: Leases
    snapshots: Snapshots
    imports: Imports
    listings: Listings
    partial: PartialRecovery
    checkpointer: Checkpointer
    scrubber: Scrubber
    maintenance: Maintenance
    health: DeviceHealth
    clock: Callable[[], float]
    started_monotonic: float
    event_keys: EventKeys


@dataclass(frozen=True, slots=True)
class _Core:
    """What every other part leans on."""

    index: Index
    identity: Identity
    internal: BufferArena
    commit: Commit
    journal: Journal
    space: Space


def assemble(recovered: Recovered, around: Surroundings) -> Machine:
    """Make the parts from what was recovered. Nothing runs yet, nothing is written."""
    later: list[Maintenance] = []
    core = _core(recovered, around, lambda: later[0].journal_grew())
    index, commit, journal, space = core.index, core.commit, core.journal, core.space
    read_path = _read_path(core, around)
    namespaces = NamespaceChanges(index, commit)
    write_path = _write_path(core, around, namespaces)
    batch_writes = BatchWrites(write_path, commit)
    leases = Leases(index, space.let_go, time.monotonic)
    snapshots = Snapshots(index, lambda: journal.published_seq, space.let_go_all, around.clock, time.monotonic)
    imports = Imports(index, core.identity, namespaces, write_path, batch_writes, around.clock, time.monotonic)
    holds = Holds(index, leases, snapshots, imports)
    _tell_space_what_stays(core, holds, snapshots, namespaces)
    partial = PartialRecovery(recovered, index, commit, journal, around.clock)
    imports.keeps_strays = lambda: partial.unknown_loss
    if partial.unknown_loss:
        _examine_free_slots(core, around, partial)
    checkpointer = _checkpointer(recovered, around, core)
    scrubber = _scrubber(recovered, around, core, checkpointer, read_path, partial)
    maintenance = _maintenance(core, around, checkpointer, scrubber, namespaces, holds, partial)
    later.append(maintenance)
    return Machine(
        uuid=recovered.superblock.uuid,
        report=recovered.report,
        index=index,
        identity=core.identity,
        arena=around.arena,
        internal=core.internal,
        commit=commit,
        journal=journal,
        space=space,
        read_path=read_path,
        write_path=write_path,
        batch_reads=BatchReads(read_path, around.device, index, commit, around.arena, core.identity),
        batch_writes=batch_writes,
        entry_changes=EntryChanges(index, core.identity, commit, journal, read_path, write_path, around.counters),
        namespaces=namespaces,
        leases=leases,
        snapshots=snapshots,
        imports=imports,
        listings=Listings(index, commit, read_path, write_path.known_keys),
        partial=partial,
        checkpointer=checkpointer,
        scrubber=scrubber,
        maintenance=maintenance,
        health=around.health,
        clock=around.clock,
        started_monotonic=time.monotonic(),
        event_keys=EventKeys(around.device, index, around.arena, core.identity, around.options.wait_timeout_seconds),
    )


def _core(recovered: Recovered, around: Surroundings, grew: Callable[[], None]) -> _Core:
    index = recovered.index
    identity = Identity(recovered.superblock, recovered.position.start_count)
    internal = BufferArena(INTERNAL_BUFFER_BYTES)
    commit = Commit(index, around.counters, around.clock)
    journal = _journal(recovered, around, internal, commit, grew)
    journal.step = around.step
    commit.attach(journal)
    space = _space(around, index, commit, journal, identity, internal)
    commit.give_back = space.give_back
    commit.announce = _announcer(recovered, around).announce
    return _Core(index, identity, internal, commit, journal, space)


def _tell_space_what_stays(core: _Core, holds: Holds, snapshots: Snapshots, namespaces: NamespaceChanges) -> None:
    """Who looks for room asks what is held, what will be, and what is as good as free."""
    quotas, space, evicting = core.commit.quotas, core.space, core.space.evicting
    quotas.may_go = space.may_go
    quotas.holder = space.holder = holds.holder
    evicting.will_be_held, evicting.wiped_rows = snapshots.will_hold, namespaces.rows_to_free
    evicting.held_in, evicting.held_slots = holds.in_slab, holds.slots_of_class


def _examine_free_slots(core: _Core, around: Surroundings, partial: PartialRecovery) -> None:
    """After a journal gap a free slot is handed out only once its header was looked at (R4)."""
    wait = around.options.wait_timeout_seconds
    examiner = FreeSlotExaminer(
        around.device, core.index, core.commit, core.internal, core.identity, wait, partial.found_free_slot
    )
    core.space.examine, core.space.examine_slab = examiner.may_use, examiner.may_give


def _announcer(recovered: Recovered, around: Surroundings) -> Announcer:
    position, index = recovered.position, recovered.index
    around.events.begin(
        recovered.history,
        device=recovered.superblock.uuid.hex()[:8],
        start=position.start_count,
        next_seq=position.next_seq,
    )
    return Announcer(around.events, index.namespaces.by_id, index.seed, recovered.history.lost, around.clock)


def _journal(
    recovered: Recovered, around: Surroundings, internal: BufferArena, commit: Commit, grew: Callable[[], None]
) -> Journal:
    buffer = internal.try_acquire(max(GROUP_BYTES, recovered.index.geometry.block_bytes))
    assert buffer is not None
    return Journal(
        around.device,
        recovered.index.geometry,
        recovered.superblock.uuid,
        recovered.position,
        buffer,
        around.counters,
        publish=commit.publish,
        undo=commit.undo,
        need_room=grew,
        reopened=commit.reopened,
        wait_timeout_seconds=around.options.wait_timeout_seconds,
    )


def _space(
    around: Surroundings, index: Index, commit: Commit, journal: Journal, identity: Identity, internal: BufferArena
) -> Space:
    wait = around.options.wait_timeout_seconds
    return Space(
        index,
        commit,
        journal,
        around.counters,
        policy=around.options.eviction,
        admission=around.options.admission,
        write_budget_bytes_per_second=around.options.write_budget_bytes_per_second,
        wait_timeout_seconds=wait,
        write_slab_header=SlabHeaders(around.device, index.geometry, identity, internal, wait).write,
    )


def _read_path(core: _Core, around: Surroundings) -> ReadPath:
    return ReadPath(
        around.device,
        core.index,
        core.commit,
        core.space,
        around.arena,
        core.identity,
        around.counters,
        around.health,
        around.options.wait_timeout_seconds,
        around.clock,
    )


def _write_path(core: _Core, around: Surroundings, namespaces: NamespaceChanges) -> WritePath:
    path = WritePath(
        around.device,
        core.index,
        core.commit,
        core.journal,
        core.space,
        around.arena,
        core.identity,
        around.counters,
        around.clock,
        around.options.wait_timeout_seconds,
        namespaces,
    )
    path.step = around.step
    path.known_keys = KnownKeys() if around.options.keys_in_memory else None
    path.write_failed = around.health.note
    return path


def _checkpointer(recovered: Recovered, around: Surroundings, core: _Core) -> Checkpointer:
    return Checkpointer(
        device=around.device,
        index=core.index,
        journal=core.journal,
        arena=core.internal,
        uuid=recovered.superblock.uuid,
        counters=around.counters,
        clock=around.clock,
        copies=recovered.copies,
        number=recovered.number,
        wait_timeout_seconds=around.options.wait_timeout_seconds,
        renewal=core.commit.renewal,
        settle=core.space.settle_and_look,
        step=around.step,
    )


def _scrubber(
    recovered: Recovered,
    around: Surroundings,
    core: _Core,
    checkpointer: Checkpointer,
    read_path: ReadPath,
    partial: PartialRecovery,
) -> Scrubber:
    return Scrubber(
        around.device,
        core.index,
        core.journal,
        checkpointer,
        read_path,
        core.internal,
        dataclasses.replace(recovered.superblock, start_count=recovered.position.start_count),
        bytes_per_second=around.options.scrub_bytes_per_second or SCRUB_UNLIMITED_BYTES,
        clock=around.clock,
        frozen=lambda: partial.open,
    )


def _maintenance(
    core: _Core,
    around: Surroundings,
    checkpointer: Checkpointer,
    scrubber: Scrubber,
    namespaces: NamespaceChanges,
    holds: Holds,
    partial: PartialRecovery,
) -> Maintenance:
    return Maintenance(
        core.index,
        core.commit,
        core.journal,
        core.space,
        checkpointer,
        Compactor(core.index, core.journal, core.commit, partial.records),
        around.counters,
        around.options,
        around.clock,
        lambda: around.health.self_test(around.device, core.index.geometry, core.internal),
        scrubber,
        namespaces,
        holds,
        frozen=lambda: partial.open,
    )
