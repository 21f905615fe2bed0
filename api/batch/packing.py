"""msgpack of what a batch read sends for each value, put together without a packer: this is done for every hit.

The map of a hit has its fields in a fixed order and width, so most of it is one format.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import msgpack

from api.batch.results import Result, etag_text
from api.metadata import DEFAULT_CONTENT_TYPE
from api.parts import list_of_parts
from storage.entries import EntryInfo

_NEVER = b"\xc0"
_FIELDS = 0x87
"""The head of a map of 7; an entry with parts has one more."""
_HIT = b'%c\xa6status\xcc\xc8\xa4etag\xb2"%016x"\xa4size\xce%b\xa9stored_at\xcb%b\xaaexpires_at%b%b'
_UINT_32 = struct.Struct(">I")
_FLOAT_64 = struct.Struct(">d")
_TAILS_MAX = 256
"""Types and metadata whose packed form is remembered: 8 KiB at most, twice."""

_SIZES_MAX = 1024
"""Sizes of values whose head is remembered."""

MISS = msgpack.packb({"status": 404, "reason": "not_found"})

_BIN_8_MAX = 0xFF
_BIN_16_MAX = 0xFFFF


def pack_hit(info: EntryInfo) -> bytes:
    """The map before a value, as ``hit_result`` has it."""
    expires = b"\xce" + _UINT_32.pack(info.expires_at) if info.expires_at else _NEVER
    size = _UINT_32.pack(info.payload_bytes)
    tail = _tail(info.content_type, info.metadata)
    fields = _FIELDS
    if info.parts:
        fields += 1
        tail += b"\xa5parts" + pack(list_of_parts(info.parts))
    return _HIT % (fields, info.write_id, size, _FLOAT_64.pack(info.stored_at), expires, tail)


@lru_cache(maxsize=_SIZES_MAX)
def pack_bin_head(size_bytes: int) -> bytes:
    """What stands before the bytes of a binary object."""
    if size_bytes <= _BIN_8_MAX:
        return bytes((0xC4, size_bytes))
    if size_bytes <= _BIN_16_MAX:
        return b"\xc5" + size_bytes.to_bytes(2, "big")
    return b"\xc6" + size_bytes.to_bytes(4, "big")


def pack(result: Any) -> bytes:
    """Any other object."""
    packed = msgpack.packb(result)
    assert isinstance(packed, bytes)
    return packed


def hit_result(info: EntryInfo) -> Result:
    """The result of a value that is there; the value itself is not in it."""
    result = {
        "status": 200,
        "etag": etag_text(info.write_id),
        "size": info.payload_bytes,
        "stored_at": info.stored_at,
        "expires_at": info.expires_at or None,
        "content_type": info.content_type or DEFAULT_CONTENT_TYPE.decode(),
        "meta": dict(info.metadata),
    }
    return result | {"parts": list_of_parts(info.parts)} if info.parts else result


@lru_cache(maxsize=_TAILS_MAX)
def _tail(content_type: str, metadata: tuple[tuple[str, str], ...]) -> bytes:
    packed_type = msgpack.packb(content_type or DEFAULT_CONTENT_TYPE.decode())
    return b"\xaccontent_type%b\xa4meta%b" % (packed_type, msgpack.packb(dict(metadata)))
