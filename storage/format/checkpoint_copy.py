"""A checkpoint copy: header | directory | catalogue | pages.

The header is written last and roots everything: it holds the checksums of directory and catalogue, and the directory
holds seq and checksum of each page. A page that verifies but is not the one its directory names is stale.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.format.checksums import Buffer, crc32c, crc32c_without
from storage.format.geometry import DIRECTORY_ENTRY_BYTES, STREAM_HEADER_BYTES
from storage.format.layout import Defect, Field, Layout, Undecodable

COPY_MAGIC = b"RAWBLKCP"
DIRECTORY_MAGIC = b"RAWBLKDR"
CATALOGUE_MAGIC = b"RAWBLKCT"
VERSION = 1

COPY = Layout(
    "copy header",
    128,
    [
        Field("magic", "8s", "`RAWBLKCP`"),
        Field("checksum", "I", "CRC32C of the whole block, this field as zero"),
        Field("version", "H", "format version, 1"),
        Field("copy", "H", "place: checkpoint copy"),
        Field("uuid", "16s", "identity of the device"),
        Field("number", "Q", "consecutive number of the checkpoint"),
        Field("seq", "Q", "the copy is complete up to this seq, and may hold later rows"),
        Field("journal_block", "Q", "number of the first journal block that may hold a row behind seq"),
        Field("start_count", "I", "start of the daemon that wrote it"),
        Field("pages", "I", "pages of the slot table"),
        Field("directory_checksum", "I", "CRC32C of the directory's blocks"),
        Field("catalogue_checksum", "I", "CRC32C of the catalogue's used blocks"),
        Field("catalogue_bytes", "I", "size of the catalogue's records"),
        Field("padding", "4s", "zero"),
        Field("written_ms", "Q", "when it was written, milliseconds since 1970"),
        Field("entries", "Q", "live entries when it was written"),
        Field("tail", "Q", "number of the oldest journal block needed once this copy is complete"),
        Field("reserved", "24s", "zero"),
    ],
)

STREAM = Layout(
    "directory and catalogue block header",
    STREAM_HEADER_BYTES,
    [
        Field("magic", "8s", "`RAWBLKDR` directory, `RAWBLKCT` catalogue"),
        Field("checksum", "I", "CRC32C of the whole block, this field as zero"),
        Field("version", "H", "format version, 1"),
        Field("copy", "H", "place: checkpoint copy"),
        Field("uuid", "16s", "identity of the device"),
        Field("number", "Q", "number of the checkpoint it belongs to"),
        Field("index", "I", "place: block of the directory or catalogue"),
        Field("used_bytes", "I", "bytes behind this header; then zeros"),
        Field("reserved", "16s", "zero"),
    ],
)

DIRECTORY_ENTRY = Layout(
    "directory entry",
    DIRECTORY_ENTRY_BYTES,
    [
        Field("seq", "Q", "seq of the page; 0: the page was never written"),
        Field("checksum", "I", "checksum of the page"),
        Field("reserved", "I", "zero"),
    ],
)

DIRECTORY_DTYPE = np.dtype([("seq", "<u8"), ("checksum", "<u4"), ("reserved", "<u4")])
assert DIRECTORY_DTYPE.itemsize == DIRECTORY_ENTRY_BYTES

Directory = npt.NDArray[Any]
"""A structured array of ``DIRECTORY_DTYPE``, one entry per page."""

_COPY_CHECKSUM = COPY.offsets["checksum"]
_STREAM_CHECKSUM = STREAM.offsets["checksum"]
_CHECKSUM = struct.Struct("<I")


class CopyHeader(NamedTuple):
    copy: int
    number: int
    seq: int
    journal_block: int
    start_count: int
    pages: int
    directory_checksum: int
    catalogue_checksum: int
    catalogue_bytes: int
    written_ms: int
    entries: int
    tail: int


def encode_copy_header(header: CopyHeader, uuid: bytes, block_bytes: int) -> bytes:
    block = bytearray(block_bytes)
    COPY.struct.pack_into(
        block,
        0,
        COPY_MAGIC,
        0,
        VERSION,
        header.copy,
        uuid,
        header.number,
        header.seq,
        header.journal_block,
        header.start_count,
        header.pages,
        header.directory_checksum,
        header.catalogue_checksum,
        header.catalogue_bytes,
        b"",
        header.written_ms,
        header.entries,
        header.tail,
        b"",
    )
    _CHECKSUM.pack_into(block, _COPY_CHECKSUM, crc32c_without(block, _COPY_CHECKSUM))
    return bytes(block)


def decode_copy_header(block: Buffer, uuid: bytes, *, copy: int, pages: int) -> CopyHeader:
    """Verify and decode. Raises Undecodable."""
    (
        magic,
        checksum,
        version,
        stored_copy,
        stored_uuid,
        number,
        seq,
        journal_block,
        start_count,
        stored_pages,
        directory_checksum,
        catalogue_checksum,
        catalogue_bytes,
        padding,
        written_ms,
        entries,
        tail,
        reserved,
    ) = COPY.struct.unpack_from(block, 0)
    if magic != COPY_MAGIC:
        raise Undecodable(Defect.MAGIC, "copy header")
    if checksum != crc32c_without(block, _COPY_CHECKSUM):
        raise Undecodable(Defect.CHECKSUM, "copy header")
    if version != VERSION:
        raise Undecodable(Defect.VERSION, "copy header")
    if stored_uuid != uuid:
        raise Undecodable(Defect.WRONG_DEVICE, "copy header")
    if stored_copy != copy:
        raise Undecodable(Defect.WRONG_PLACE, f"header of copy {stored_copy}")
    if any(padding) or any(reserved) or any(block[COPY.size_bytes :]) or stored_pages != pages or number == 0:
        raise Undecodable(Defect.INVALID, "copy header")
    return CopyHeader(
        copy,
        number,
        seq,
        journal_block,
        start_count,
        pages,
        directory_checksum,
        catalogue_checksum,
        catalogue_bytes,
        written_ms,
        entries,
        tail,
    )


def stream_room(block_bytes: int) -> int:
    """Bytes of content in one block of a stream."""
    return block_bytes - STREAM_HEADER_BYTES


def encode_stream(
    magic: bytes, content: Buffer, *, uuid: bytes, copy: int, number: int, block_bytes: int, first_index: int = 0
) -> bytes:
    """Cut ``content`` into blocks with headers, of which the first is ``first_index``; empty content makes no block."""
    room = stream_room(block_bytes)
    view = memoryview(content).cast("B")
    count = -(-len(view) // room)
    blocks = bytearray(count * block_bytes)
    out = memoryview(blocks)
    for index in range(count):
        block = out[index * block_bytes : (index + 1) * block_bytes]
        part = view[index * room : (index + 1) * room]
        place = first_index + index
        STREAM.struct.pack_into(block, 0, magic, 0, VERSION, copy, uuid, number, place, len(part), b"")
        block[STREAM_HEADER_BYTES : STREAM_HEADER_BYTES + len(part)] = part
        _CHECKSUM.pack_into(block, _STREAM_CHECKSUM, crc32c_without(block, _STREAM_CHECKSUM))
    return bytes(blocks)


def decode_stream(magic: bytes, blocks: Buffer, *, uuid: bytes, copy: int, number: int, block_bytes: int) -> bytes:
    """The content of blocks made by ``encode_stream``. Raises Undecodable."""
    view = memoryview(blocks)
    content = bytearray()
    for index in range(len(view) // block_bytes):
        block = view[index * block_bytes : (index + 1) * block_bytes]
        stored_magic, checksum, version, stored_copy, stored_uuid, stored_number, stored_index, used, reserved = (
            STREAM.struct.unpack_from(block, 0)
        )
        if stored_magic != magic:
            raise Undecodable(Defect.MAGIC, f"stream block {index}")
        if checksum != crc32c_without(block, _STREAM_CHECKSUM):
            raise Undecodable(Defect.CHECKSUM, f"stream block {index}")
        if version != VERSION:
            raise Undecodable(Defect.VERSION, f"stream block {index}")
        if stored_uuid != uuid:
            raise Undecodable(Defect.WRONG_DEVICE, f"stream block {index}")
        if stored_copy != copy or stored_number != number or stored_index != index:
            raise Undecodable(Defect.WRONG_PLACE, f"stream block {index}")
        end = STREAM_HEADER_BYTES + used
        if end > block_bytes or any(reserved) or bytes(block[end:]).strip(b"\0"):
            raise Undecodable(Defect.INVALID, f"stream block {index}")
        content += block[STREAM_HEADER_BYTES:end]
    return bytes(content)


def stream_checksum(blocks: Buffer, before: int = 0) -> int:
    """What the copy's header keeps of a stream; ``before`` is that of the blocks in front of these."""
    return crc32c(blocks, before)


def decode_directory(content: bytes, pages: int) -> Directory:
    """Raises Undecodable if it is not one entry per page with zero reserved bytes."""
    if len(content) != pages * DIRECTORY_ENTRY_BYTES:
        raise Undecodable(Defect.INVALID, "directory: size")
    directory = np.frombuffer(content, dtype=DIRECTORY_DTYPE).copy()
    if directory["reserved"].any():
        raise Undecodable(Defect.INVALID, "directory: reserved bytes")
    return directory
