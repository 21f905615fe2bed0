"""A bucket: the rows whose keys' hashes end alike, as one record of named parts.

    row.head       uint64[8]   layout, generation, index, depth, state, mark (two), 0
    row.key        int64[n+c]  n admitted keys, ascending; then c keys below the filter, ascending
    row.frequency  int64[n+c]
    row.version    int64[n+c]
    each part      dtype[n, …] of the admitted keys, in their order

All of it is written under one write id: no reader ever sees parts of two generations of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rawblockd_client.arrays import arrays_of
from rawblockd_client.errors import AnswerInvalid
from rawblockd_client.models import Entry, Part
from rawblockd_client.table.columns import Array, Column
from rawblockd_client.table.errors import BucketInvalid

LAYOUT = 1
OPEN, SPLITTING = 0, 1
HEAD, KEY, FREQUENCY, VERSION = "row.head", "row.key", "row.frequency", "row.version"
ROW_BYTES = 24
"""Key, frequency and version."""
_HEAD_WORDS = 8


def hash_keys(keys: Array) -> Array:
    """The finalizer of splitmix64: each bit of the key moves each bit of the hash."""
    mixed = keys.view(np.uint64).copy()
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def low_bits(hashes: Array, depth: int) -> Array:
    return (hashes & np.uint64((1 << depth) - 1)).astype(np.int64)


def indexes_of(hashes: Array, buckets: int) -> Array:
    """The bucket of each hash in a table of so many: linear hashing, so that any number will do."""
    level = buckets.bit_length() - 1
    found = low_bits(hashes, level)
    split = found < buckets - (1 << level)
    if split.any():
        found[split] = low_bits(hashes[split], level + 1)
    return found


def depth_of(index: int, buckets: int) -> int:
    """How many low bits the hashes of a bucket's keys have in common, in a table of so many."""
    level = buckets.bit_length() - 1
    return level + 1 if index < buckets - (1 << level) or index >= 1 << level else level


@dataclass(frozen=True)
class Mark:
    """Names one write of one writer, so that he knows his own if its answer was lost."""

    writer: int
    number: int


NO_MARK = Mark(0, 0)


@dataclass(frozen=True)
class Bucket:
    """Arrays may be read-only views of an answer: a change makes new ones. ``etag`` None: there is no such record."""

    index: int
    depth: int
    keys: Array
    candidates: Array
    frequency: Array
    version: Array
    parts: dict[str, Array]
    state: int = OPEN
    mark: Mark = NO_MARK
    etag: str | None = None

    @property
    def rows(self) -> int:
        return int(self.keys.size)

    @property
    def size_bytes(self) -> int:
        rows = sum(array.nbytes for array in self.parts.values())
        return _HEAD_WORDS * 8 + ROW_BYTES * (self.keys.size + self.candidates.size) + rows

    def covers(self, hashes: Array) -> Array:
        """Which of these belong here: others went to a bucket that was split off."""
        return np.asarray(low_bits(hashes, self.depth) == self.index)

    def where_went(self, hashes: Array) -> Array:
        """For hashes that belonged here once: the bucket that was split off with them, which may have been split since.

        It is the one of the first split whose bit they have set; buckets further on may not have been made yet.
        """
        differing = hashes ^ np.uint64(self.index)
        lowest = differing & (~differing + np.uint64(1))
        return np.asarray(lowest.astype(np.int64) + self.index)

    def find(self, keys: Array) -> tuple[Array, Array]:
        """Where each key stands among the admitted ones, or would, and whether it does."""
        at = np.searchsorted(self.keys, keys)
        if not self.keys.size:
            return at, np.zeros(keys.size, dtype=bool)
        return at, self.keys[np.minimum(at, self.keys.size - 1)] == keys

    def child_index(self) -> int:
        return self.index + (1 << self.depth)


def empty_bucket(index: int, depth: int, columns: Sequence[Column]) -> Bucket:
    none = np.zeros(0, dtype=np.int64)
    return Bucket(index, depth, none, none, none, none, {column.name: column.empty() for column in columns})


def encode_bucket(bucket: Bucket, generation: int, columns: Sequence[Column]) -> tuple[list[Part], list[Any]]:
    """The record's parts and their bytes."""
    head = np.array(
        [LAYOUT, generation, bucket.index, bucket.depth, bucket.state, bucket.mark.writer, bucket.mark.number, 0],
        dtype=np.uint64,
    )
    count = int(bucket.keys.size + bucket.candidates.size)
    parts = [Part(HEAD, "uint64", (_HEAD_WORDS,))]
    parts += [Part(name, "int64", (count,)) for name in (KEY, FREQUENCY, VERSION)]
    parts += [Part(column.name, column.dtype, (bucket.rows, *column.shape)) for column in columns]
    pieces = [head, bucket.keys, bucket.candidates, bucket.frequency, bucket.version]
    pieces += [bucket.parts[column.name] for column in columns]
    return parts, [piece.tobytes() for piece in pieces]


def decode_bucket(entry: Entry, index: int, generation: int, columns: Sequence[Column]) -> Bucket:
    """Strictly; ``columns`` are those that were asked for. Raises BucketInvalid."""
    try:
        found = arrays_of(entry)
        head, keys = found.pop(HEAD), found.pop(KEY)
        frequency, version = found.pop(FREQUENCY), found.pop(VERSION)
    except (KeyError, TypeError, ValueError, AnswerInvalid) as error:
        raise BucketInvalid(f"bucket {index}: {error}") from None
    _demand(index, head.shape == (_HEAD_WORDS,) and head.dtype == np.uint64, "head")
    layout, named, place, depth, state, writer, number, zero = map(int, head)
    _demand(index, layout == LAYOUT and zero == 0, "layout")
    _demand(index, named == generation and place == index, "place")
    _demand(index, depth <= 48 and index < 1 << depth and state in (OPEN, SPLITTING), "depth or state")
    _demand(index, list(found) == [column.name for column in columns], "parts")
    rows = len(found[columns[0].name]) if columns else 0
    for column in columns:
        array = found[column.name]
        _demand(index, array.dtype == np.dtype(column.dtype) and array.shape == (rows, *column.shape), column.name)
    for array in (keys, frequency, version):
        _demand(index, array.dtype == np.int64 and array.shape == keys.shape and keys.ndim == 1, "keys")
    _demand(index, rows <= keys.size, "rows")
    return Bucket(
        index,
        depth,
        keys[:rows],
        keys[rows:],
        frequency,
        version,
        found,
        state,
        Mark(writer, number),
        entry.info.etag,
    )


def _demand(index: int, holds: bool, what: str) -> None:
    if not holds:
        raise BucketInvalid(f"bucket {index}: {what}")


def row_bytes(columns: Sequence[Column]) -> int:
    return ROW_BYTES + sum(column.row_bytes for column in columns)


def buckets_for(rows: int, columns: Sequence[Column], bucket_bytes: int) -> int:
    """How many buckets so many rows are kept in."""
    return max(1, math.ceil(rows * row_bytes(columns) / bucket_bytes))
