"""Families about the device's operations."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from metrics.families import add_durations, counters, histogram, labelled_counters
from storage.device.counters import DURATION_BOUNDS_SECONDS, IoCounters


def io_families(io: IoCounters) -> Iterator[Metric]:
    by_op = io.by_op
    yield counters(
        "io_operations",
        "Finished operations of the device, failed ones too.",
        "op",
        {op.value: counts.operations for op, counts in by_op.items()},
    )
    yield counters(
        "io_bytes",
        "Bytes of operations that succeeded.",
        "op",
        {op.value: counts.bytes for op, counts in by_op.items()},
    )
    yield labelled_counters(
        "io_errors",
        "Failed operations by the operating system's error.",
        ["op", "errno"],
        (((op.value, name), count) for op, counts in by_op.items() for name, count in counts.errors.items()),
    )
    durations = histogram("io_duration_seconds", "From the call to the completion, waiting included.", ["op"])
    for op, counts in by_op.items():
        add_durations(durations, (op.value,), DURATION_BOUNDS_SECONDS, counts.duration_buckets, counts.duration_seconds)
    yield durations
