"""The row that a record's header makes of its slot, where the header is what proves the entry."""

from __future__ import annotations

from storage.format.record import HEADER_UNIT_BYTES, RecordHeader, pack_chunk_checksums, payload_checksum
from storage.format.row import SlotState, encode_row
from storage.index import Index


def put_live_row(index: Index, row_id: int, header: RecordHeader, slot_class: int, seq: int, page_seq: int) -> None:
    """Set the row of a header's slot. Its seq is ``seq``, or that of the slab, whichever is later."""
    table = index.table
    raw = encode_row(
        index.seed,
        state=SlotState.LIVE,
        slot_class=slot_class,
        slab=header.slab,
        slot=header.slot,
        seq=max(seq, int(table.slab_seq[header.slab])),
        namespace_id=header.namespace_id,
        write_id=header.write_id,
        digest=header.digest,
        payload_bytes=header.payload_bytes,
        payload_checksum=payload_checksum(pack_chunk_checksums(header.chunk_checksums)),
        expires_at=header.expires_at,
        header_units=header.header_bytes // HEADER_UNIT_BYTES,
    )
    table.set_row(row_id, raw, page_seq)
