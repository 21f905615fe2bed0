"""``EmbeddingTable``: rows of named parts under whole-number keys, many rows to a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rawblockd_client.client import Client
from rawblockd_client.table import changes
from rawblockd_client.table.access import Change, TableAccess
from rawblockd_client.table.archive import Snapshot, read_part, read_snapshot, write_snapshot
from rawblockd_client.table.bucket import Bucket, row_bytes
from rawblockd_client.table.columns import Array, Column, check_columns, check_keys, duplicates
from rawblockd_client.table.descriptor import Descriptor, DescriptorRecord
from rawblockd_client.table.errors import DuplicateKeys, NoDefault, RowsInvalid, TableMismatch, TableMissing
from rawblockd_client.table.growth import grow
from rawblockd_client.table.joining import REJECT, PartRows, demand, join_parts
from rawblockd_client.table.making import make_table, replace_rows, sweep
from rawblockd_client.table.reports import ImportReport, TableReport
from rawblockd_client.table.sanity import Check, Inspection
from rawblockd_client.table.scan import scan
from rawblockd_client.table.store import BucketStore

BUCKET_BYTES = 32 * 1024
GROWTH = 2
"""By how much of its size a table is filled up before it is looked whether it needs more buckets."""
FULL = 2.0
"""A bucket of so many times ``bucket_bytes`` makes the table grow."""


@dataclass(frozen=True)
class Lookup:
    """A row for each key asked for, in their order. Where ``found`` is false the parts are their declared defaults,
    frequency and version 0."""

    parts: dict[str, Array]
    found: Array
    frequency: Array
    version: Array


class EmbeddingTable:
    """A table in a namespace; made if it isn't there yet, and then of these parts.

    ``filter_freq``: a key gets its row with so many sightings (``admit``); up to 1: at once. ``expected_rows``: how
    many the table is made for at first; it grows by itself. May be used by several threads and processes at once.
    Calls raise ``ClientError``; ``columns`` None opens a table that must be there (TableMissing).
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        columns: Sequence[Column] | None = None,
        *,
        name: str = "embedding",
        filter_freq: int = 0,
        expected_rows: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
        durability: str | None = None,
    ) -> None:
        self._store = BucketStore(client, namespace, name, durability)
        self._record = DescriptorRecord(client, namespace, name, durability)
        found = self._record.read()
        if found is None:
            if columns is None:
                raise TableMissing(f"there is no table {name} in {namespace}")
            made = Descriptor(check_columns(columns), filter_freq, bucket_bytes, 0, 1)
            found = make_table(self._store, self._record, made, expected_rows)
        if columns is not None and (found.columns != tuple(columns) or found.filter_freq != filter_freq):
            raise TableMismatch(
                f"the table has the parts {[column.name for column in found.columns]}, others are asked"
            )
        self._access = TableAccess(self._store, self._record, found)

    @property
    def columns(self) -> Sequence[Column]:
        return self._access.descriptor.columns

    @property
    def filter_freq(self) -> int:
        return self._access.descriptor.filter_freq

    @property
    def buckets(self) -> int:
        """How many there are, as far as this object has seen."""
        return self._access.descriptor.buckets

    @property
    def lost_buckets(self) -> int:
        """Buckets that were found missing so far: evicted or damaged, and their rows with them."""
        return self._access.lost_buckets

    # -- rows -----------------------------------------------------------------------------------------------------

    def lookup(self, keys: Any, parts: Sequence[str] | None = None) -> Lookup:
        """The rows of these keys, which may repeat; with ``parts`` only these. Raises NoDefault where a row is missing
        and a part has no default: nothing stands in for what was never declared."""
        wanted = check_keys(keys)
        columns = [self._column(name) for name in parts] if parts is not None else list(self.columns)
        unique, back = np.unique(wanted, return_inverse=True)
        values = {column.name: np.zeros((unique.size, *column.shape), dtype=column.dtype) for column in columns}
        found = np.zeros(unique.size, dtype=bool)
        frequency, version = np.zeros(unique.size, dtype=np.int64), np.zeros(unique.size, dtype=np.int64)
        for bucket, places in self._access.each(unique, None if parts is None else columns):
            if bucket is None:
                continue
            at, there = bucket.find(unique[places])
            rows, at = places[there], at[there]
            found[rows] = True
            frequency[rows], version[rows] = bucket.frequency[at], bucket.version[at]
            for column in columns:
                values[column.name][rows] = bucket.parts[column.name][at]
        missing = int(unique.size - found.sum())
        for column in columns if missing else ():
            if column.default is None:
                raise NoDefault(column.name, missing)
            values[column.name][~found] = column.default
        return Lookup(
            {name: array[back] for name, array in values.items()}, found[back], frequency[back], version[back]
        )

    def update(self, keys: Any, parts: Mapping[str, Any], version: int = 0) -> Array:
        """Replace the rows of these keys, each with all of its parts; which keys have a row now.

        Without a filter, keys that have no row get one. With one, keys below it are left out. Buckets are written one
        by one: an exception leaves rows of before and of after, never a mixture within a row; made again, the update
        is whole.
        """
        wanted = check_keys(keys)
        values = self._whole_rows(parts, wanted.size)
        order = self._order(wanted)
        done = np.zeros(wanted.size, dtype=bool)
        sorted_keys = wanted[order]
        sorted_values = {name: array[order] for name, array in values.items()}
        insert = self.filter_freq <= 1

        def change(bucket: Bucket, places: Array) -> Bucket:
            chosen = {name: array[places] for name, array in sorted_values.items()}
            changed, there = changes.updated(bucket, sorted_keys[places], chosen, version, insert=insert)
            done[order[places]] = there
            return changed

        self._change(sorted_keys, change)
        return done

    def admit(self, keys: Any, version: int = 0, initial: Mapping[str, Any] | None = None) -> Array:
        """Count a sighting of each of these keys, which may repeat; which have a row now.

        A key whose sightings reach ``filter_freq`` gets its row: from ``initial`` (a row for each of ``keys``; of keys
        that repeat, the first counts), else of declared defaults. Raises NoDefault.
        """
        wanted = check_keys(keys)
        unique, first, back, sightings = np.unique(wanted, return_index=True, return_inverse=True, return_counts=True)
        rows = changes.default_rows(self.columns, unique.size)
        for name, given in (initial or {}).items():
            rows[name] = self._column(name).check(given, wanted.size)[first]
        for column in self.columns:
            if column.name not in rows:
                raise NoDefault(column.name, int(unique.size))
        done = np.zeros(unique.size, dtype=bool)
        filter_freq = self.filter_freq

        def change(bucket: Bucket, places: Array) -> Bucket:
            chosen = {name: array[places] for name, array in rows.items()}
            changed, there = changes.admitted(bucket, unique[places], sightings[places], version, filter_freq, chosen)
            done[places] = there
            return changed

        self._change(unique, change)
        return np.asarray(done[back])

    def remove(self, keys: Any) -> Array:
        """Rows and counts of these keys are gone; which had a row."""
        unique, back = np.unique(check_keys(keys), return_inverse=True)
        done = np.zeros(unique.size, dtype=bool)

        def change(bucket: Bucket, places: Array) -> Bucket:
            changed, there = changes.removed(bucket, unique[places])
            done[places] = there
            return changed

        self._access.change(unique, change)
        return np.asarray(done[back])

    # -- snapshots and imports ------------------------------------------------------------------------------------

    def snapshot(self, path: str | Path) -> Snapshot:
        """All rows into a file, while others go on writing: each row as one update left it. What it wrote."""
        found = scan(self._access)
        snapshot = Snapshot(tuple(self.columns), self.filter_freq, found.rows, found.candidates)
        write_snapshot(path, snapshot)
        return snapshot

    def restore(
        self, path: str | Path, policy: str = REJECT, checks: Mapping[str, Check] | None = None
    ) -> ImportReport:
        """Replace all rows by those of a snapshot, at once. The policy says what becomes of parts that the table has
        and the file lacks. Raises SnapshotDamaged, ImportRefused, RowsInvalid, TableChanged."""
        snapshot = read_snapshot(path)
        rows = snapshot.rows
        for column in snapshot.columns:
            self._demand_same(column)
        sources = {
            column.name: PartRows(rows.keys, rows.parts[column.name], rows.version, rows.frequency)
            for column in snapshot.columns
        }
        joined, report = join_parts(self.columns, sources, policy)
        found = demand(joined, report)
        self._inspect(report, found.keys, found.parts, checks)
        self._replace(found, snapshot.candidates)
        report.committed = True
        return report

    def import_parts(
        self,
        sources: Mapping[str, PartRows | str | Path],
        policy: str = REJECT,
        checks: Mapping[str, Check] | None = None,
        *,
        dry_run: bool = False,
    ) -> ImportReport:
        """Replace all rows by parts that were saved one by one, each with its own keys: files, or arrays.

        Nothing is visible before all is written. ``dry_run`` reports and changes nothing. Raises ImportRefused with the
        report, DuplicateKeys, RowsInvalid, NoDefault, TableChanged.
        """
        parts = {
            name: source if isinstance(source, PartRows) else read_part(source) for name, source in sources.items()
        }
        joined, report = join_parts(self.columns, parts, policy)
        if joined is None and dry_run:
            return report
        found = demand(joined, report)
        self._inspect(report, found.keys, found.parts, checks)
        if not dry_run:
            none = np.zeros(0, dtype=np.int64)
            self._replace(found, (none, none, none))
            report.committed = True
        return report

    def check(self, checks: Mapping[str, Check] | None = None) -> TableReport:
        """Read the whole table and count. Nothing is altered."""
        found = scan(self._access)
        inspection = Inspection(self._named(checks))
        inspection.look(found.rows.keys, found.rows.parts)
        version = found.rows.version
        return TableReport(
            rows=int(found.rows.keys.size),
            candidates=int(found.candidates[0].size),
            buckets=found.buckets,
            lost_buckets=found.lost_buckets,
            stored_bytes=found.stored_bytes,
            findings=inspection.findings,
            versions=(int(version.min()), int(version.max())) if version.size else None,
        )

    def sweep(self) -> int:
        """Delete what restores and imports that were cut short left behind; how many records. Not while one runs."""
        return sweep(self._store, self._access.refresh())

    # -- inside ---------------------------------------------------------------------------------------------------

    def _column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise RowsInvalid("the table has no such part", name)

    def _demand_same(self, column: Column) -> None:
        mine = self._column(column.name)
        if (mine.dtype, mine.shape) != (column.dtype, column.shape):
            given = f"{column.dtype}{list(column.shape)}"
            raise RowsInvalid(f"the file has {given}, the table {mine.dtype}{list(mine.shape)}", column.name)

    def _whole_rows(self, parts: Mapping[str, Any], rows: int) -> dict[str, Array]:
        for name in parts:
            self._column(name)
        lacking = [column.name for column in self.columns if column.name not in parts]
        if lacking:
            raise RowsInvalid("a row is written with all of its parts", lacking[0])
        return {column.name: column.check(parts[column.name], rows) for column in self.columns}

    def _order(self, keys: Array) -> Array:
        count = duplicates(keys)
        if count:
            raise DuplicateKeys({"keys": count})
        return np.argsort(keys)

    def _named(self, checks: Mapping[str, Check] | None) -> Mapping[str, Check]:
        for name in checks or {}:
            self._column(name)
        return checks or {}

    def _inspect(
        self, report: ImportReport, keys: Array, parts: Mapping[str, Array], checks: Mapping[str, Check] | None
    ) -> None:
        inspection = Inspection(self._named(checks))
        inspection.look(keys, parts)
        report.findings = inspection.findings

    def _replace(self, rows: Any, candidates: Any) -> None:
        self._access.descriptor = replace_rows(self._store, self._record, self._access.refresh(), rows, candidates)

    def _change(self, keys: Array, change: Change) -> None:
        """Some keys at a time, so that the table grows on the way and no bucket gets too large for a record."""
        rows = max(1, self._access.descriptor.bucket_bytes // row_bytes(self.columns))
        at = 0
        while at < keys.size:
            first, at = at, at + GROWTH * rows * self.buckets
            self._grow_after(self._access.change(keys[first:at], _shifted(change, first)))

    def _grow_after(self, written: list[Bucket]) -> None:
        """Buckets of a table are about alike: those that were just written tell how large the others are."""
        descriptor = self._access.descriptor
        target = descriptor.bucket_bytes
        full = [bucket for bucket in written if bucket.size_bytes > FULL * target]
        if not full:
            return
        if len(written) * 4 >= descriptor.buckets:
            mean = sum(bucket.size_bytes for bucket in written) / len(written)
            wanted = max(descriptor.buckets + len(full), int(descriptor.buckets * mean / target))
        else:
            wanted = descriptor.buckets + len(full)
        grown = grow(self._store, self._record, descriptor, wanted)
        if grown is not None:
            self._access.descriptor = grown
        else:
            self._access.refresh()


def _shifted(change: Change, first: int) -> Change:
    """The change for keys that are told from ``first`` on."""
    return lambda bucket, places: change(bucket, places + first)
