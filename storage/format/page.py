"""The page: one block of the slot table; a header line, then the rows of a run of slots of one slab."""

from __future__ import annotations

import struct
from typing import NamedTuple

from storage.format.checksums import Buffer, crc32c_without
from storage.format.layout import Defect, Field, Layout, Undecodable

MAGIC = b"RAWBLKPG"
VERSION = 1

PAGE = Layout(
    "page header",
    64,
    [
        Field("magic", "8s", "`RAWBLKPG`"),
        Field("checksum", "I", "CRC32C of the whole block, this field as zero"),
        Field("version", "H", "format version, 1"),
        Field("copy", "B", "place: checkpoint copy"),
        Field("slot_class", "B", "slot class of the slab"),
        Field("uuid", "16s", "identity of the device"),
        Field("page", "I", "place: page number in the slot table"),
        Field("slab", "I", "place: slab"),
        Field("reserved", "4s", "zero"),
        Field("first_slot", "I", "slot of the first row"),
        Field("seq", "Q", "the page holds every row of its slots up to this seq, and may hold later ones"),
        Field("generation", "Q", "place: generation of the slab"),
    ],
)
_CHECKSUM_OFFSET = PAGE.offsets["checksum"]
_CHECKSUM = struct.Struct("<I")


class PageHeader(NamedTuple):
    copy: int
    slot_class: int
    page: int
    slab: int
    generation: int
    first_slot: int
    seq: int


def seal_page(block: memoryview, uuid: bytes, header: PageHeader) -> int:
    """Write the header line into ``block``, whose rows are in place already; returns the page's checksum."""
    PAGE.struct.pack_into(
        block,
        0,
        MAGIC,
        0,
        VERSION,
        header.copy,
        header.slot_class,
        uuid,
        header.page,
        header.slab,
        b"",
        header.first_slot,
        header.seq,
        header.generation,
    )
    checksum = crc32c_without(block, _CHECKSUM_OFFSET)
    _CHECKSUM.pack_into(block, _CHECKSUM_OFFSET, checksum)
    return checksum


def page_checksum(block: Buffer) -> tuple[int, int]:
    """The checksum a page claims and the one its bytes have."""
    return _CHECKSUM.unpack_from(block, _CHECKSUM_OFFSET)[0], crc32c_without(block, _CHECKSUM_OFFSET)


def decode_page_header(block: Buffer, uuid: bytes, *, copy: int, page: int) -> PageHeader:
    """Verify a page and decode its header. Raises Undecodable; rows are judged apart."""
    (
        magic,
        checksum,
        version,
        stored_copy,
        slot_class,
        stored_uuid,
        stored_page,
        slab,
        reserved,
        first_slot,
        seq,
        generation,
    ) = PAGE.struct.unpack_from(block, 0)
    if magic != MAGIC:
        raise Undecodable(Defect.MAGIC, "page")
    if checksum != crc32c_without(block, _CHECKSUM_OFFSET):
        raise Undecodable(Defect.CHECKSUM, "page")
    if version != VERSION:
        raise Undecodable(Defect.VERSION, "page")
    if stored_uuid != uuid:
        raise Undecodable(Defect.WRONG_DEVICE, "page")
    if stored_copy != copy or stored_page != page:
        raise Undecodable(Defect.WRONG_PLACE, f"page {stored_page} of copy {stored_copy}")
    if any(reserved):
        raise Undecodable(Defect.INVALID, "page: reserved bytes")
    return PageHeader(stored_copy, slot_class, stored_page, slab, generation, first_slot, seq)
