"""The superblock: who the device is and how it is divided. Two copies, in the first and in the last block.

All fields lie in the first 512 bytes, so that no torn write leaves half of it; the rest of its block is zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from storage.errors import FormatUnsupported, GeometryInvalid
from storage.format.checksums import SECRET_BYTES, Buffer, crc32c_without
from storage.format.geometry import CLASSES_MAX, Geometry
from storage.format.layout import Defect, Field, Layout, Undecodable

MAGIC = b"RAWBLKSB"
VERSION = 1

FORMATTING_MAGIC = b"RAWBLKFM"
"""Stands at the start of the first block while a device is being formatted: it may be formatted again without force."""

COMPAT_KNOWN = 0
RO_COMPAT_KNOWN = 0
INCOMPAT_KNOWN = 0

SUPERBLOCK = Layout(
    "superblock",
    512,
    [
        Field("magic", "8s", "`RAWBLKSB`"),
        Field("checksum", "I", "CRC32C of the whole block, this field as zero"),
        Field("version", "H", "format version, 1"),
        Field("place", "H", "0: first block of the device, 1: last block"),
        Field("uuid", "16s", "identity of the device, drawn when formatting"),
        Field("secret", "32s", "key of record header sums and key digests"),
        Field("created_ms", "Q", "when it was formatted, milliseconds since 1970"),
        Field("compat", "Q", "feature flags an older program may ignore"),
        Field("ro_compat", "Q", "feature flags with which an older program may only read"),
        Field("incompat", "Q", "feature flags with which an older program must refuse"),
        Field("device_bytes", "Q", "bytes of the device that are used"),
        Field("block_bytes", "I", "size of a block, page and journal block"),
        Field("copies", "I", "checkpoint copies"),
        Field("slab_bytes", "I", "size of a slab, its header block included"),
        Field("slabs", "I", "number of slabs"),
        Field("smallest_slot_bytes", "I", "smallest slot; a slab has (slab_bytes − block_bytes) / this rows reserved"),
        Field("journal_blocks", "I", "blocks of the journal ring"),
        Field("classes", "I", "number of slot classes"),
        Field("class_bytes", f"{CLASSES_MAX * 4}s", "slot size of each class, 64 x u32, ascending, then zero"),
        Field(
            "start_count",
            "I",
            "starts of the daemon so far; raised, in both places, before the first mutation of a start",
        ),
        Field("reserved", "120s", "zero"),
    ],
)

_CLASSES = struct.Struct(f"<{CLASSES_MAX}I")
_CHECKSUM_OFFSET = SUPERBLOCK.offsets["checksum"]


@dataclass(frozen=True)
class Superblock:
    """Identity and geometry of a device; ``secret`` never leaves the process."""

    uuid: bytes
    secret: bytes
    created_ms: int
    geometry: Geometry
    start_count: int = 0
    compat: int = 0
    ro_compat: int = 0
    incompat: int = 0

    def __post_init__(self) -> None:
        assert len(self.uuid) == 16 and len(self.secret) == SECRET_BYTES


def encode_superblock(superblock: Superblock, place: int) -> bytes:
    """One block, for ``place`` 0 (first block) or 1 (last block)."""
    geometry = superblock.geometry
    block = bytearray(geometry.block_bytes)
    sizes = geometry.class_bytes + (0,) * (CLASSES_MAX - len(geometry.class_bytes))
    SUPERBLOCK.struct.pack_into(
        block,
        0,
        MAGIC,
        0,
        VERSION,
        place,
        superblock.uuid,
        superblock.secret,
        superblock.created_ms,
        superblock.compat,
        superblock.ro_compat,
        superblock.incompat,
        geometry.device_bytes,
        geometry.block_bytes,
        geometry.copies,
        geometry.slab_bytes,
        geometry.slabs,
        geometry.smallest_slot_bytes,
        geometry.journal_blocks,
        len(geometry.class_bytes),
        _CLASSES.pack(*sizes),
        superblock.start_count,
        b"",
    )
    struct.pack_into("<I", block, _CHECKSUM_OFFSET, crc32c_without(block, _CHECKSUM_OFFSET))
    return bytes(block)


def claimed_block_bytes(head: Buffer) -> int:
    """The block size that the first 512 bytes of a superblock claim; 0 if they are no superblock. Proves nothing."""
    fields = SUPERBLOCK.struct.unpack_from(head, 0)
    if fields[0] != MAGIC:
        return 0
    return int(fields[_BLOCK_BYTES_INDEX])


_BLOCK_BYTES_INDEX = [f.name for f in SUPERBLOCK.fields].index("block_bytes")


def decode_superblock(block: Buffer, place: int) -> Superblock:
    """Decode one block. Raises Undecodable; FormatUnsupported for a version or a feature that this program lacks."""
    (
        magic,
        checksum,
        version,
        stored_place,
        uuid,
        secret,
        created_ms,
        compat,
        ro_compat,
        incompat,
        device_bytes,
        block_bytes,
        copies,
        slab_bytes,
        slabs,
        smallest_slot_bytes,
        journal_blocks,
        classes,
        class_table,
        start_count,
        reserved,
    ) = SUPERBLOCK.struct.unpack_from(block, 0)
    if magic != MAGIC:
        raise Undecodable(Defect.MAGIC, "not a superblock")
    if len(block) != block_bytes or checksum != crc32c_without(block, _CHECKSUM_OFFSET):
        raise Undecodable(Defect.CHECKSUM, "superblock")
    if version != VERSION:
        raise FormatUnsupported(f"format version {version}; this program knows {VERSION}")
    if incompat & ~INCOMPAT_KNOWN:
        raise FormatUnsupported(f"incompatible features {incompat & ~INCOMPAT_KNOWN:#x}")
    if stored_place != place:
        raise Undecodable(Defect.WRONG_PLACE, f"superblock of place {stored_place} at place {place}")
    sizes = _CLASSES.unpack(class_table)
    if not 0 < classes <= CLASSES_MAX or any(sizes[classes:]) or any(reserved) or any(block[SUPERBLOCK.size_bytes :]):
        raise Undecodable(Defect.INVALID, "superblock: slot classes or reserved bytes")
    geometry = Geometry(
        device_bytes=device_bytes,
        block_bytes=block_bytes,
        copies=copies,
        slab_bytes=slab_bytes,
        slabs=slabs,
        smallest_slot_bytes=smallest_slot_bytes,
        journal_blocks=journal_blocks,
        class_bytes=sizes[:classes],
    )
    try:
        geometry.check()
    except GeometryInvalid as error:
        raise Undecodable(Defect.INVALID, f"superblock: {error.detail}") from error
    return Superblock(uuid, secret, created_ms, geometry, start_count, compat, ro_compat, incompat)


def writable(superblock: Superblock) -> bool:
    """False if the device has a feature with which this program may only read."""
    return not superblock.ro_compat & ~RO_COMPAT_KNOWN
