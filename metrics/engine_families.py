"""Families about the engine: recovery, checkpoints, journal, slots, lookups and mutations."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping

from prometheus_client.core import InfoMetricFamily, Metric

from metrics.families import PREFIX, add_durations, counter, counters, gauge, gauges, histogram, labelled_gauges
from storage.counters import EngineCounters
from storage.recovery.report import RepairSource, SkipReason
from storage.status import EngineState, EngineStatus, Reason, accepts_mutations

HOLD_KINDS = ("lease", "snapshot", "import")


def state_families(status: EngineStatus, started_at: float) -> Iterator[Metric]:
    yield InfoMetricFamily(
        PREFIX + "build",
        "The running version and how it does its I/O.",
        {
            "version": status.version,
            "io_engine": status.device.io_engine,
            "direct_io": str(status.device.direct_io).lower(),
        },
    )
    yield gauge("start_time_seconds", "When the daemon was started, in seconds since 1970.", started_at)
    yield gauges(
        "engine_state",
        "1 for the state the engine is in.",
        "state",
        {state.value: float(state is status.state) for state in EngineState},
    )
    yield gauges(
        "engine_reason",
        "1 for each reason why the engine is degraded or read-only.",
        "reason",
        {reason.value: float(reason in status.reasons) for reason in Reason},
    )

    yield gauge(
        "ready",
        "1 while reads and mutations are accepted, which is when /readyz answers 200.",
        accepts_mutations(status.state, status.reasons),
    )


def recovery_families(status: EngineStatus) -> Iterator[Metric]:
    recovery = status.recovery
    yield gauge("partial_recovery", "1 while a loss found by recovery is unacknowledged.", status.partial_recovery)
    yield gauge("recovery_unknown_loss", "1 while a loss of unknown extent is unacknowledged.", recovery.unknown_loss)
    yield gauges(
        "skipped_entries",
        "Unacknowledged entries that recovery could not settle.",
        "reason",
        _seeded(SkipReason, status.skipped_by_reason),
    )
    yield gauge("recovered_entries", "Live entries after the last recovery.", recovery.recovered_entries)
    yield gauges(
        "repaired_entries",
        "Entries that the last recovery settled from a second source.",
        "source",
        _seeded(RepairSource, recovery.repaired_by_source),
    )
    yield gauge(
        "lost_unflushed_entries",
        "Entries acknowledged behind the last flush that a power loss took.",
        recovery.lost_unflushed,
    )
    yield gauge("recovery_duration_seconds", "Duration of the last recovery.", recovery.duration_seconds)
    yield gauge("recovery_progress_ratio", "How far the recovery is, from 0 to 1.", recovery.progress_ratio)


def checkpoint_families(status: EngineStatus, counts: EngineCounters) -> Iterator[Metric]:
    checkpoint = status.checkpoint
    yield gauge(
        "auto_checkpoint_paused",
        "1 while there are no automatic checkpoints.",
        not status.auto_checkpoint.enabled or status.auto_checkpoint.paused_reason is not None,
    )
    yield counters("checkpoints", "Checkpoints by how they ended.", "result", counts.checkpoints)
    durations = histogram("checkpoint_duration_seconds", "Durations of checkpoints.")
    source = counts.checkpoint_duration
    add_durations(durations, (), source.bounds, source.counts, source.sum)
    yield durations
    yield gauge(
        "last_checkpoint_timestamp_seconds",
        "When the newest checkpoint was written; 0 for never.",
        checkpoint.written_at,
    )
    yield gauge("last_checkpoint_bytes", "Bytes written for the newest checkpoint.", checkpoint.bytes)
    yield gauge(
        "dirty_pages", "Pages of the slot table that differ from the newest checkpoint.", checkpoint.dirty_pages
    )
    yield gauge("journal_used_ratio", "Used share of the journal, from 0 to 1.", status.journal.used_ratio)
    yield gauge("journal_seq", "Highest seq in the journal.", status.journal.seq)
    yield counter("journal_blocks", "Blocks written to the journal.", counts.journal_blocks)
    yield counter("journal_rows", "Rows written to the journal.", counts.journal_rows)
    yield counter("journal_failures", "Groups of mutations that the journal could not take.", counts.journal_failures)
    yield counter("flushes", "Flushes of the device that the engine asked for.", counts.flushes)


def capacity_families(status: EngineStatus) -> Iterator[Metric]:
    capacity = status.capacity
    slots = {name: count for name, count in dataclasses.asdict(capacity.slots).items() if name != "total"}
    yield gauges("slots", "Slots by state.", "state", slots)
    yield class_slots(status)
    yield gauge("entries", "Live entries.", capacity.slots.live)
    yield gauge("payload_bytes", "Bytes of the live entries' values.", capacity.payload_bytes)
    yield gauge("used_bytes", "Bytes of the live entries' slots.", capacity.used_bytes)
    yield gauge("data_size_bytes", "Bytes of all slabs.", capacity.total_bytes)
    yield gauge("free_slabs", "Slabs that no slot class has taken.", capacity.free_slabs)
    yield gauge("max_entries", "Entries the device has slots for at most.", capacity.max_entries)
    yield gauge("device_size_bytes", "Size of the device.", status.device.size_bytes)
    yield gauge("namespaces", "Namespaces.", len(status.namespaces))
    yield from hold_families(status)
    yield gauge("buffer_size_bytes", "Memory for values on their way.", status.buffers.total_bytes)
    yield gauge("buffer_used_bytes", "Memory for values on their way that is in use.", status.buffers.used_bytes)
    yield gauge("buffer_waiting_requests", "Requests that wait for such memory.", status.buffers.waiting)


def hold_families(status: EngineStatus) -> Iterator[Metric]:
    """What is kept from reuse on somebody's behalf, by what keeps it."""
    held = dict.fromkeys(HOLD_KINDS, 0)
    freed = dict.fromkeys(HOLD_KINDS, 0)
    number = dict.fromkeys(HOLD_KINDS, 0)
    for hold in status.holds:
        held[hold.kind] += hold.held_bytes
        freed[hold.kind] += hold.freed_bytes
        number[hold.kind] += 1
    yield gauges("holds", "Leases, snapshots and imports that hold slots.", "kind", number)
    yield gauges("held_slots_bytes", "Bytes of the slots that they hold; of one held twice, twice.", "kind", held)
    yield gauges(
        "held_freed_bytes",
        "Of these, bytes that would be free without them, where that is known: for snapshots.",
        "kind",
        freed,
    )


