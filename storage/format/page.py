"""The page: one block of the slot table; a header line, then the rows of a run of slots of one slab."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.format.checksums import Buffer, crc32c, crc32c_of_blocks_without, crc32c_without, leading_to
from storage.format.layout import Defect, Field, Layout, Undecodable
from storage.format.row import ACCESS_OFFSET, ROW_BYTES

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

PAGE_DTYPE = np.dtype(
    [
        ("magic", "S8"),
        ("checksum", "<u4"),
        ("version", "<u2"),
        ("copy", "u1"),
        ("slot_class", "u1"),
        ("uuid", "V16"),
        ("page", "<u4"),
        ("slab", "<u4"),
        ("reserved", "V4"),
        ("first_slot", "<u4"),
        ("seq", "<u8"),
        ("generation", "<u8"),
    ]
)
assert PAGE_DTYPE.itemsize == PAGE.size_bytes
assert PAGE_DTYPE.names == tuple(f.name for f in PAGE.fields)
PageHeaders = npt.NDArray[Any]
"""A structured array of ``PAGE_DTYPE``."""


class PageHeader(NamedTuple):
    copy: int
    slot_class: int
    page: int
    slab: int
    generation: int
    first_slot: int
    seq: int


def seal_pages(blocks: memoryview, uuid: bytes, headers: PageHeaders) -> npt.NDArray[np.uint32]:
    """Write the header lines into neighbouring pages whose rows are in place already; returns their checksums.

    Of ``headers`` only what tells one page from another has to be filled in: copy, class, place, generation and seq.
    Of many pages at once: some 1 µs each, half of it for the CRC.
    """
    size = len(blocks) // len(headers)
    lines: PageHeaders = np.ndarray(len(headers), dtype=PAGE_DTYPE, buffer=blocks, strides=size)
    lines[:] = headers
    lines["magic"], lines["checksum"], lines["version"] = MAGIC, 0, VERSION
    lines["uuid"], lines["reserved"] = np.frombuffer(uuid, dtype="V16"), b""
    # The checksum counts itself as zero, and that it is now.
    sums = [crc32c(blocks[begin : begin + size]) for begin in range(0, len(blocks), size)]
    checksums = np.array(sums, dtype=np.uint32)
    lines["checksum"] = checksums
    return checksums


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


def blank_headers(count: int, uuid: bytes, copy: int) -> PageHeaders:
    """Header lines of pages of a copy, to be completed column by column."""
    headers = np.zeros(count, dtype=PAGE_DTYPE)
    headers["magic"], headers["version"], headers["copy"] = MAGIC, VERSION, copy
    headers["uuid"] = np.void(uuid)
    return headers


def pages_as_named(blocks: memoryview, block_bytes: int, headers: PageHeaders) -> npt.NDArray[np.bool_]:
    """Which of neighbouring pages begin with exactly the header line given for each, and hold its checksum.

    It says no more than that ``decode_page_header`` would return these headers; of the others that one says why not.
    """
    found = np.frombuffer(blocks, dtype=np.uint64).reshape(len(headers), -1)[:, : PAGE.size_bytes // 8]
    wanted = headers.view(np.uint64).reshape(len(headers), -1)
    as_named: npt.NDArray[np.bool_] = (found == wanted).all(axis=1)
    as_named &= crc32c_of_blocks_without(blocks, block_bytes, _CHECKSUM_OFFSET) == headers["checksum"]
    return as_named


def rows_hold(blocks: memoryview, block_bytes: int, seed: int, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """In which of neighbouring pages the checksums of all rows hold; ``slots`` is the number of rows of each page.

    One CRC for all rows of a page: behind a row that holds, the CRC stands at the row's checksum; put in front of the
    next row, in place of that one's own, this checksum and a constant lead it back to the seed. So it ends with the
    last row's checksum if all hold, and with another value if one doesn't. 10 ns a row; one by one, as arrays, it's 50.
    """
    count = len(slots)
    chain = np.frombuffer(blocks, dtype=np.uint8).reshape(count, -1, ROW_BYTES).copy()
    chain[:, :, ACCESS_OFFSET] = 0
    checksums = chain.view("<u4")[:, :, 0]
    last = checksums[np.arange(count), slots].copy()
    checksums[:, 2:] = checksums[:, 1:-1] ^ np.uint32(leading_to(seed))
    view = chain.reshape(-1).data
    first = ROW_BYTES + _CHECKSUM.size
    ends = np.arange(0, len(view), block_bytes) + (slots + 1) * ROW_BYTES
    starts = range(first, len(view), block_bytes)
    sums = [crc32c(view[start:end], seed) for start, end in zip(starts, ends.tolist(), strict=True)]
    hold: npt.NDArray[np.bool_] = (np.array(sums, dtype=np.uint32) == last) | (slots == 0)
    return hold
