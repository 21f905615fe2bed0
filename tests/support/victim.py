"""Damaging the content of a device with care: what a medium loses, and what a program with a bug would write.

What a medium loses fails a checksum. What is written wrong stands under right checksums, up to the header of its copy
or to the end of the journal's chain.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from storage.device.counters import OpKind
from storage.format.checkpoint_copy import (
    CATALOGUE_MAGIC,
    DIRECTORY_MAGIC,
    CopyHeader,
    Directory,
    decode_copy_header,
    decode_directory,
    decode_stream,
    encode_copy_header,
    encode_stream,
    stream_checksum,
)
from storage.format.checksums import crc32c_without, keyed_sum
from storage.format.journal_block import JOURNAL, JournalHeader, decode_journal_header
from storage.format.page import PAGE
from storage.format.record import RECORD
from storage.format.row import ROW_STRUCT, Row, encode_row, seed_of
from storage.format.superblock import Superblock
from tests.support.simulated_device import Fault, Image

OTHER_UUID = bytes(reversed(range(16)))
SUMMED_FROM = RECORD.offsets["version"]


class Victim:
    """A copy of a device's content, and the faults its medium has from now on."""

    def __init__(self, image: Image, superblock: Superblock) -> None:
        self.image = image.copy()
        self.superblock = superblock
        self.geometry = superblock.geometry
        self.faults: list[Fault] = []

    # -- what a medium loses ----------------------------------------------------------------------------------------

    def flip(self, offset_bytes: int, bits: int = 0x10) -> None:
        self.image.write(offset_bytes, bytes([self.image.read(offset_bytes, 1)[0] ^ bits]))

    def zero(self, offset_bytes: int, size_bytes: int = 4096) -> None:
        self.image.write(offset_bytes, bytes(size_bytes))

    def unreadable(self, offset_bytes: int, size_bytes: int = 4096, error: int = errno.EIO) -> None:
        """Reads that touch these bytes fail from now on."""
        self.faults.append(Fault(OpKind.READ, error, start_byte=offset_bytes, stop_byte=offset_bytes + size_bytes))

    def move_block(self, source_bytes: int, target_bytes: int) -> None:
        """A block lands where another one belongs."""
        self.image.write(target_bytes, self.image.read(source_bytes, self.geometry.block_bytes))

    # -- pages ------------------------------------------------------------------------------------------------------

    def page_offset(self, copy: int, page: int) -> int:
        return self.geometry.page_offset(copy, page)

    def line_offset(self, copy: int, row_id: int) -> int:
        page, line = divmod(row_id, self.geometry.block_bytes // 64)
        return self.page_offset(copy, page) + line * 64

    def page(self, copy: int, page: int) -> bytearray:
        return bytearray(self.image.read(self.page_offset(copy, page), self.geometry.block_bytes))

    def seal(self, block: bytearray, **fields: object) -> int:
        """Fields of a page's header changed, its checksum made right; returns it."""
        values = dict(zip([f.name for f in PAGE.fields], PAGE.struct.unpack_from(block, 0), strict=True))
        assert fields.keys() <= values.keys()
        PAGE.struct.pack_into(block, 0, *(values | fields).values())
        checksum = crc32c_without(block, PAGE.offsets["checksum"])
        struct.pack_into("<I", block, PAGE.offsets["checksum"], checksum)
        return checksum

    def write_page_of(self, copy: int, page: int, **fields: object) -> None:
        """A page that verifies and is another's: ``uuid``, ``copy``, ``seq`` … say whose."""
        block = self.page(copy, page)
        self.seal(block, **fields)
        self.image.write(self.page_offset(copy, page), bytes(block))

    def write_page_wrong(self, copy: int, page: int, change: Callable[[bytearray], None], **fields: object) -> None:
        """A page with wrong content under right checksums, named so by its copy's directory."""
        block = self.page(copy, page)
        change(block)
        checksum = self.seal(block, **fields)
        self.image.write(self.page_offset(copy, page), bytes(block))
        directory = self.directory(copy)
        directory["checksum"][page] = checksum
        directory["seq"][page] = int.from_bytes(block[PAGE.offsets["seq"] :][:8], "little")
        self.write_directory(copy, directory)

    def write_row_wrong(self, copy: int, row_id: int, raw: bytes) -> None:
        """A row that is not what it should be, in a page whose checksum is right."""
        page, line = divmod(row_id, self.geometry.block_bytes // 64)
        self.write_page_wrong(copy, page, lambda block: block.__setitem__(slice(line * 64, line * 64 + 64), raw))

    def row_with(self, raw: bytes, **fields: int | bytes) -> bytes:
        """A row with other fields under a right checksum."""
        row = Row._make(ROW_STRUCT.unpack(raw))._asdict()
        del row["checksum"], row["access"]
        return encode_row(seed_of(self.superblock.uuid), **(row | fields))

    # -- copies -----------------------------------------------------------------------------------------------------

    def copy_header(self, copy: int) -> CopyHeader:
        block = self.image.read(self.geometry.copy_offset(copy), self.geometry.block_bytes)
        return decode_copy_header(block, self.superblock.uuid, copy=copy, pages=self.geometry.pages)

    def write_copy_header(self, header: CopyHeader) -> None:
        block = encode_copy_header(header, self.superblock.uuid, self.geometry.block_bytes)
        self.image.write(self.geometry.copy_offset(header.copy), block)

    def directory(self, copy: int) -> Directory:
        geometry = self.geometry
        content = self._read_stream(
            DIRECTORY_MAGIC, copy, geometry.directory_offset(copy), geometry.directory_blocks * geometry.block_bytes
        )
        return decode_directory(content, geometry.pages)

    def write_directory(self, copy: int, directory: Directory) -> None:
        blocks = self._stream(DIRECTORY_MAGIC, copy, directory.tobytes())
        self.image.write(self.geometry.directory_offset(copy), blocks)
        self.write_copy_header(self.copy_header(copy)._replace(directory_checksum=stream_checksum(blocks)))

    def catalogue(self, copy: int) -> bytes:
        """The copy's catalogue records, one behind the other."""
        geometry, header = self.geometry, self.copy_header(copy)
        size = -(-header.catalogue_bytes // (geometry.block_bytes - 64)) * geometry.block_bytes
        return self._read_stream(CATALOGUE_MAGIC, copy, geometry.catalogue_offset(copy), size)

    def write_catalogue(self, copy: int, content: bytes) -> None:
        """Records, right or wrong, as the copy's catalogue under right checksums."""
        blocks = self._stream(CATALOGUE_MAGIC, copy, content)
        self.image.write(self.geometry.catalogue_offset(copy), blocks)
        header = self.copy_header(copy)
        self.write_copy_header(
            header._replace(catalogue_checksum=stream_checksum(blocks), catalogue_bytes=len(content))
        )

    def _read_stream(self, magic: bytes, copy: int, offset_bytes: int, size_bytes: int) -> bytes:
        blocks = self.image.read(offset_bytes, size_bytes)
        number, size = self.copy_header(copy).number, self.geometry.block_bytes
        return decode_stream(magic, blocks, uuid=self.superblock.uuid, copy=copy, number=number, block_bytes=size)

    def _stream(self, magic: bytes, copy: int, content: bytes) -> bytes:
        number, size = self.copy_header(copy).number, self.geometry.block_bytes
        return encode_stream(magic, content, uuid=self.superblock.uuid, copy=copy, number=number, block_bytes=size)

    def destroy_copies(self, copies: list[int] | None = None) -> None:
        """Zero whole copies, by default all."""
        for copy in range(self.geometry.copies) if copies is None else copies:
            self.zero(self.geometry.copy_offset(copy), self.geometry.copy_bytes)

    # -- the journal ------------------------------------------------------------------------------------------------

    def journal_offset(self, number: int) -> int:
        return self.geometry.journal_block_offset(number)

    def journal_block(self, number: int) -> bytearray:
        return bytearray(self.image.read(self.journal_offset(number), self.geometry.block_bytes))

    def journal_header(self, number: int) -> JournalHeader:
        blocks = self.geometry.journal_blocks
        block = self.journal_block(number)
        return decode_journal_header(block, self.superblock.uuid, position=number % blocks, journal_blocks=blocks)

    def journal_rows(self, number: int) -> list[bytes]:
        count, block = self.journal_header(number).rows, bytes(self.journal_block(number))
        return [block[at : at + 64] for at in range(JOURNAL.size_bytes, JOURNAL.size_bytes + 64 * count, 64)]

    def write_journal_wrong(
        self, number: int, last: int, *, rows: list[bytes] | None = None, records: bytes = b""
    ) -> None:
        """Other rows and records in a block, and the chain behind it up to block ``last`` made right again."""
        rows = self.journal_rows(number) if rows is None else rows
        block = self.journal_block(number)
        start = JOURNAL.size_bytes
        content = b"".join(rows) + records
        block[start:] = content.ljust(len(block) - start, b"\0")
        struct.pack_into("<HH", block, JOURNAL.offsets["rows"], len(rows), len(records))
        checksum = self._seal_journal(number, block)
        for following in range(number + 1, last + 1):
            block = self.journal_block(following)
            struct.pack_into("<I", block, JOURNAL.offsets["previous"], checksum)
            checksum = self._seal_journal(following, block)

    def _seal_journal(self, number: int, block: bytearray) -> int:
        checksum = crc32c_without(block, JOURNAL.offsets["checksum"])
        struct.pack_into("<I", block, JOURNAL.offsets["checksum"], checksum)
        self.image.write(self.journal_offset(number), bytes(block))
        return checksum

    def destroy_journal(self) -> None:
        self.zero(self.geometry.journal_offset, self.geometry.journal_bytes)

    # -- records ----------------------------------------------------------------------------------------------------

    def record_map(self, offset_bytes: int) -> bytes:
        """The packed map of a record of at most one chunk."""
        block = self.image.read(offset_bytes, self.geometry.block_bytes)
        (size,) = struct.unpack_from("<H", block, RECORD.offsets["map_bytes"])
        start = RECORD.size_bytes + 4
        return block[start : start + size]

    def write_record_map(self, offset_bytes: int, packed: bytes) -> None:
        """Another map of the same size in a record's header, under a right sum."""
        block = bytearray(self.image.read(offset_bytes, self.geometry.block_bytes))
        (units,) = struct.unpack_from("<H", block, RECORD.offsets["header_units"])
        assert len(packed) == len(self.record_map(offset_bytes))
        start = RECORD.size_bytes + 4
        block[start : start + len(packed)] = packed
        block[8:SUMMED_FROM] = keyed_sum(self.superblock.secret, block[SUMMED_FROM : units * 64])
        self.image.write(offset_bytes, bytes(block))
