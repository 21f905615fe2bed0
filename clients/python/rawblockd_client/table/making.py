"""A table's buckets made as a whole: empty ones for a new table, and rows that replace all others.

They are written under a generation that nobody knows yet; the descriptor, exchanged by compare-and-swap, publishes them
at once. What is cut short before leaves records that nobody looks at, for ``sweep``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rawblockd_client.models import PutResult
from rawblockd_client.table.archive import Candidates
from rawblockd_client.table.bucket import Bucket, buckets_for, depth_of, empty_bucket, hash_keys, indexes_of
from rawblockd_client.table.changes import made_of
from rawblockd_client.table.columns import Array
from rawblockd_client.table.descriptor import Descriptor, DescriptorRecord, draw_generation
from rawblockd_client.table.errors import TableChanged, TableMissing
from rawblockd_client.table.growth import raise_for_good
from rawblockd_client.table.joining import Rows
from rawblockd_client.table.pauses import Pauses
from rawblockd_client.table.store import BATCH_BUCKETS, BATCH_BYTES, BucketStore


def make_table(store: BucketStore, record: DescriptorRecord, descriptor: Descriptor, expected_rows: int) -> Descriptor:
    """A table without rows, or the one that somebody else has made meanwhile."""
    buckets = buckets_for(expected_rows, descriptor.columns, descriptor.bucket_bytes)
    made = replace(descriptor, generation=draw_generation(), buckets=buckets)
    for first in range(0, buckets, BATCH_BUCKETS):
        chosen = range(first, min(first + BATCH_BUCKETS, buckets))
        _write(store, made, [empty_bucket(index, depth_of(index, buckets), made.columns) for index in chosen])
    written = record.write(made)
    if written is None:
        store.delete(made.generation, range(buckets))
        written = record.read()
        if written is None:
            raise TableMissing("the table was made and wiped by somebody else at the same time")
    return written


def replace_rows(
    store: BucketStore, record: DescriptorRecord, descriptor: Descriptor, rows: Rows, candidates: Candidates
) -> Descriptor:
    """Exchange all rows. Raises TableChanged if somebody else changed the table's buckets or rows as a whole."""
    count = int(rows.keys.size + candidates[0].size)
    buckets = buckets_for(count, descriptor.columns, descriptor.bucket_bytes)
    made = replace(descriptor, generation=draw_generation(), buckets=buckets)
    batch: list[Bucket] = []
    size = 0
    for bucket in _filled(made, rows, candidates):
        batch.append(bucket)
        size += bucket.size_bytes
        if size >= BATCH_BYTES or len(batch) >= BATCH_BUCKETS:
            _write(store, made, batch)
            batch, size = [], 0
    _write(store, made, batch)
    written = _publish(record, descriptor, made)
    if written is None:
        store.delete(made.generation, range(buckets))
        raise TableChanged("the table was replaced by somebody else at the same time")
    sweep(store, written)
    return written


def sweep(store: BucketStore, descriptor: Descriptor) -> int:
    """Delete the buckets of all generations but the present one."""
    kept = store.key(descriptor.generation, 0).encode().rpartition(b"/")[0]
    stale = [key for key in store.stored_keys() if key.count(b"/") > 1 and key.rpartition(b"/")[0] != kept]
    store.delete_keys(stale)
    return len(stale)


def _publish(record: DescriptorRecord, before: Descriptor, made: Descriptor) -> Descriptor | None:
    """None if the table's rows were replaced since; if it only grew, it is still the table that is replaced."""
    while True:
        written = record.write(made)
        if written is not None:
            return written
        present = record.read()
        if present is None:
            raise TableMissing("the table is not there any more")
        if present.generation != before.generation:
            return None
        made = replace(made, etag=present.etag)


def _filled(descriptor: Descriptor, rows: Rows, candidates: Candidates) -> Iterator[Bucket]:
    """Every bucket, also those without rows: one that is missing is then known to be lost."""
    groups = _groups(rows.keys, descriptor.buckets)
    more = _groups(candidates[0], descriptor.buckets)
    none = np.zeros(0, dtype=np.int64)
    for index in range(descriptor.buckets):
        at, later = groups.get(index, none), more.get(index, none)
        yield made_of(
            index,
            depth_of(index, descriptor.buckets),
            rows.keys[at],
            rows.frequency[at],
            rows.version[at],
            {name: values[at] for name, values in rows.parts.items()},
            (candidates[0][later], candidates[1][later], candidates[2][later]),
        )


def _groups(keys: Array, buckets: int) -> dict[int, Array]:
    """The places of each bucket's keys, in the order of the keys."""
    if not keys.size:
        return {}
    indexes = indexes_of(hash_keys(keys), buckets)
    order = np.argsort(indexes, kind="stable")
    found, starts = np.unique(indexes[order], return_index=True)
    return dict(zip(map(int, found), np.split(order, starts[1:])))


def _write(store: BucketStore, descriptor: Descriptor, buckets: list[Bucket]) -> None:
    """Of a generation that nobody else knows: one that is there already is this very one."""
    pauses = Pauses()
    left = buckets
    while left:
        outcomes = store.write(descriptor, left)
        for outcome in outcomes:
            raise_for_good(outcome)
        left = [bucket for bucket, outcome in zip(left, outcomes) if not _is_there(outcome)]
        pauses.wait()


def _is_there(outcome: object) -> bool:
    return isinstance(outcome, PutResult) or getattr(outcome, "status", 0) == 412
