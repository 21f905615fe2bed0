"""Values that say what they are: whose they are, which version, how long, and a checksum over all of it."""

from __future__ import annotations

import hashlib
import random
import struct

_HEAD = struct.Struct("<8sQQ32s")
_MAGIC = b"whole-1\n"
_POOL_BYTES = 32 << 20
_POOL = random.Random("pool of the crash tests").randbytes(_POOL_BYTES)
SIZE_MIN_BYTES = _HEAD.size
SIZE_MAX_BYTES = _POOL_BYTES // 2


def make_value(key: str, version: int, size_bytes: int) -> bytes:
    """The value of one put; no two puts of a test have the same."""
    assert SIZE_MIN_BYTES <= size_bytes <= SIZE_MAX_BYTES
    begin = version * 7919 % (_POOL_BYTES // 2)
    body = _POOL[begin : begin + size_bytes - _HEAD.size]
    return _HEAD.pack(_MAGIC, version, size_bytes, _checksum(key, version, body)) + body


def version_of(key: str, value: bytes) -> int:
    """The version of a value that must be one whole put of ``key`` (B1); anything else fails the test."""
    assert len(value) >= _HEAD.size, f"{key}: a value of {len(value)} bytes was never put"
    magic, version, size_bytes, checksum = _HEAD.unpack_from(value)
    assert magic == _MAGIC, f"{key}: nobody put a value that begins with {value[:16].hex()}"
    assert size_bytes == len(value), f"{key}: version {version} has {len(value)} of {size_bytes} bytes"
    assert checksum == _checksum(key, version, value[_HEAD.size :]), f"{key}: version {version} is not whole"
    assert isinstance(version, int)
    return version


def _checksum(key: str, version: int, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32, key=hashlib.sha256(f"{key}\0{version}".encode()).digest()).digest()
