"""Values that say what they are: whose they are, which version, how long, and a checksum over all of it."""

from __future__ import annotations

import hashlib
import random
import struct

_HEAD = struct.Struct("<8sQQ32s")
_MAGIC = b"torture1"
_PERIOD_BYTES = 8 << 20
_POOL = memoryview(2 * random.Random("pool of torture").randbytes(_PERIOD_BYTES))
SIZE_MIN_BYTES = _HEAD.size


class NotThatValue(Exception):
    """Bytes that are not one whole put of the key; the text says why."""


def make_value(key: str, version: int, size_bytes: int) -> bytes:
    """The value of one put; no two puts of a run have the same."""
    assert size_bytes >= SIZE_MIN_BYTES
    begin = version * 7919 % _PERIOD_BYTES
    rounds, rest = divmod(size_bytes - _HEAD.size, _PERIOD_BYTES)
    period = _POOL[begin : begin + _PERIOD_BYTES]
    body = b"".join([period] * rounds + [period[:rest]])
    return _HEAD.pack(_MAGIC, version, size_bytes, _checksum(key, version, body)) + body


def version_of(key: str, value: bytes) -> int:
    """The version of a value of ``key``. Raises NotThatValue."""
    if len(value) < _HEAD.size:
        raise NotThatValue(f"{key}: nobody put a value of {len(value)} bytes")
    magic, version, size_bytes, checksum = _HEAD.unpack_from(value)
    if magic != _MAGIC:
        raise NotThatValue(f"{key}: nobody put a value that begins with {value[:16].hex()}")
    if size_bytes != len(value):
        raise NotThatValue(f"{key}: version {version} has {len(value)} of {size_bytes} bytes")
    if checksum != _checksum(key, version, value[_HEAD.size :]):
        raise NotThatValue(f"{key}: version {version} is not whole, or not this key's")
    return int(version)


def _checksum(key: str, version: int, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32, key=hashlib.sha256(f"{key}\0{version}".encode()).digest()).digest()
