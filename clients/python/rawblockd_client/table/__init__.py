"""Embedding rows in a namespace (extra ``numpy``)."""

from __future__ import annotations

from rawblockd_client.table.archive import Snapshot, read_part, read_snapshot, write_snapshot
from rawblockd_client.table.columns import Column
from rawblockd_client.table.errors import (
    BucketInvalid,
    DuplicateKeys,
    ImportRefused,
    NoDefault,
    RowsInvalid,
    SnapshotDamaged,
    TableChanged,
    TableError,
    TableMismatch,
    TableMissing,
)
from rawblockd_client.table.joining import DEFAULT, DROP, REJECT, PartRows
from rawblockd_client.table.reports import Difference, Finding, ImportReport, Mixture, TableReport
from rawblockd_client.table.sanity import Check
from rawblockd_client.table.table import EmbeddingTable, Lookup

__all__ = [
    "DEFAULT",
    "DROP",
    "REJECT",
    "BucketInvalid",
    "Check",
    "Column",
    "Difference",
    "DuplicateKeys",
    "EmbeddingTable",
    "Finding",
    "ImportRefused",
    "ImportReport",
    "Lookup",
    "Mixture",
    "NoDefault",
    "PartRows",
    "RowsInvalid",
    "Snapshot",
    "SnapshotDamaged",
    "TableChanged",
    "TableError",
    "TableMismatch",
    "TableMissing",
    "TableReport",
    "read_part",
    "read_snapshot",
    "write_snapshot",
]
