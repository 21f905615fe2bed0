"""The record: what lies in a slot. A header of a multiple of 64 bytes, directly followed by the payload.

The header carries a keyed sum over all of itself, so that a value that imitates a record can't pass for one; a
checksum for each 64 KiB of payload, so that a range is verified without reading the rest; and a msgpack map with what
varies: key, namespace, times, client metadata.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgpack

from storage.format.checksums import Buffer, crc32c, keyed_sum
from storage.format.layout import Defect, Field, Layout, Undecodable, round_up, unique_names
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


@dataclass(frozen=True, slots=True)
class RecordMap:
    """What the map of a header holds. ``stored_ms`` is milliseconds since 1970."""

    key: bytes
    namespace: str
    stored_ms: int
    content_type: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordHeader:
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


def chunk_count(payload_bytes: int) -> int:
    return -(-payload_bytes // CHUNK_BYTES)


def encode_map(record_map: RecordMap) -> bytes:
    fields: dict[str, Any] = {"k": record_map.key, "n": record_map.namespace, "t": record_map.stored_ms}
    if record_map.content_type:
        fields["c"] = record_map.content_type
    if record_map.metadata:
        fields["m"] = record_map.metadata
    if record_map.parts:
        fields["p"] = encode_parts(record_map.parts)
    packed: bytes = msgpack.packb(fields)
    return packed


def header_size(map_bytes: int, payload_bytes: int) -> int:
    """Bytes of the header of a record with such a map and payload: known before the payload arrives."""
    return round_up(RECORD.size_bytes + 4 * chunk_count(payload_bytes) + map_bytes, HEADER_UNIT_BYTES)


def pack_chunk_checksums(chunk_checksums: list[int] | tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(chunk_checksums)}I", *chunk_checksums)


def payload_checksum(packed_chunk_checksums: Buffer) -> int:
    """What the row keeps of the payload: the CRC32C of its chunk checksums."""
    return crc32c(packed_chunk_checksums)


def write_header(
    buffer: memoryview,
    *,
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
    size_bytes = header_size(len(packed_map), payload_bytes)
    RECORD.struct.pack_into(
        buffer,
        0,
        MAGIC,
        b"",
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
    position = RECORD.size_bytes
    variable = packed_chunk_checksums + packed_map
    buffer[position : position + len(variable)] = variable
    position += len(variable)
    buffer[position:size_bytes] = bytes(size_bytes - position)
    buffer[8:_PREFIX_BYTES] = keyed_sum(secret, buffer[_PREFIX_BYTES:size_bytes])
    return size_bytes


def read_header(block: memoryview, *, uuid: bytes, secret: bytes) -> RecordHeader:
    """Verify and decode the header at the start of ``block``. Raises Undecodable."""
    if len(block) < RECORD.size_bytes:
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
    ) = RECORD.struct.unpack_from(block, 0)
    if magic != MAGIC:
        raise Undecodable(Defect.MAGIC, "record header")
    size_bytes = header_units * HEADER_UNIT_BYTES
    if not RECORD.size_bytes <= size_bytes <= min(len(block), HEADER_MAX_BYTES):
        raise Undecodable(Defect.INVALID, "record header: size")
    if stored_sum != keyed_sum(secret, block[_PREFIX_BYTES:size_bytes]):
        raise Undecodable(Defect.CHECKSUM, "record header")
    if version != VERSION:
        raise Undecodable(Defect.VERSION, "record header")
    if stored_uuid != uuid:
        raise Undecodable(Defect.WRONG_DEVICE, "record header")
    if size_bytes != header_size(map_bytes, payload_bytes) or not write_id or not namespace_id:
        raise Undecodable(Defect.INVALID, "record header: sizes")
    chunks = chunk_count(payload_bytes)
    map_offset = RECORD.size_bytes + 4 * chunks
    if any(block[map_offset + map_bytes : size_bytes]):
        raise Undecodable(Defect.INVALID, "record header: padding")
    record_map = decode_map(block[map_offset : map_offset + map_bytes])
    if record_map.parts and total_bytes(record_map.parts) != payload_bytes:
        raise Undecodable(Defect.INVALID, "record header: the parts are not the payload")
    return RecordHeader(
        slab=slab,
        slot=slot,
        slot_class=slot_class,
        generation=generation,
        write_id=write_id,
        digest=digest,
        namespace_id=namespace_id,
        payload_bytes=payload_bytes,
        expires_at=expires_at,
        chunk_checksums=struct.unpack_from(f"<{chunks}I", block, RECORD.size_bytes),
        map=record_map,
        header_bytes=size_bytes,
    )


def decode_map(packed: Buffer) -> RecordMap:
    """Strictly: exact types, known names, sizes in range. Raises Undecodable."""
    try:
        fields = msgpack.unpackb(packed, use_list=False, strict_map_key=True, object_pairs_hook=unique_names)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise Undecodable(Defect.INVALID, "record map") from error
    if type(fields) is not dict or not fields.keys() <= {"k", "n", "t", "c", "m", "p"}:
        raise Undecodable(Defect.INVALID, "record map: names")
    key, namespace, stored_ms = fields.get("k"), fields.get("n"), fields.get("t")
    content_type, metadata = fields.get("c", ""), fields.get("m", ())
    if type(key) is not bytes or not 1 <= len(key) <= KEY_MAX_BYTES:
        raise Undecodable(Defect.INVALID, "record map: key")
    if type(namespace) is not str or not is_namespace_name(namespace):
        raise Undecodable(Defect.INVALID, "record map: namespace")
    if type(stored_ms) is not int or stored_ms < 0 or type(content_type) is not str:
        raise Undecodable(Defect.INVALID, "record map: time or content type")
    if type(metadata) is not tuple or len(metadata) > METADATA_MAX_ITEMS:
        raise Undecodable(Defect.INVALID, "record map: metadata")
    for item in metadata:
        if type(item) is not tuple or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not str:
            raise Undecodable(Defect.INVALID, "record map: metadata item")
    if len(content_type.encode()) + sum(len(n.encode()) + len(v.encode()) for n, v in metadata) > METADATA_MAX_BYTES:
        raise Undecodable(Defect.INVALID, "record map: more metadata than a record may have")
    parts = decode_parts(fields["p"]) if "p" in fields else ()
    return RecordMap(key, namespace, stored_ms, content_type, metadata, parts)
