"""Keys and their buckets: finding each key's bucket, however the table has grown meanwhile, and changing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Callable

import numpy as np

from rawblockd_client.models import PutResult
from rawblockd_client.table.bucket import (
    SPLITTING,
    Bucket,
    Mark,
    depth_of,
    empty_bucket,
    hash_keys,
    indexes_of,
)
from rawblockd_client.table.columns import Array, Column
from rawblockd_client.table.descriptor import Descriptor, DescriptorRecord
from rawblockd_client.table.errors import TableMissing
from rawblockd_client.table.growth import raise_for_good, split
from rawblockd_client.table.pauses import Pauses
from rawblockd_client.table.store import BATCH_BYTES, BucketStore, Outcome, Unknown

Change = Callable[[Bucket, Array], Bucket]
"""A bucket, and the places of keys in it, made into another bucket; the same one if nothing changes."""


class TableAccess:
    """The descriptor as last seen, and what follows from it. May be used by several threads."""

    def __init__(self, store: BucketStore, record: DescriptorRecord, descriptor: Descriptor) -> None:
        self.store = store
        self.record = record
        self.descriptor = descriptor
        self.lost_buckets = 0
        """Buckets that should have been there and were not (evicted, or damaged): their rows are missing."""

    def refresh(self) -> Descriptor:
        """Raises TableMissing."""
        found = self.record.read()
        if found is None:
            raise TableMissing("the table is not there any more")
        self.descriptor = found
        return found

    # -- reading --------------------------------------------------------------------------------------------------

    def each(self, keys: Array, columns: Sequence[Column] | None = None) -> Iterator[tuple[Bucket | None, Array]]:
        """Each bucket with the places of the keys that belong to it, every key once; None for a lost one."""
        search = _Search(self.descriptor, keys)
        while search.left.size:
            descriptor = search.descriptor
            for chosen in search.batches():
                buckets = self.store.read(descriptor, list(chosen), columns)
                if any(bucket is None for bucket in buckets.values()) and self._replaced(descriptor):
                    break
                for index, places in chosen.items():
                    bucket = buckets[index]
                    if bucket is None:
                        self.lost_buckets += 1
                        search.done(places)
                        yield None, places
                        continue
                    here = search.follow(bucket, places)
                    search.done(here)
                    yield bucket, here
            search.next_round(self.descriptor)

    def _replaced(self, descriptor: Descriptor) -> bool:
        """Whether the table's rows were replaced since: then its old buckets are gone, and not lost."""
        return self.refresh().generation != descriptor.generation

    # -- changing -------------------------------------------------------------------------------------------------

    def change(self, keys: Array, change: Change) -> list[Bucket]:
        """Change the buckets of these keys, each by compare-and-swap until it succeeds; as they were written.

        ``change`` may be called more than once for a key; what the last call made of it is in effect.
        """
        search = _Search(self.descriptor, keys)
        pauses = Pauses()
        unknown: dict[int, tuple[Mark, Array]] = {}
        written: list[Bucket] = []
        while search.left.size:
            descriptor = search.descriptor
            before = search.left.size
            for chosen in search.batches():
                buckets = self.store.read(descriptor, list(chosen))
                if any(bucket is None for bucket in buckets.values()) and self._replaced(descriptor):
                    break
                ready = self._ready(descriptor, search, buckets, chosen, unknown)
                made = [(change(bucket, places), bucket, places) for bucket, places in ready]
                for _, _, places in (one for one in made if one[0] is one[1]):
                    search.done(places)
                due = [one for one in made if one[0] is not one[1]]
                outcomes = self.store.write(descriptor, [bucket for bucket, _, _ in due])
                for (bucket, _, places), outcome in zip(due, outcomes):
                    if _settle(outcome, bucket.index, places, unknown):
                        search.done(places)
                        written.append(bucket)
            if search.left.size < before:
                pauses.progressed()
            if search.left.size:
                pauses.wait()
            search.next_round(self.descriptor)
        return written

    def _ready(
        self,
        descriptor: Descriptor,
        search: _Search,
        buckets: dict[int, Bucket | None],
        chosen: dict[int, Array],
        unknown: dict[int, tuple[Mark, Array]],
    ) -> list[tuple[Bucket, Array]]:
        """Buckets that can be changed now, with the places of their keys."""
        ready: list[tuple[Bucket, Array]] = []
        splitting: list[Bucket] = []
        for index, places in chosen.items():
            bucket = buckets[index]
            if bucket is None:
                self.lost_buckets += 1
                depth = max(depth_of(index, self.descriptor.buckets), index.bit_length())
                bucket = empty_bucket(index, depth, descriptor.columns)
            if index in unknown:
                mark, tried = unknown.pop(index)
                if bucket.mark == mark:
                    search.done(tried)
                    places = np.setdiff1d(places, tried)
            if bucket.state == SPLITTING:
                splitting.append(bucket)
                continue
            here = search.follow(bucket, places)
            if here.size:
                ready.append((bucket, here))
        for bucket in splitting:
            split(self.store, descriptor, [bucket.index], bucket.depth)
        return ready


def _settle(outcome: Outcome, index: int, places: Array, unknown: dict[int, tuple[Mark, Array]]) -> bool:
    """Whether a write took effect; noted if that is to be found out."""
    if isinstance(outcome, PutResult):
        return True
    if isinstance(outcome, Unknown):
        unknown[index] = outcome.mark, places
        return False
    raise_for_good(outcome)
    return False


class _Search:
    """Where each key is looked for next. ``left`` are the places of the keys that are not settled."""

    def __init__(self, descriptor: Descriptor, keys: Array) -> None:
        self._hashes = hash_keys(keys)
        self._keys = keys
        self._pending = np.ones(keys.size, dtype=bool)
        self._start(descriptor)

    def _start(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self._target = indexes_of(self._hashes, descriptor.buckets)
        self.left = np.flatnonzero(self._pending)

    def batches(self) -> Iterator[dict[int, Array]]:
        """Buckets with the places of their keys, by ascending keys; as many as are worked on at a time."""
        order = self.left[np.lexsort((self._keys[self.left], self._target[self.left]))]
        indexes, starts = np.unique(self._target[order], return_index=True)
        groups = np.split(order, starts[1:])
        step = max(1, min(256, BATCH_BYTES // self.descriptor.bucket_bytes))
        for at in range(0, len(groups), step):
            yield dict(zip(map(int, indexes[at : at + step]), groups[at : at + step]))

    def follow(self, bucket: Bucket, places: Array) -> Array:
        """The places whose keys belong to this bucket; the others are looked for where they went."""
        here = bucket.covers(self._hashes[places])
        moved = places[~here]
        self._target[moved] = bucket.where_went(self._hashes[moved])
        return np.asarray(places[here])

    def done(self, places: Array) -> None:
        self._pending[places] = False

    def next_round(self, descriptor: Descriptor) -> None:
        """With what is left; from the start if the table's rows were replaced."""
        if descriptor.generation != self.descriptor.generation:
            self._start(descriptor)
        self.left = np.flatnonzero(self._pending)
