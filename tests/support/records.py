"""Record headers as tests write them."""

from __future__ import annotations

from storage.format.record import RecordMap, pack_map


def encode_map(record_map: RecordMap) -> bytes:
    return pack_map(
        record_map.key,
        record_map.namespace,
        record_map.stored_ms,
        record_map.content_type,
        record_map.metadata,
        record_map.parts,
    )
