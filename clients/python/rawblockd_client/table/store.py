"""Buckets as records: reading many at once, and writing each in place of the one that was read."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Union

from rawblockd_client.client import Client
from rawblockd_client.errors import ClientError, ConnectionFailed, DeadlineExceeded, Problem
from rawblockd_client.models import Entry, PutItem, PutResult
from rawblockd_client.problems import BatchTooLarge, FlushFailed
from rawblockd_client.table.bucket import FREQUENCY, HEAD, KEY, VERSION, Bucket, Mark, decode_bucket, encode_bucket
from rawblockd_client.table.columns import Column
from rawblockd_client.table.descriptor import Descriptor

BATCH_BYTES = 8 << 20
BATCH_BUCKETS = 1024


class Unknown:
    """Whether a write took effect isn't known: whoever reads the bucket finds its mark there, or not."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark


Outcome = Union[PutResult, Problem, Unknown]


class BucketStore:
    def __init__(self, client: Client, namespace: str, table: str, durability: str | None) -> None:
        self._client = client
        self._namespace = namespace
        self._table = table
        self._durability = durability
        self._writer = secrets.randbits(64) or 1
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def key(self, generation: int, index: int) -> str:
        return f"{self._table}/{generation:016x}/{index:08x}"

    def read(
        self, descriptor: Descriptor, indexes: Sequence[int], columns: Sequence[Column] | None = None
    ) -> dict[int, Bucket | None]:
        """The buckets, None for those that aren't there; with ``columns``, only these parts of the rows.

        Raises BucketInvalid, and the problem of a bucket that can't be read.
        """
        wanted = descriptor.columns if columns is None else columns
        names = None
        if columns is not None:
            names = [HEAD, KEY, FREQUENCY, VERSION, *(column.name for column in columns)]
        found: dict[int, Bucket | None] = {}
        step = max(1, min(BATCH_BUCKETS, BATCH_BYTES // descriptor.bucket_bytes))
        for at in range(0, len(indexes), step):
            chosen = indexes[at : at + step]
            keys = [self.key(descriptor.generation, index) for index in chosen]
            results = self._client.mget(self._namespace, keys, parts=names, views=True)
            for index, result in zip(chosen, results):
                if isinstance(result, Problem):
                    raise result
                found[index] = None
                if isinstance(result, Entry):
                    found[index] = decode_bucket(result, index, descriptor.generation, wanted)
        return found

    def write(self, descriptor: Descriptor, buckets: Sequence[Bucket]) -> list[Outcome]:
        """Put each in place of the one with its etag, or where there is none; an outcome for each."""
        outcomes: list[Outcome] = []
        for batch in self._batches(buckets):
            outcomes += self._write_batch(descriptor, batch)
        return outcomes

    def delete(self, generation: int, indexes: Iterable[int]) -> None:
        keys = [self.key(generation, index) for index in indexes]
        self.delete_keys(keys)

    def delete_keys(self, keys: Sequence[str | bytes]) -> None:
        for result in self._client.mdelete(self._namespace, keys):
            if isinstance(result, Problem):
                raise result

    def stored_keys(self) -> list[bytes]:
        """The keys of all records of this table, of whatever generation."""
        prefix = f"{self._table}/".encode()
        return [entry.key for entry in self._client.listing(self._namespace, prefix=prefix)]

    def _batches(self, buckets: Sequence[Bucket]) -> Iterable[list[Bucket]]:
        batch: list[Bucket] = []
        size = 0
        for bucket in buckets:
            if batch and (size + bucket.size_bytes > BATCH_BYTES or len(batch) == BATCH_BUCKETS):
                yield batch
                batch, size = [], 0
            batch.append(bucket)
            size += bucket.size_bytes
        if batch:
            yield batch

    def _write_batch(self, descriptor: Descriptor, buckets: list[Bucket]) -> list[Outcome]:
        marked = [replace(bucket, mark=self._draw_mark()) for bucket in buckets]
        items = [self._item(descriptor, bucket) for bucket in marked]
        try:
            results = self._client.mput(self._namespace, items, ttl="none", durability=self._durability)
        except BatchTooLarge:
            if len(buckets) == 1:
                raise
            middle = len(buckets) // 2
            return self._write_batch(descriptor, buckets[:middle]) + self._write_batch(descriptor, buckets[middle:])
        except ClientError as error:
            if not isinstance(error, (ConnectionFailed, DeadlineExceeded, FlushFailed)):
                raise
            return [Unknown(bucket.mark) for bucket in marked]
        return [
            Unknown(bucket.mark) if isinstance(result, FlushFailed) else result
            for bucket, result in zip(marked, results)
        ]

    def _item(self, descriptor: Descriptor, bucket: Bucket) -> PutItem:
        parts, pieces = encode_bucket(bucket, descriptor.generation, descriptor.columns)
        return PutItem(
            self.key(descriptor.generation, bucket.index),
            pieces,
            if_match=bucket.etag,
            if_absent=bucket.etag is None,
            parts=parts,
        )

    def _draw_mark(self) -> Mark:
        with self._lock:
            return Mark(self._writer, next(self._numbers))
