"""All rows of a table, while others go on writing.

A bucket is one record, so its rows are of one moment each and whole; what two buckets show may be of two moments. If a
bucket was split while the scan went on, the bucket that was split off is read behind it; a row that was met twice
counts as the later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rawblockd_client.table.access import TableAccess
from rawblockd_client.table.archive import Candidates
from rawblockd_client.table.bucket import Bucket
from rawblockd_client.table.columns import Array
from rawblockd_client.table.descriptor import Descriptor
from rawblockd_client.table.errors import TableChanged
from rawblockd_client.table.joining import Rows

ATTEMPTS = 5
"""How often a scan begins anew because all rows were replaced meanwhile."""


@dataclass(frozen=True)
class Scan:
    rows: Rows
    candidates: Candidates
    buckets: int
    lost_buckets: int
    stored_bytes: int


def scan(access: TableAccess) -> Scan:
    """Raises TableChanged if the table's rows are replaced over and over."""
    for _ in range(ATTEMPTS):
        descriptor = access.refresh()
        buckets, lost = _read_all(access, descriptor)
        if not lost or access.refresh().generation == descriptor.generation:
            return _joined(descriptor, buckets, lost)
    raise TableChanged("the table's rows were replaced while they were read")


def _read_all(access: TableAccess, descriptor: Descriptor) -> tuple[list[Bucket], int]:
    found: dict[int, Bucket | None] = {}
    due: Sequence[int] = range(descriptor.buckets)
    while due:
        read = access.store.read(descriptor, due)
        found.update(read)
        children = {child for bucket in read.values() if bucket is not None for child in _children(bucket)}
        due = sorted(children - found.keys())
    present = [bucket for bucket in found.values() if bucket is not None]
    return present, len(found) - len(present)


def _children(bucket: Bucket) -> list[int]:
    """The buckets that were split off this one."""
    return [bucket.index + (1 << depth) for depth in range(bucket.index.bit_length(), bucket.depth)]


def _joined(descriptor: Descriptor, buckets: list[Bucket], lost: int) -> Scan:
    buckets.sort(key=lambda bucket: (bucket.depth, bucket.index))
    none = np.zeros(0, dtype=np.int64)
    rows = [bucket.rows for bucket in buckets]
    keys, order = _ascending([bucket.keys for bucket in buckets])
    parts = {
        column.name: np.concatenate([column.empty(), *(bucket.parts[column.name] for bucket in buckets)])[order]
        for column in descriptor.columns
    }
    frequency = np.concatenate([none, *(bucket.frequency[:count] for bucket, count in zip(buckets, rows))])
    version = np.concatenate([none, *(bucket.version[:count] for bucket, count in zip(buckets, rows))])
    more, later = _ascending([bucket.candidates for bucket in buckets])
    more_frequency = np.concatenate([none, *(bucket.frequency[count:] for bucket, count in zip(buckets, rows))])
    more_version = np.concatenate([none, *(bucket.version[count:] for bucket, count in zip(buckets, rows))])
    return Scan(
        Rows(keys, frequency[order], version[order], parts),
        (more, more_frequency[later], more_version[later]),
        len(buckets) + lost,
        lost,
        sum(bucket.size_bytes for bucket in buckets),
    )


def _ascending(pieces: list[Array]) -> tuple[Array, Array]:
    """The keys in order, each once, and where each of them stood: of one that stands twice, the last place."""
    keys = np.concatenate([np.zeros(0, dtype=np.int64), *pieces])
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    last = np.ones(keys.size, dtype=bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return ordered[last], order[last]
