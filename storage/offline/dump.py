"""Every entry as a recovery would see it, with its key where the record header verifies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from storage.format.record import RecordHeader
from storage.format.row import QuarantineReason, Row, SlotState, plausible
from storage.identity import Identity
from storage.index import Index
from storage.offline.findings import Findings
from storage.offline.opening import OpenCache, opened
from storage.offline.records import ReadRecord, RecordScan
from storage.offline.state import ANYTHING, live_row_ids, quarantined_row_ids, recovered_state
from storage.recovery.report import SkippedEntry

STEP_ROWS = 4096
"""Rows whose records are read before the next ones are looked up."""


def dump(path: str, clock: Callable[[], float] = time.time) -> Iterator[dict[str, Any]]:
    """Live and expired entries in the order of the device, then quarantined slots, then skipped entries.

    ``entry`` says which of the four it is. Times are seconds since 1970. Raises as ``opened``, RecoveryRefused,
    DeviceFailed, Undecodable.
    """
    with opened(path) as cache:
        recovered = recovered_state(cache, Findings(), ANYTHING, clock)
        index = recovered.index
        yield from _entries(cache, index, clock())
        for row_id in quarantined_row_ids(index).tolist():
            yield _quarantined(index, index.table.row(row_id))
        for entry in recovered.report.skipped:
            yield _skipped(index, entry)


def _entries(cache: OpenCache, index: Index, now_seconds: float) -> Iterator[dict[str, Any]]:
    scan = RecordScan(cache.reader, index, Identity(cache.superblock, 1), payloads=False)
    live = live_row_ids(index)
    for rows in np.array_split(live, max(1, -(-len(live) // STEP_ROWS))):
        for record in scan.read(rows):
            yield _entry(index, record, now_seconds)


def _entry(index: Index, record: ReadRecord, now_seconds: float) -> dict[str, Any]:
    row = record.row
    expired = 0 < row.expires_at <= now_seconds
    return {
        "entry": "expired" if expired else "live",
        **_named(index, row),
        **_header_facts(record.header),
        "expires_at": row.expires_at,
        **_place(index, row),
        "defect": record.defect or None,
    }


def _header_facts(header: RecordHeader | None) -> dict[str, Any]:
    """What only the record says; empty where its header is not the row's. ``key`` is None if it is no UTF-8."""
    if header is None:
        return {"key": None, "key_hex": None, "content_type": None, "metadata": None, "stored_at": None}
    return {
        "key": _text(header.map.key),
        "key_hex": header.map.key.hex(),
        "content_type": header.map.content_type,
        "metadata": dict(header.map.metadata),
        "stored_at": header.map.stored_ms / 1000,
    }


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _named(index: Index, row: Row) -> dict[str, Any]:
    namespace = index.namespaces.by_id.get(row.namespace_id)
    return {
        "namespace": namespace.name if namespace is not None else None,
        "digest": row.digest.hex(),
        "write_id": f"{row.write_id:016x}",
        "payload_bytes": row.payload_bytes,
        "header_bytes": row.header_bytes,
    }


def _place(index: Index, row: Row) -> dict[str, Any]:
    known = row.slot_class < len(index.geometry.class_bytes)
    return {
        "slab": row.slab,
        "slot": row.slot,
        "slot_class": row.slot_class,
        "slot_bytes": index.geometry.class_bytes[row.slot_class] if known else None,
        "seq": row.seq,
    }


def _quarantined(index: Index, row: Row) -> dict[str, Any]:
    """Evidence: the names are those of the entry the slot held, where they were known."""
    named = _named(index, row) if row.write_id else {}
    return {
        "entry": "quarantined",
        "reason": QuarantineReason(row.reason).name.lower(),
        **named,
        **_place(index, row),
    }


def _skipped(index: Index, entry: SkippedEntry) -> dict[str, Any]:
    """What could not be settled: the raw row, and what it claims if it claims a possible entry."""
    claimed = entry.claimed()
    possible = claimed.state == SlotState.LIVE and plausible(claimed)
    return {
        "entry": "skipped",
        "reason": entry.reason.value,
        "copy": entry.copy if entry.copy >= 0 else None,
        "page": entry.page,
        **(_named(index, claimed) if possible else {}),
        "slab": entry.slab,
        "slot": entry.slot,
        "raw": entry.raw.hex(),
    }
