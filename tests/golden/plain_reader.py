"""A reader written from ``docs/format.md`` alone: it shares no code with the program, so that the page can't be wrong.

It reads a device at rest: newest copy, journal up to its end, records. It repairs nothing and expects no damage.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import msgpack
from crc32c import crc32c

ROW = struct.Struct("<I4B I I Q Q 16s I I I H H")


@dataclass(frozen=True)
class Layout:
    """What the superblock says, and what follows from it."""

    uuid: bytes
    secret: bytes
    device: int
    block: int
    copies: int
    slab: int
    slabs: int
    smallest: int
    journal: int
    classes: tuple[int, ...]

    @property
    def slab_pages(self) -> int:
        most = (self.slab - self.block) // self.smallest
        return -(-most // (self.block // 64 - 1))

    @property
    def pages(self) -> int:
        return self.slabs * self.slab_pages

    @property
    def directory(self) -> int:
        return -(-self.pages // ((self.block - 64) // 16))

    @property
    def catalogue(self) -> int:
        return -(-(self.slabs * 32 + 4096 * 256 + 65536) // (self.block - 64))

    @property
    def copy(self) -> int:
        return (1 + self.directory + self.catalogue + self.pages) * self.block

    @property
    def journal_offset(self) -> int:
        return self.block + (self.copies - 1) * self.copy

    def copy_offset(self, copy: int) -> int:
        last = self.device - 2 * self.block - self.copy
        return last if copy == self.copies - 1 else self.block + copy * self.copy

    def slot_offset(self, slab: int, slot: int, slot_class: int) -> int:
        slabs = self.journal_offset + self.journal * self.block
        return slabs + slab * self.slab + self.block + slot * self.classes[slot_class]


def proven(block: bytes, magic: bytes) -> bool:
    """Magic, and the CRC32C of the whole block with the field at byte 8 as zero."""
    claimed = int.from_bytes(block[8:12], "little")
    return block[:8] == magic and claimed == crc32c(block[:8] + bytes(4) + block[12:])


def read_layout(image: bytes) -> Layout:
    fields = struct.unpack_from("<8sIHH16s32sQQQQQIIIIIII256s", image, 0)
    block = fields[11]
    assert proven(image[:block], b"RAWBLKSB")
    assert fields[2:4] == (1, 0)
    classes = struct.unpack("<64I", fields[18])[: fields[17]]
    device, _, copies, slab, slabs, smallest, journal = fields[10:17]
    return Layout(fields[4], fields[5], device, block, copies, slab, slabs, smallest, journal, classes)


class PlainReader:
    """``entries`` of the device by namespace and key, as (write id, payload, expiry)."""

    def __init__(self, image: bytes) -> None:
        self.image = image
        self.layout = read_layout(image)
        self.rows: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.slabs: dict[int, list[Any]] = {}
        self.namespaces: dict[int, str] = {}
        header = self._newest_copy()
        self._read_catalogue(header)
        pages = self._pages(header)
        blocks = self._journal(header[7])
        for block in blocks:
            self._apply_catalogue(self._block_records(block))
        for page in pages:
            self._take_rows(page, 64, self.layout.block // 64 - 1)
        for block in blocks:
            self._take_rows(block, 128, int.from_bytes(block[14:16], "little"))
        self.entries = dict(self._record(row) for row in self.rows.values() if row[1] == 1)

    def _blocks(self, offset: int, count: int) -> list[bytes]:
        size = self.layout.block
        return [self.image[offset + index * size : offset + (index + 1) * size] for index in range(count)]

    # -- copies ------------------------------------------------------------------------------------------------------

    def _newest_copy(self) -> tuple[Any, ...]:
        headers = []
        for copy in range(self.layout.copies):
            (block,) = self._blocks(self.layout.copy_offset(copy), 1)
            if proven(block, b"RAWBLKCP"):
                headers.append(struct.unpack_from("<8sIHH16sQQQIIIII4sQQQ24s", block, 0))
        return max(headers, key=lambda header: header[5])

    def _stream(self, offset: int, count: int, magic: bytes, checksum: int) -> bytes:
        blocks = self._blocks(offset, count)
        assert checksum == (crc32c(b"".join(blocks)) if blocks else 0)
        assert all(proven(block, magic) for block in blocks)
        return b"".join(block[64 : 64 + int.from_bytes(block[44:48], "little")] for block in blocks)

    def _read_catalogue(self, header: tuple[Any, ...]) -> None:
        layout, size = self.layout, header[12]
        offset = layout.copy_offset(header[3]) + (1 + layout.directory) * layout.block
        count = -(-size // (layout.block - 64))
        content = self._stream(offset, count, b"RAWBLKCT", header[11])
        assert len(content) == size
        self._apply_catalogue(content)

    def _apply_catalogue(self, content: bytes) -> None:
        position = 0
        while position < len(content):
            length = int.from_bytes(content[position : position + 2], "little")
            kind, *fields = msgpack.unpackb(content[position + 2 : position + 2 + length])
            position += 2 + length
            if kind == 2 and self.slabs.get(fields[1], [0])[0] <= fields[0]:
                self.slabs[fields[1]] = [fields[0], *fields[2:]]
            elif kind == 3:
                self.namespaces[fields[1]] = fields[2]
            elif kind == 4:
                self.namespaces.pop(fields[1], None)

    def _pages(self, header: tuple[Any, ...]) -> list[bytes]:
        layout = self.layout
        start = layout.copy_offset(header[3]) + layout.block
        directory = self._stream(start, layout.directory, b"RAWBLKDR", header[10])
        pages_offset = start + (layout.directory + layout.catalogue) * layout.block
        pages = []
        for number, (seq, checksum, _) in enumerate(struct.iter_unpack("<QII", directory)):
            if not seq:
                continue
            (page,) = self._blocks(pages_offset + number * layout.block, 1)
            assert proven(page, b"RAWBLKPG")
            fields = struct.unpack_from("<8sIHBB16sII4sIQQ", page, 0)
            assert (fields[6], fields[7]) == (number, number // layout.slab_pages)
            assert (fields[10], fields[1]) == (seq, checksum)
            if self.slabs[fields[7]][2] == fields[11]:
                pages.append(page)
        return pages

    # -- journal -----------------------------------------------------------------------------------------------------

    def _journal(self, first: int) -> list[bytes]:
        """The chain from block ``first`` on."""
        chain: list[bytes] = []
        number = first
        while True:
            offset = self.layout.journal_offset + number % self.layout.journal * self.layout.block
            (block,) = self._blocks(offset, 1)
            if not proven(block, b"RAWBLKJR") or int.from_bytes(block[40:48], "little") != number:
                return chain
            if chain and int.from_bytes(block[48:52], "little") != int.from_bytes(chain[-1][8:12], "little"):
                return chain
            chain.append(block)
            number += 1

    def _block_records(self, block: bytes) -> bytes:
        rows, size = struct.unpack_from("<HH", block, 14)
        return block[128 + rows * 64 : 128 + rows * 64 + size]

    def _take_rows(self, block: bytes, offset: int, count: int) -> None:
        """Of each slot the row with the highest seq."""
        for index in range(count):
            line = block[offset + index * 64 : offset + (index + 1) * 64]
            if not any(line):
                continue  # behind the slab's last slot
            row = ROW.unpack(line)
            assert row[0] == crc32c(line[4:6] + b"\0" + line[7:], crc32c(self.layout.uuid))
            slab, slot, seq = row[6], row[13], row[7]
            if seq >= self.slabs[slab][0] and seq > self.rows.get((slab, slot), (0,) * 8)[7]:
                self.rows[slab, slot] = row

    # -- records -----------------------------------------------------------------------------------------------------

    def _record(self, row: tuple[Any, ...]) -> tuple[tuple[str, bytes], tuple[int, bytes, int]]:
        offset = self.layout.slot_offset(row[6], row[13], row[2])
        header = self.image[offset : offset + row[14] * 64]
        total = hashlib.blake2b(header[24:], digest_size=16, key=self.layout.secret, person=b"rawblockd header")
        assert header[:8] == b"RAWBLKRC"
        assert header[8:24] == total.digest()
        size, map_bytes = row[10], int.from_bytes(header[28:30], "little")
        payload = self.image[offset + len(header) : offset + len(header) + size]
        checksums = b"".join(crc32c(payload[at : at + 65536]).to_bytes(4, "little") for at in range(0, size, 65536))
        assert header[96 : 96 + len(checksums)] == checksums
        assert crc32c(checksums) == row[11]
        names = msgpack.unpackb(header[96 + len(checksums) : 96 + len(checksums) + map_bytes])
        salt = row[5].to_bytes(8, "little")
        digest = hashlib.blake2b(
            names["k"], digest_size=16, key=self.layout.secret, person=b"rawblockd keys", salt=salt
        )
        assert digest.digest() == row[9]
        assert names["n"] == self.namespaces[row[5]]
        return (names["n"], names["k"]), (row[8], payload, row[12])
