"""What happens to a bucket's rows: each function makes a new bucket of an old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rawblockd_client.table.bucket import Bucket, hash_keys, low_bits
from rawblockd_client.table.columns import Array, Column


def updated(
    bucket: Bucket, keys: Array, parts: Mapping[str, Array], version: int, *, insert: bool
) -> tuple[Bucket, Array]:
    """The rows of these keys (ascending, each once) replaced, and which keys have one now.

    ``insert``: keys that aren't there get one, with the frequency they were sighted with.
    """
    at, there = bucket.find(keys)
    fresh = ~there if insert else np.zeros(keys.size, dtype=bool)
    if not there.any() and not fresh.any():
        return bucket, there
    rows = bucket.rows
    versions = bucket.version.copy()
    versions[at[there]] = version
    columns: dict[str, Array] = {}
    for name, held in bucket.parts.items():
        column = held.copy()
        column[at[there]] = parts[name][there]
        columns[name] = column
    changed = replace(bucket, version=versions, parts=columns)
    if fresh.any():
        seen = _candidate_frequency(changed, keys[fresh])
        changed = _without_candidates(changed, keys[fresh])
        new = {name: values[fresh] for name, values in parts.items()}
        changed = _inserted(changed, at[fresh], keys[fresh], seen, np.full_like(seen, version), new)
    assert changed.rows == rows + int(fresh.sum())
    return changed, there | fresh


def admitted(
    bucket: Bucket,
    keys: Array,
    sightings: Array,
    version: int,
    filter_freq: int,
    initial: Mapping[str, Array],
) -> tuple[Bucket, Array]:
    """Sightings of these keys (ascending, each once) counted, and which of them have a row now.

    A key gets its row, from ``initial``, when its sightings reach ``filter_freq``; until then it has frequency and
    version and nothing else.
    """
    at, there = bucket.find(keys)
    frequency = bucket.frequency.copy()
    frequency[at[there]] += sightings[there]
    bucket = replace(bucket, frequency=frequency)
    rest = ~there
    if not rest.any():
        return bucket, there
    count = sightings[rest] + _candidate_frequency(bucket, keys[rest])
    bucket = _without_candidates(bucket, keys[rest])
    ripe = count >= filter_freq
    places = np.flatnonzero(rest)
    now, later = places[ripe], places[~ripe]
    if now.size:
        rows = {name: values[now] for name, values in initial.items()}
        versions = np.full(now.size, version, dtype=np.int64)
        bucket = _inserted(bucket, at[now], keys[now], count[ripe], versions, rows)
        there[now] = True
    if later.size:
        bucket = _with_candidates(bucket, keys[later], count[~ripe], version)
    return bucket, there


def removed(bucket: Bucket, keys: Array) -> tuple[Bucket, Array]:
    """Without the rows, and the counts, of these keys; and which had one."""
    at, there = bucket.find(keys)
    bucket = _without_candidates(bucket, keys)
    if not there.any():
        return bucket, there
    gone = at[there]
    return (
        replace(
            bucket,
            keys=np.delete(bucket.keys, gone),
            frequency=np.delete(bucket.frequency, gone),
            version=np.delete(bucket.version, gone),
            parts={name: np.delete(column, gone, axis=0) for name, column in bucket.parts.items()},
        ),
        there,
    )


def halves(bucket: Bucket) -> tuple[Bucket, Bucket]:
    """The two buckets that a split makes: the one that stays, and the new one. Always the same two."""
    depth = bucket.depth + 1
    child = bucket.child_index()
    both = np.concatenate([bucket.keys, bucket.candidates])
    moves = low_bits(hash_keys(both), depth) == child
    return _part_of(bucket, ~moves, bucket.index, depth), _part_of(bucket, moves, child, depth)


def made_of(
    index: int,
    depth: int,
    keys: Array,
    frequency: Array,
    version: Array,
    parts: Mapping[str, Array],
    candidates: tuple[Array, Array, Array] | None = None,
) -> Bucket:
    """A bucket of rows that are given whole, ascending; candidates are keys, frequencies and versions."""
    none = np.zeros(0, dtype=np.int64)
    more_keys, more_frequency, more_version = candidates or (none, none, none)
    return Bucket(
        index,
        depth,
        keys,
        more_keys,
        np.concatenate([frequency, more_frequency]),
        np.concatenate([version, more_version]),
        dict(parts),
    )


def default_rows(columns: Sequence[Column], rows: int) -> dict[str, Array]:
    """Rows of declared defaults, for the columns that have one."""
    return {column.name: column.filled(rows) for column in columns if column.default is not None}


def _part_of(bucket: Bucket, chosen: Array, index: int, depth: int) -> Bucket:
    rows = chosen[: bucket.rows]
    return replace(
        bucket,
        index=index,
        depth=depth,
        keys=bucket.keys[rows],
        candidates=bucket.candidates[chosen[bucket.rows :]],
        frequency=bucket.frequency[chosen],
        version=bucket.version[chosen],
        parts={name: column[rows] for name, column in bucket.parts.items()},
        etag=None,
    )


def _inserted(
    bucket: Bucket, at: Array, keys: Array, frequency: Array, version: Array, parts: Mapping[str, Array]
) -> Bucket:
    """With new admitted rows at these places, ascending."""
    return replace(
        bucket,
        keys=np.insert(bucket.keys, at, keys),
        frequency=np.insert(bucket.frequency, at, frequency),
        version=np.insert(bucket.version, at, version),
        parts={name: np.insert(column, at, parts[name], axis=0) for name, column in bucket.parts.items()},
    )


def _candidate_places(bucket: Bucket, keys: Array) -> tuple[Array, Array]:
    at = np.searchsorted(bucket.candidates, keys)
    if not bucket.candidates.size:
        return at, np.zeros(keys.size, dtype=bool)
    return at, bucket.candidates[np.minimum(at, bucket.candidates.size - 1)] == keys


def _candidate_frequency(bucket: Bucket, keys: Array) -> Array:
    at, there = _candidate_places(bucket, keys)
    found = np.zeros(keys.size, dtype=np.int64)
    found[there] = bucket.frequency[bucket.rows + at[there]]
    return found


def _without_candidates(bucket: Bucket, keys: Array) -> Bucket:
    at, there = _candidate_places(bucket, keys)
    if not there.any():
        return bucket
    gone = at[there]
    return replace(
        bucket,
        candidates=np.delete(bucket.candidates, gone),
        frequency=np.delete(bucket.frequency, bucket.rows + gone),
        version=np.delete(bucket.version, bucket.rows + gone),
    )


def _with_candidates(bucket: Bucket, keys: Array, frequency: Array, version: int) -> Bucket:
    at, _ = _candidate_places(bucket, keys)
    return replace(
        bucket,
        candidates=np.insert(bucket.candidates, at, keys),
        frequency=np.insert(bucket.frequency, bucket.rows + at, frequency),
        version=np.insert(bucket.version, bucket.rows + at, np.full(keys.size, version, dtype=np.int64)),
    )