def class_slots(status: EngineStatus) -> Metric:
    return labelled_gauges(
        "class_slots",
        "Slots of each slot class by state.",
        ["slot_bytes", "state"],
        (
            ((str(kind.slot_bytes), name), count)
            for kind in status.classes
            for name, count in dataclasses.asdict(kind.slots).items()
            if name != "total"
        ),
    )


def request_families(counts: EngineCounters) -> Iterator[Metric]:
    yield counters("lookups", "Reads by what they found.", "result", counts.lookups)
    yield counters("puts", "Puts by how they ended.", "result", counts.puts)
    yield counters(
        "put_rejections",
        "Puts refused before their body was read, by the error's code: the refused ones of puts_total.",
        "reason",
        counts.put_rejections,
    )
    yield counters("deletes", "Deletes by how they ended.", "result", counts.deletes)
    yield counters("evictions", "Entries removed to make room.", "reason", counts.evictions)
    yield counter("slabs_taken", "Slabs that one slot class had to give to another.", counts.slabs_taken)
    yield counter(
        "eviction_failures",
        "Times that room could not be made because the journal or the device failed.",
        counts.eviction_failures,
    )
    yield counters("corruptions", "Damage found while running.", "where", counts.corruptions)


def verification_families(status: EngineStatus) -> Iterator[Metric]:
    """Background verification and the self test."""
    scrub, self_test = status.scrub, status.self_test
    yield gauge("scrub_progress_ratio", "How far the pass of background verification is.", scrub.progress_ratio)
    yield counter("scrub_passes", "Full passes of background verification.", scrub.passes)
    yield gauge(
        "scrub_last_pass_age_seconds",
        "Age of the last full pass of background verification; NaN before the first.",
        float("nan") if scrub.last_pass_age_seconds is None else scrub.last_pass_age_seconds,
    )
    yield counter("scrub_bytes", "Bytes that background verification looked at.", scrub.verified_bytes)
    yield counters("scrub_damaged", "What background verification found damaged.", "kind", scrub.damaged)
    yield counters(
        "self_tests",
        "Write-read-compare tests of the device.",
        "result",
        {"passed": self_test.passed, "failed": self_test.failed},
    )


def _seeded(values: type[enum.StrEnum], counts: Mapping[str, int]) -> dict[str, int]:
    """All values of the closed set, at 0 where nothing was counted: also before the first recovery has a report."""
    return {**{value.value: 0 for value in values}, **counts}
