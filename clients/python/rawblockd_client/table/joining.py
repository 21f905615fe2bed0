"""Parts that were saved one by one, each with its own list of keys, put together to rows: measured, then by a policy.

    reject    any difference refuses the whole
    drop      only rows that all parts have, at one version
    default   rows that a part lacks get its declared default, and are counted

Whatever the policy, each byte of a row was supplied for its key or declared as a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from rawblockd_client.table.columns import Array, Column, check_keys, duplicates, optional_column
from rawblockd_client.table.errors import DuplicateKeys, ImportRefused, NoDefault, RowsInvalid
from rawblockd_client.table.reports import EXAMPLES, Difference, ImportReport, Mixture, Range

REJECT, DROP, DEFAULT = POLICIES = ("reject", "drop", "default")


@dataclass(frozen=True)
class PartRows:
    """One part as it was saved: its keys, in any order, and a value for each; versions and frequencies if known."""

    keys: Array
    values: Array
    versions: Array | None = None
    frequencies: Array | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of all parts, by ascending keys."""

    keys: Array
    frequency: Array
    version: Array
    parts: dict[str, Array]


@dataclass(frozen=True)
class _Sorted:
    keys: Array
    values: Array
    versions: Array | None
    frequencies: Array | None

    def places(self, keys: Array) -> tuple[Array, Array]:
        """Where each key stands, and whether it does."""
        at = np.searchsorted(self.keys, keys)
        at_most = np.minimum(at, max(self.keys.size - 1, 0))
        if not self.keys.size:
            return at_most, np.zeros(keys.size, dtype=bool)
        return at_most, self.keys[at_most] == keys


def join_parts(
    columns: Sequence[Column], sources: Mapping[str, PartRows], policy: str
) -> tuple[Rows | None, ImportReport]:
    """The rows, None if the policy refuses them, and what was found.

    Raises RowsInvalid for what is no part, DuplicateKeys, and NoDefault where the policy can't be followed.
    """
    if policy not in POLICIES:
        raise ValueError(f"a policy is one of {', '.join(POLICIES)}")
    parts = _sorted_parts(columns, sources)
    report = ImportReport(policy, {name: int(part.keys.size) for name, part in parts.items()})
    report.differences = _differences(parts)
    report.mixtures, mixed = _mixtures(parts)
    if policy == REJECT and report.is_torn:
        return None, report
    union = np.unique(np.concatenate([part.keys for part in parts.values()]))
    if policy == DEFAULT:
        return _filled(columns, parts, union, report), report
    complete = union[~np.isin(union, mixed)]
    for part in parts.values():
        complete = complete[np.isin(complete, part.keys, assume_unique=True)]
    report.dropped = int(union.size - complete.size)
    return _filled(columns, parts, complete, report), report


def demand(rows: Rows | None, report: ImportReport) -> Rows:
    """Raises ImportRefused."""
    if rows is None:
        raise ImportRefused(report)
    return rows


def _sorted_parts(columns: Sequence[Column], sources: Mapping[str, PartRows]) -> dict[str, _Sorted]:
    known = {column.name: column for column in columns}
    for name in sources:
        if name not in known:
            raise RowsInvalid("the table has no such part", name)
    twice: dict[str, int] = {}
    parts: dict[str, _Sorted] = {}
    for column in columns:
        source = sources.get(column.name)
        if source is None:
            none = np.zeros(0, dtype=np.int64)
            parts[column.name] = _Sorted(none, column.empty(), None, None)
            continue
        parts[column.name] = _sorted(column, source)
        count = duplicates(parts[column.name].keys)
        if count:
            twice[column.name] = count
    if twice:
        raise DuplicateKeys(twice)
    return parts


def _sorted(column: Column, source: PartRows) -> _Sorted:
    keys = check_keys(source.keys)
    values = np.asarray(source.values)
    if values.ndim == 0 or len(values) != keys.size:
        count = 0 if values.ndim == 0 else len(values)
        raise RowsInvalid(f"{keys.size} keys and {count} values", column.name)
    column.check(values, keys.size)
    versions = optional_column(source.versions, keys.size, "versions")
    frequencies = optional_column(source.frequencies, keys.size, "frequencies")
    if keys.size < 2 or bool((keys[1:] > keys[:-1]).all()):
        return _Sorted(keys, values, versions, frequencies)
    order = np.argsort(keys, kind="stable")
    return _Sorted(
        keys[order],
        values[order],
        None if versions is None else versions[order],
        None if frequencies is None else frequencies[order],
    )


def _differences(parts: Mapping[str, _Sorted]) -> list[Difference]:
    found = []
    for one, other in permutations(parts, 2):
        lacking = ~np.isin(parts[one].keys, parts[other].keys, assume_unique=True)
        keys = parts[one].keys[lacking]
        if keys.size:
            versions = parts[one].versions
            span = None if versions is None else _range(versions[lacking])
            found.append(Difference(one, other, int(keys.size), tuple(map(int, keys[:EXAMPLES])), span))
    return found


def _mixtures(parts: Mapping[str, _Sorted]) -> tuple[list[Mixture], Array]:
    """Pairs whose versions differ, each once, and all keys that are concerned."""
    found: list[Mixture] = []
    mixed: list[Array] = [np.zeros(0, dtype=np.int64)]
    for one, other in permutations(parts, 2):
        versions, others = parts[one].versions, parts[other].versions
        if one > other or versions is None or others is None:
            continue
        at, there = parts[other].places(parts[one].keys)
        differ = np.flatnonzero(there)[versions[there] != others[at[there]]]
        if differ.size:
            keys = parts[one].keys[differ]
            span = _range(np.concatenate([versions[differ], others[at[differ]]]))
            found.append(Mixture(one, other, int(keys.size), tuple(map(int, keys[:EXAMPLES])), span))
            mixed.append(keys)
    return found, np.unique(np.concatenate(mixed))


def _filled(columns: Sequence[Column], parts: Mapping[str, _Sorted], keys: Array, report: ImportReport) -> Rows:
    """Rows of these keys. Version: the lowest that a part gives; frequency: the highest."""
    values: dict[str, Array] = {}
    unknown = np.iinfo(np.int64).max
    version = np.full(keys.size, unknown, dtype=np.int64)
    frequency = np.zeros(keys.size, dtype=np.int64)
    for column in columns:
        part = parts[column.name]
        at, there = part.places(keys)
        missing = int(keys.size - there.sum())
        if missing and column.default is None:
            raise NoDefault(column.name, missing)
        if missing:
            report.filled[column.name] = missing
            column_values = column.filled(keys.size)
            column_values[there] = part.values[at[there]]
        else:
            column_values = part.values[at]
        values[column.name] = column_values
        if part.versions is not None:
            version[there] = np.minimum(version[there], part.versions[at[there]])
        if part.frequencies is not None:
            frequency[there] = np.maximum(frequency[there], part.frequencies[at[there]])
    version[version == unknown] = 0
    report.rows = int(keys.size)
    return Rows(keys, frequency, version, values)


def _range(versions: Array) -> Range:
    return (int(versions.min()), int(versions.max())) if versions.size else None
