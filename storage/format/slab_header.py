"""The slab header: the first block of a slab says which class owns it, under which generation.

The catalogue says the same; the header is what a rebuild without any copy goes by. A generation is drawn from the
write ids, so no slab ever has one twice, and what an older generation left in the slab can't pass for the present one.
"""

from __future__ import annotations

from typing import NamedTuple

from storage.format.checksums import Buffer, keyed_sum
from storage.format.layout import Defect, Field, Layout, Undecodable

MAGIC = b"RAWBLKSL"
VERSION = 1

SLAB = Layout(
    "slab header",
    64,
    [
        Field("magic", "8s", "`RAWBLKSL`"),
        Field("keyed_sum", "16s", "BLAKE2b-128 under the device's secret over the header behind this field"),
        Field("version", "B", "format version, 1"),
        Field("slot_class", "B", "slot class of the slab"),
        Field("reserved", "2s", "zero"),
        Field("slab", "I", "place: slab"),
        Field("uuid", "16s", "identity of the device"),
        Field("generation", "Q", "generation of the slab"),
        Field("reserved2", "8s", "zero; so is the rest of the block"),
    ],
)
_PREFIX_BYTES = SLAB.offsets["version"]


class SlabHeader(NamedTuple):
    slab: int
    slot_class: int
    generation: int


def encode_slab_header(header: SlabHeader, *, uuid: bytes, secret: bytes, block_bytes: int) -> bytes:
    """One block."""
    block = bytearray(block_bytes)
    SLAB.struct.pack_into(
        block, 0, MAGIC, b"", VERSION, header.slot_class, b"", header.slab, uuid, header.generation, b""
    )
    block[8:_PREFIX_BYTES] = keyed_sum(secret, block[_PREFIX_BYTES : SLAB.size_bytes])
    return bytes(block)


def decode_slab_header(block: Buffer, *, uuid: bytes, secret: bytes, slab: int, classes: int) -> SlabHeader:
    """Verify and decode. Raises Undecodable."""
    magic, stored_sum, version, slot_class, reserved, stored_slab, stored_uuid, generation, reserved2 = (
        SLAB.struct.unpack_from(block, 0)
    )
    if magic != MAGIC:
        raise Undecodable(Defect.MAGIC, "slab header")
    if stored_sum != keyed_sum(secret, block[_PREFIX_BYTES : SLAB.size_bytes]):
        raise Undecodable(Defect.CHECKSUM, "slab header")
    if version != VERSION:
        raise Undecodable(Defect.VERSION, "slab header")
    if stored_uuid != uuid:
        raise Undecodable(Defect.WRONG_DEVICE, "slab header")
    if stored_slab != slab:
        raise Undecodable(Defect.WRONG_PLACE, f"header of slab {stored_slab}")
    odd = any(reserved) or any(reserved2) or any(block[SLAB.size_bytes :])
    if odd or slot_class >= classes or generation == 0:
        raise Undecodable(Defect.INVALID, "slab header")
    return SlabHeader(stored_slab, slot_class, generation)
