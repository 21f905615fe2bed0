"""Is this the record that the row speaks of? Identity first, then the payload, 64 KiB at a time (B1)."""

from __future__ import annotations

from storage.format.checksums import crc32c
from storage.format.layout import Defect, Undecodable
from storage.format.record import RecordHeader, pack_chunk_checksums, payload_checksum, read_header
from storage.format.row import Row
from storage.identity import Identity
from storage.limits import CHUNK_BYTES


def verified_header(head: memoryview, row: Row, generation: int, identity: Identity) -> RecordHeader:
    """The header at the start of ``head`` if it is the row's. Raises Undecodable."""
    if len(head) < row.header_bytes:
        raise Undecodable(Defect.INVALID, "record header: shorter than its row says")
    header = read_header(head, uuid=identity.uuid, secret=identity.secret)
    if header.write_id != row.write_id or header.digest != row.digest or header.namespace_id != row.namespace_id:
        raise Undecodable(Defect.WRONG_PLACE, "record header: another record")
    place = (header.slab, header.slot, header.slot_class, header.generation)
    if place != (row.slab, row.slot, row.slot_class, generation):
        raise Undecodable(Defect.WRONG_PLACE, "record header: another place")
    if header.header_bytes != row.header_bytes or header.payload_bytes != row.payload_bytes:
        raise Undecodable(Defect.INVALID, "record header: sizes differ from its row")
    if payload_checksum(pack_chunk_checksums(header.chunk_checksums)) != row.payload_checksum:
        raise Undecodable(Defect.CHECKSUM, "record header: chunk checksums differ from its row")
    return header


def verify_chunks(header: RecordHeader, first_chunk: int, payload: memoryview) -> None:
    """Check ``payload``, which starts at ``first_chunk`` and ends at a chunk's or the payload's end.

    Raises Undecodable.
    """
    checksums = header.chunk_checksums
    for index, begin in enumerate(range(0, len(payload), CHUNK_BYTES), first_chunk):
        if crc32c(payload[begin : begin + CHUNK_BYTES]) != checksums[index]:
            raise Undecodable(Defect.CHECKSUM, f"payload: chunk {index}")
