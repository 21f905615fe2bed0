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
from storage.checkpoint import Checkpointer
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
from storage.imports import Imports
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


def assemble(recovered: Recovered, around: Surroundings) -> Machine:
    """Make the parts from what was recovered. Nothing runs yet, nothing is written."""
    index = recovered.index
    identity = Identity(recovered.superblock, recovered.position.start_count)
    internal = BufferArena(INTERNAL_BUFFER_BYTES)
    later: list[Maintenance] = []
    commit = Commit(index, around.counters, around.clock)
    journal = _journal(recovered, around, internal, commit, lambda: later[0].journal_grew())
    journal.step = around.step
    commit.journal = journal
    space = _space(around, index, commit, journal, identity, internal)
    commit.give_back = space.give_back
    commit.announce = _announcer(recovered, around).announce
    read_path = ReadPath(
        around.device,
        index,
        commit,
        space,
        around.arena,
        identity,
        around.counters,
        around.health,
        around.options.wait_timeout_seconds,
        around.clock,
    )
    namespaces = NamespaceChanges(index, commit)
    leases = Leases(index, space.let_go, time.monotonic)
    snapshots = Snapshots(index, lambda: journal.published_seq, space.let_go_all, around.clock, time.monotonic)
    commit.quotas.may_go = space.may_go
    space.will_be_held = snapshots.will_hold
    space.wiped_rows = namespaces.rows_to_free
    write_path = _write_path(around, index, commit, journal, space, identity, namespaces)
    batch_writes = BatchWrites(write_path, commit)
    imports = Imports(index, identity, namespaces, write_path, batch_writes, time.monotonic)
    holds = Holds(index, leases, snapshots, imports)
    commit.quotas.holder = space.holder = holds.holder
    space.held_in, space.held_slots = holds.in_slab, holds.slots_of_class
    partial = PartialRecovery(recovered, index, commit, journal, around.clock)
    imports.keeps_strays = lambda: partial.unknown_loss
    if partial.unknown_loss:
        wait = around.options.wait_timeout_seconds
        examiner = FreeSlotExaminer(around.device, index, commit, internal, identity, wait, partial.found_free_slot)
        space.examine, space.examine_slab = examiner.may_use, examiner.may_give
    checkpointer = _checkpointer(recovered, around, journal, commit, space, internal)
    scrubber = _scrubber(recovered, around, journal, checkpointer, read_path, internal, partial)
    maintenance = Maintenance(
        index,
        commit,
        journal,
        space,
        checkpointer,
        Compactor(index, journal, commit, partial.records),
        around.counters,
        around.options,
        around.clock,
        lambda: around.health.self_test(around.device, index.geometry, internal),
        scrubber,
        namespaces,
        holds,
        frozen=lambda: partial.open,
    )
    later.append(maintenance)
    return Machine(
        uuid=recovered.superblock.uuid,
        report=recovered.report,
        index=index,
        identity=identity,
        arena=around.arena,
        internal=internal,
        commit=commit,
        journal=journal,
        space=space,
        read_path=read_path,
        write_path=write_path,
        batch_reads=BatchReads(read_path, around.device, index, commit, around.arena, identity),
        batch_writes=batch_writes,
        entry_changes=EntryChanges(index, identity, commit, journal, read_path, write_path, around.counters),
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
        event_keys=EventKeys(around.device, index, around.arena, identity, around.options.wait_timeout_seconds),
    )


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


def _write_path(
    around: Surroundings,
    index: Index,
    commit: Commit,
    journal: Journal,
    space: Space,
    identity: Identity,
    namespaces: NamespaceChanges,
) -> WritePath:
    path = WritePath(
        around.device,
        index,
        commit,
        journal,
        space,
        around.arena,
        identity,
        around.counters,
        around.clock,
        around.options.wait_timeout_seconds,
        namespaces,
    )
    path.step = around.step
    path.known_keys = KnownKeys() if around.options.keys_in_memory else None
    path.write_failed = around.health.note
    return path


def _checkpointer(
    recovered: Recovered,
    around: Surroundings,
    journal: Journal,
    commit: Commit,
    space: Space,
    internal: BufferArena,
) -> Checkpointer:
    return Checkpointer(
        device=around.device,
        index=recovered.index,
        journal=journal,
        arena=internal,
        uuid=recovered.superblock.uuid,
        counters=around.counters,
        clock=around.clock,
        copies=recovered.copies,
        number=recovered.number,
        wait_timeout_seconds=around.options.wait_timeout_seconds,
        renewal=commit.renewal,
        settle=space.settle_and_look,
        step=around.step,
    )


def _scrubber(
    recovered: Recovered,
    around: Surroundings,
    journal: Journal,
    checkpointer: Checkpointer,
    read_path: ReadPath,
    internal: BufferArena,
    partial: PartialRecovery,
) -> Scrubber:
    return Scrubber(
        around.device,
        recovered.index,
        journal,
        checkpointer,
        read_path,
        internal,
        dataclasses.replace(recovered.superblock, start_count=recovered.position.start_count),
        bytes_per_second=around.options.scrub_bytes_per_second or SCRUB_UNLIMITED_BYTES,
        clock=around.clock,
        frozen=lambda: partial.open,
    )
