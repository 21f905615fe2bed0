"""Counting of device operations."""

from __future__ import annotations

import errno
import threading

import pytest

from storage.device.counters import DURATION_BOUNDS_SECONDS, ERROR_NAMES, SHORT, IoCounters, OpKind, error_name


def test_every_name_is_there_from_the_start() -> None:
    counters = IoCounters()
    assert set(counters.by_op) == {"read", "write", "flush"}
    for op in counters.by_op.values():
        assert tuple(op.errors) == ERROR_NAMES
        assert set(op.errors.values()) == {0}
        assert len(op.duration_buckets) == len(DURATION_BOUNDS_SECONDS) + 1


def test_bounds() -> None:
    assert DURATION_BOUNDS_SECONDS[0] == 50e-6
    assert DURATION_BOUNDS_SECONDS[-1] == 10.0
    assert list(DURATION_BOUNDS_SECONDS) == sorted(DURATION_BOUNDS_SECONDS)


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (50e-6, 0), (51e-6, 1), (10.0, -2), (10.1, -1)])
def test_buckets_include_their_upper_bound(seconds: float, bucket: int) -> None:
    counters = IoCounters()
    counters.record(OpKind.READ, 4096, seconds)
    assert counters.read.duration_buckets[bucket] == 1
    assert sum(counters.read.duration_buckets) == 1
    assert counters.read.duration_seconds == seconds


def test_failures_count_as_operations_without_bytes() -> None:
    counters = IoCounters()
    counters.record(OpKind.WRITE, 4096, 0.1, errno.ENOSPC)
    counters.record(OpKind.WRITE, 4096, 0.1, SHORT)
    counters.record(OpKind.WRITE, 4096, 0.1, errno.EFBIG)
    counters.record(OpKind.WRITE, 4096, 0.1)
    assert (counters.write.operations, counters.write.bytes, counters.write.failed) == (4, 4096, 3)
    assert {name for name, count in counters.write.errors.items() if count} == {"ENOSPC", "short", "other"}
    assert counters.read.operations == counters.flush.operations == 0


def test_names() -> None:
    assert [error_name(getattr(errno, name)) for name in ERROR_NAMES[:-2]] == list(ERROR_NAMES[:-2])
    assert (error_name(SHORT), error_name(errno.EACCES)) == ("short", "other")


def test_counts_are_exact_from_many_threads() -> None:
    counters = IoCounters()

    def count() -> None:
        for _ in range(2000):
            counters.record(OpKind.READ, 1, 1e-4)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.read.operations == counters.read.bytes == sum(counters.read.duration_buckets) == 16000
