"""Is this the record that the row speaks of? Identity first, then the payload, 64 KiB at a time (B1)."""

from __future__ import annotations

from operator import itemgetter

from storage.format.checksums import crc32c
from storage.format.layout import Defect, Undecodable
from storage.format.record import RecordHeader, payload_checksum_in, read_header
from storage.format.row import Row
from storage.identity import Identity
from storage.limits import CHUNK_BYTES

_IDENTITY = ("write_id", "digest", "namespace_id")
_PLACE = ("slab", "slot", "slot_class")
_IN_BOTH = (*_IDENTITY, *_PLACE, "payload_bytes")
# One comparison of two tuples made in C instead of seven of attributes: this is done for every read.
_of_header = itemgetter(*map(RecordHeader._fields.index, _IN_BOTH))
_of_row = itemgetter(*map(Row._fields.index, _IN_BOTH))


def verified_header(head: memoryview, row: Row, generation: int, identity: Identity) -> RecordHeader:
    """The header at the start of ``head`` if it is the row's. Raises Undecodable."""
    header_bytes = row.header_bytes
    if len(head) < header_bytes:
        raise Undecodable(Defect.INVALID, "record header: shorter than its row says")
    header = read_header(head, uuid=identity.uuid, secret=identity.secret)
    if _of_header(header) != _of_row(row) or header.generation != generation or header.header_bytes != header_bytes:
        raise _difference(header, row, generation)
    if payload_checksum_in(head, header) != row.payload_checksum:
        raise Undecodable(Defect.CHECKSUM, "record header: chunk checksums differ from its row")
    return header


def _difference(header: RecordHeader, row: Row, generation: int) -> Undecodable:
    """What differs between a header and a row of which something does."""
    if any(getattr(header, name) != getattr(row, name) for name in _IDENTITY):
        return Undecodable(Defect.WRONG_PLACE, "record header: another record")
    if header.generation != generation or any(getattr(header, name) != getattr(row, name) for name in _PLACE):
        return Undecodable(Defect.WRONG_PLACE, "record header: another place")
    return Undecodable(Defect.INVALID, "record header: sizes differ from its row")


def verify_chunks(header: RecordHeader, first_chunk: int, payload: memoryview) -> None:
    """Check ``payload``, which starts at ``first_chunk`` and ends at a chunk's or the payload's end.

    Raises Undecodable.
    """
    checksums = header.chunk_checksums
    at, chunk, size = 0, first_chunk, len(payload)
    while at < size:
        if crc32c(payload[at : at + CHUNK_BYTES]) != checksums[chunk]:
            raise Undecodable(Defect.CHECKSUM, f"payload: chunk {chunk}")
        at += CHUNK_BYTES
        chunk += 1
