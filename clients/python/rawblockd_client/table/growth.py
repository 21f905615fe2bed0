"""More buckets for a table that has grown, one split after the other, while others read and write.

A bucket of depth d is split in three writes, each by compare-and-swap: it is marked as splitting (its rows stay
readable, nobody changes them any more), the new bucket of depth d + 1 is created, and the old one keeps its other half
at depth d + 1. Whoever meets a bucket that is splitting finishes the split: what is to be written follows from the
bucket alone, so it doesn't matter who writes it, how often, or who dies in between. The depth in the record says what
belongs to a bucket; the number in the descriptor follows behind, and is only where to begin looking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rawblockd_client.errors import Problem, may_succeed_later
from rawblockd_client.models import PutResult
from rawblockd_client.problems import PreconditionFailed
from rawblockd_client.table.bucket import OPEN, SPLITTING, Bucket, empty_bucket
from rawblockd_client.table.changes import halves
from rawblockd_client.table.descriptor import BUCKETS_MAX, Descriptor, DescriptorRecord
from rawblockd_client.table.pauses import Pauses
from rawblockd_client.table.store import BucketStore, Outcome

SPLITS_AT_ONCE = 128


def grow(store: BucketStore, record: DescriptorRecord, descriptor: Descriptor, buckets: int) -> Descriptor | None:
    """Split until there are so many buckets; the descriptor then, None if the table's rows were replaced meanwhile."""
    buckets = min(buckets, BUCKETS_MAX)
    while descriptor.buckets < buckets:
        level = descriptor.buckets.bit_length() - 1
        first = descriptor.buckets - (1 << level)
        count = min(buckets - descriptor.buckets, (1 << level) - first, SPLITS_AT_ONCE)
        split(store, descriptor, range(first, first + count), level)
        advanced = record.write(replace(descriptor, buckets=descriptor.buckets + count))
        if advanced is None:
            present = record.read()
            if present is None or present.generation != descriptor.generation:
                return None
            advanced = present
        descriptor = advanced
    return descriptor


def split(store: BucketStore, descriptor: Descriptor, indexes: Sequence[int], depth: int) -> None:
    """Bring these buckets, which had this depth, to the next one."""
    pauses = Pauses()
    left = list(indexes)
    while left:
        found = store.read(descriptor, left)
        unsplit = [found[index] or empty_bucket(index, depth, descriptor.columns) for index in left]
        unsplit = [bucket for bucket in unsplit if bucket.depth <= depth]
        if not unsplit:
            return
        left = [bucket.index for bucket in unsplit]
        frozen = _freeze(store, descriptor, unsplit)
        made = [halves(bucket) for bucket in frozen]
        children = [replace(child, state=OPEN) for _, child in made]
        created = store.write(descriptor, children)
        # A child that is there already was made of the same rows, and may have changed since.
        ready = [
            replace(half, state=OPEN, etag=bucket.etag)
            for bucket, (half, _), outcome in zip(frozen, made, created)
            if _is_there(outcome)
        ]
        for outcome in store.write(descriptor, ready):
            raise_for_good(outcome)
        pauses.wait()


def _freeze(store: BucketStore, descriptor: Descriptor, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Those that are splitting now, with their etags; others have changed and are looked at again."""
    frozen = [bucket for bucket in buckets if bucket.state == SPLITTING]
    open_ones = [replace(bucket, state=SPLITTING) for bucket in buckets if bucket.state == OPEN]
    for bucket, outcome in zip(open_ones, store.write(descriptor, open_ones)):
        raise_for_good(outcome)
        if isinstance(outcome, PutResult):
            frozen.append(replace(bucket, etag=outcome.etag))
    return frozen


def raise_for_good(outcome: Outcome) -> None:
    """Raises a problem that a further attempt won't get past."""
    if isinstance(outcome, Problem) and not isinstance(outcome, PreconditionFailed) and not may_succeed_later(outcome):
        raise outcome


def _is_there(outcome: Outcome) -> bool:
    """True once the record exists, whoever wrote it. False if that isn't known: then it is tried again."""
    raise_for_good(outcome)
    return isinstance(outcome, (PutResult, PreconditionFailed))
