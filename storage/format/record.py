"""The record: what lies in a slot. A header of a multiple of 64 bytes, directly followed by the payload.

The header carries a keyed sum over all of itself, so that a value that imitates a record can't pass for one; a
checksum for each 64 KiB of payload, so that a range is verified without reading the rest; and a msgpack map with what
varies: key, namespace, times, client metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack

from storage.format.checksums import Buffer, crc32c, keyed_sum
from storage.format.layout import Defect, Field, Layout, Undecodable
from storage.format.names import is_namespace_name
from storage.format.parts import Part, decode_parts, encode_parts, total_bytes
from storage.limits import (
    CHUNK_BYTES,
    HEADER_MAX_BYTES,
    KEY_MAX_BYTES,
    METADATA_MAX_BYTES,
    METADATA_MAX_ITEMS,
)

MAGIC = b"RAWBLKRC"
VERSION = 1
HEADER_UNIT_BYTES = 64

RECORD = Layout(
    "record header",
    96,
    [
        Field("magic", "8s", "`RAWBLKRC`"),
        Field("keyed_sum", "16s", "BLAKE2b-128 under the device's secret over the header behind this field"),
        Field("version", "B", "format version, 1"),
        Field("slot_class", "B", "place: slot class, so that slot and offset are tied"),
        Field("header_units", "H", "size of the header in units of 64 bytes"),
        Field("map_bytes", "H", "size of the msgpack map"),
        Field("slot", "H", "place: slot in the slab"),
        Field("slab", "I", "place: slab"),
        Field("namespace_id", "I", "namespace"),
        Field("uuid", "16s", "identity of the device"),
        Field("write_id", "Q", "unique per record; the ETag"),
        Field("digest", "16s", "keyed digest of namespace and key"),
        Field("payload_bytes", "I", "payload size"),
        Field("expires_at", "I", "seconds since 1970, 0 never; the row's wins"),
        Field("generation", "Q", "place: generation of the slab"),
    ],
)
# Behind the fixed part: a u32 CRC32C for each started 64 KiB of payload, the map, zeros to a multiple of 64.
_PREFIX_BYTES = RECORD.offsets["version"]
_FIXED_BYTES = RECORD.size_bytes
_pack_summed = struct.Struct("<" + "".join(field.code for field in RECORD.fields[2:])).pack
"""Packs the fixed part behind magic and sum."""
_unpack = RECORD.struct.unpack_from
_ZEROS = bytes(HEADER_MAX_BYTES)
_is_known_name = lru_cache(maxsize=256)(is_namespace_name)
_ONE_CHECKSUM = struct.Struct("<I")
_FIXMAP = 0x80
_NAMES = frozenset("kntcmp")


@dataclass(slots=True)
class RecordMap:
    """What the map of a header holds. ``stored_ms`` is milliseconds since 1970. Never changed once made."""

    key: bytes
    namespace: str
    stored_ms: int
    content_type: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    parts: tuple[Part, ...] = ()


class RecordHeader(NamedTuple):
    """A header that verified. A tuple, because one is made for every read: half the time of a frozen dataclass."""

    slab: int
    slot: int
    slot_class: int
    generation: int
    write_id: int
    digest: bytes
    namespace_id: int
    payload_bytes: int
    expires_at: int
    chunk_checksums: tuple[int, ...]
    map: RecordMap
    header_bytes: int


_pack: Callable[[dict[str, Any]], bytes] = msgpack.Packer().pack
"""One packer for all: making one takes twice as long as what it packs here."""


def pack_map(
    key: bytes,
    namespace: str,
    stored_ms: int,
    content_type: str = "",
    metadata: tuple[tuple[str, str], ...] = (),
    parts: Sequence[Part] = (),
) -> bytes:
    """The map of a header, of what a RecordMap holds."""
    fields: dict[str, Any] = {"k": key, "n": namespace, "t": stored_ms}
    if content_type:
        fields["c"] = content_type
    if metadata:
        fields["m"] = metadata
    if parts:
        fields["p"] = encode_parts(parts)
    return _pack(fields)


def header_size(map_bytes: int, payload_bytes: int) -> int:
    """Bytes of the header of a record with such a map and payload: known before the payload arrives."""
    used = _FIXED_BYTES + 4 * (-(-payload_bytes // CHUNK_BYTES)) + map_bytes
    return used + -used % HEADER_UNIT_BYTES


def pack_chunk_checksums(chunk_checksums: list[int] | tuple[int, ...]) -> bytes:
    if len(chunk_checksums) == 1:
        return _ONE_CHECKSUM.pack(chunk_checksums[0])
    return struct.pack(f"<{len(chunk_checksums)}I", *chunk_checksums)


def payload_checksum(packed_chunk_checksums: Buffer) -> int:
    """What the row keeps of the payload: the CRC32C of its chunk checksums."""
    return crc32c(packed_chunk_checksums)


def payload_checksum_in(block: memoryview, header: RecordHeader) -> int:
    """As ``payload_checksum``, of the checksums as they stand in ``block``, from which ``header`` was read."""
    return crc32c(block[_FIXED_BYTES : _FIXED_BYTES + 4 * len(header.chunk_checksums)])


def write_header(
    buffer: memoryview,
    uuid: bytes,
    secret: bytes,
    slab: int,
    slot: int,
    slot_class: int,
    generation: int,
    write_id: int,
    digest: bytes,
    namespace_id: int,
    payload_bytes: int,
    expires_at: int,
    packed_map: bytes,
    packed_chunk_checksums: bytes,
) -> int:
    """Write a header to the start of ``buffer``, with its zero padding; returns its size in bytes."""
    end = _FIXED_BYTES + len(packed_chunk_checksums) + len(packed_map)
    size_bytes = end + -end % HEADER_UNIT_BYTES
    fixed = _pack_summed(
        VERSION,
        slot_class,
        size_bytes // HEADER_UNIT_BYTES,
        len(packed_map),
        slot,
        slab,
        namespace_id,
        uuid,
        write_id,
        digest,
        payload_bytes,
        expires_at,
        generation,
    )
    # Put together before it is copied to its place: each slice of the buffer is an object.
    summed = b"".join((fixed, packed_chunk_checksums, packed_map, _ZEROS[: size_bytes - end]))
    buffer[:size_bytes] = b"".join((MAGIC, keyed_sum(secret, summed), summed))
    return size_bytes


def read_header(block: memoryview, *, uuid: bytes, secret: bytes) -> RecordHeader:
    """Verify and decode the header at the start of ``block``. Raises Undecodable."""
    block_bytes = len(block)
    if block_bytes < _FIXED_BYTES:
        raise Undecodable(Defect.INVALID, "record header: too short")
    (
        magic,
        stored_sum,
        version,
        slot_class,
        header_units,
        map_bytes,
        slot,
        slab,
        namespace_id,
        stored_uuid,
        write_id,
        digest,
        payload_bytes,
        expires_at,
        generation,
    ) = _unpack(block, 0)
    if magic != MAGIC:
        raise Undecodable(Defect.MAGIC, "record header")
    size_bytes = header_units * HEADER_UNIT_BYTES
    if not _FIXED_BYTES <= size_bytes <= block_bytes or size_bytes > HEADER_MAX_BYTES:
        raise Undecodable(Defect.INVALID, "record header: size")
    if stored_sum != keyed_sum(secret, block[_PREFIX_BYTES:size_bytes]):
        raise Undecodable(Defect.CHECKSUM, "record header")
    if version != VERSION:
        raise Undecodable(Defect.VERSION, "record header")
    if stored_uuid != uuid:
        raise Undecodable(Defect.WRONG_DEVICE, "record header")
    chunks = -(-payload_bytes // CHUNK_BYTES)
    map_offset = _FIXED_BYTES + 4 * chunks
    map_end = map_offset + map_bytes
    # The size is ``header_size`` of map and payload: what is left behind the map is less than a unit, and zero.
    if not map_end <= size_bytes < map_end + HEADER_UNIT_BYTES or not write_id or not namespace_id:
        raise Undecodable(Defect.INVALID, "record header: sizes")
    if block[map_end:size_bytes] != _ZEROS[: size_bytes - map_end]:
        raise Undecodable(Defect.INVALID, "record header: padding")
    record_map = decode_map(block[map_offset:map_end])
    if record_map.parts and total_bytes(record_map.parts) != payload_bytes:
        raise Undecodable(Defect.INVALID, "record header: the parts are not the payload")
    return RecordHeader(
        slab,
        slot,
        slot_class,
        generation,
        write_id,
        digest,
        namespace_id,
        payload_bytes,
        expires_at,
        unpack_chunk_checksums(block, payload_bytes),
        record_map,
        size_bytes,
    )


def unpack_chunk_checksums(block: Buffer, payload_bytes: int) -> tuple[int, ...]:
    """The checksums in a header at the start of ``block``, of a payload of so many bytes."""
    chunks = -(-payload_bytes // CHUNK_BYTES)
    checksums = _ONE_CHECKSUM if chunks == 1 else struct.Struct(f"<{chunks}I")
    return checksums.unpack_from(block, _FIXED_BYTES)


def decode_map(packed: Buffer) -> RecordMap:
    """Strictly: exact types, known names, sizes in range. Raises Undecodable."""
    try:
        fields = msgpack.unpackb(packed, use_list=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise Undecodable(Defect.INVALID, "record map") from error
    # The head of a map counts its pairs: a name that stands twice makes the map smaller than that. No value that is
    # a map itself gets past the types below.
    if type(fields) is not dict or packed[0] != _FIXMAP | len(fields):
        raise Undecodable(Defect.INVALID, "record map: no map, or a name twice")
    key, namespace, stored_ms = fields.get("k"), fields.get("n"), fields.get("t")
    if type(key) is not bytes or not 1 <= len(key) <= KEY_MAX_BYTES:
        raise Undecodable(Defect.INVALID, "record map: key")
    if type(namespace) is not str or not _is_known_name(namespace):
        raise Undecodable(Defect.INVALID, "record map: namespace")
    if type(stored_ms) is not int or stored_ms < 0:
        raise Undecodable(Defect.INVALID, "record map: time")
    if len(fields) == 3:
        return RecordMap(key, namespace, stored_ms)
    if not fields.keys() <= _NAMES:
        raise Undecodable(Defect.INVALID, "record map: names")
    content_type, metadata = fields.get("c", ""), fields.get("m", ())
    if type(content_type) is not str:
        raise Undecodable(Defect.INVALID, "record map: content type")
    if type(metadata) is not tuple or len(metadata) > METADATA_MAX_ITEMS:
        raise Undecodable(Defect.INVALID, "record map: metadata")
    for item in metadata:
        if type(item) is not tuple or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not str:
            raise Undecodable(Defect.INVALID, "record map: metadata item")
    if len(content_type.encode()) + sum(len(n.encode()) + len(v.encode()) for n, v in metadata) > METADATA_MAX_BYTES:
        raise Undecodable(Defect.INVALID, "record map: more metadata than a record may have")
    parts = decode_parts(fields["p"]) if "p" in fields else ()
    return RecordMap(key, namespace, stored_ms, content_type, metadata, parts)
