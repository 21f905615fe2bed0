"""Checksums: CRC32C against accidents, keyed BLAKE2b where a value must not be able to forge a structure (B3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c as _crc32c

KEYED_SUM_BYTES = 16
DIGEST_BYTES = 16
SECRET_BYTES = 32

Buffer = bytes | bytearray | memoryview


crc32c: Callable[..., int] = _crc32c
"""CRC32C (Castagnoli) of the first argument, continuing from the second: ``crc32c(data, value=0)``."""


def crc32c_without(block: Buffer, offset: int, value: int = 0) -> int:
    """CRC32C of a structure as if the four bytes at ``offset``, where its own checksum stands, were zero."""
    view = memoryview(block)
    return crc32c(view[offset + 4 :], crc32c(b"\0\0\0\0", crc32c(view[:offset], value)))


def keyed_sum(secret: bytes, *parts: Buffer) -> bytes:
    """128-bit BLAKE2b over ``parts`` under the device's secret: the checksum of record headers."""
    h = _header_hash(secret).copy()
    for part in parts:
        h.update(part)
    return h.digest()


def header_hash(secret: bytes) -> Callable[[], hashlib.blake2b]:
    """What gives the hash that ``keyed_sum`` starts from, fresh each time: for one who makes a sum for every read."""
    return _header_hash(secret).copy


def key_digest(secret: bytes, namespace_id: int, key: bytes) -> bytes:
    """128-bit keyed digest that stands for a key in rows. Keyed, so that no client can choose colliding keys."""
    h = _key_hash(secret, namespace_id).copy()
    h.update(key)
    return h.digest()


def key_digests(secret: bytes, namespace_id: int, keys: Sequence[bytes]) -> list[bytes]:
    """As ``key_digest``, of many keys."""
    copy = _key_hash(secret, namespace_id).copy
    digests = []
    for key in keys:
        h = copy()
        h.update(key)
        digests.append(h.digest())
    return digests


# A copy of a hash that has taken its parameters costs half of making one: measured, 0.36 µs against 0.70 for a header.


@lru_cache(maxsize=8)
def _header_hash(secret: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=KEYED_SUM_BYTES, key=secret, person=b"rawblockd header")


@lru_cache(maxsize=1024)
def _key_hash(secret: bytes, namespace_id: int) -> hashlib.blake2b:
    """What the digest of a namespace's keys starts from; it is copied, never updated."""
    return hashlib.blake2b(
        digest_size=DIGEST_BYTES, key=secret, person=b"rawblockd keys", salt=namespace_id.to_bytes(8, "little")
    )


@lru_cache(maxsize=4)
def _crc_tables(length_bytes: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Per 16-bit column of a line of ``length_bytes`` the CRC that each of its 65,536 values contributes.

    A CRC is affine over GF(2): crc(a ^ b) = crc(a) ^ crc(b) ^ crc(0), so the CRC of a line is the XOR of what its
    columns contribute. 30 columns of 256 KiB each for a row: built once, in about 50 ms.
    """
    zero = crc32c(bytes(length_bytes))
    columns = length_bytes // 2
    bytes_table = np.zeros((length_bytes, 256), dtype=np.uint32)
    for position in range(length_bytes):
        line = bytearray(length_bytes)
        # Linear in the bits of the byte: eight CRCs make all 256.
        bits = np.zeros(8, dtype=np.uint32)
        for bit in range(8):
            line[position] = 1 << bit
            bits[bit] = crc32c(bytes(line)) ^ zero
        values = np.arange(256, dtype=np.uint32)
        for bit in range(8):
            bytes_table[position] ^= np.where(values >> bit & 1, bits[bit], np.uint32(0)).astype(np.uint32)
    tables = np.empty((columns, 65536), dtype=np.uint32)
    for column in range(columns):
        low, high = bytes_table[2 * column], bytes_table[2 * column + 1]
        tables[column] = (high[:, None] ^ low[None, :]).reshape(-1)
    return tables, zero


def crc32c_of_lines(lines: npt.NDArray[np.uint8], value: int = 0) -> npt.NDArray[np.uint32]:
    """CRC32C of each line of a ``(count, length)`` array of bytes, length even, continuing from ``value``."""
    count, length_bytes = lines.shape
    tables, zero = _crc_tables(length_bytes)
    # What ``value`` contributes is the same for every line of this length.
    start = np.uint32(crc32c(bytes(length_bytes), value))
    del zero
    result = np.full(count, start, dtype=np.uint32)
    words: npt.NDArray[Any] = np.ascontiguousarray(lines).view(np.uint16)
    step = 1 << 15  # 2 MiB of lines at a time stay in the cache
    for begin in range(0, count, step):
        part = words[begin : begin + step]
        out = result[begin : begin + step]
        for column in range(length_bytes // 2):
            out ^= tables[column][part[:, column]]
    return result


_POLYNOMIAL = 0x82F63B78
"""Of CRC32C, with the bits in the order in which it takes them."""


def leading_to(value: int) -> int:
    """The number of which the four little-endian bytes, continuing from 0, have this CRC: the CRC run backwards."""
    register = value ^ 0xFFFFFFFF
    for _ in range(32):
        register = (register ^ _POLYNOMIAL) << 1 | 1 if register >> 31 else register << 1
        register &= 0xFFFFFFFF
    return register ^ 0xFFFFFFFF


@lru_cache(maxsize=4)
def _field_tables(length_bytes: int, offset: int) -> npt.NDArray[np.uint32]:
    """For each of four bytes from ``offset`` on what its 256 values change in the CRC of so many bytes."""
    zero = crc32c(bytes(length_bytes))
    bits = np.zeros((4, 8), dtype=np.uint32)
    for position in range(4):
        block = bytearray(length_bytes)
        for bit in range(8):
            block[offset + position] = 1 << bit
            bits[position, bit] = crc32c(bytes(block)) ^ zero
    values = np.arange(256, dtype=np.uint32)
    tables = np.zeros((4, 256), dtype=np.uint32)
    for position in range(4):
        for bit in range(8):
            tables[position] ^= np.where(values >> bit & 1, bits[position, bit], np.uint32(0)).astype(np.uint32)
    return tables


def crc32c_of_blocks_without(blocks: memoryview, block_bytes: int, offset: int) -> npt.NDArray[np.uint32]:
    """``crc32c_without`` of each of many blocks that lie behind one another.

    A CRC is linear: what the four bytes contribute is taken out afterwards, for all at once. One call per block costs
    0.4 µs at 4 KiB instead of 1.1.
    """
    count = len(blocks) // block_bytes
    ends = range(block_bytes, len(blocks) + 1, block_bytes)
    sums = np.array([crc32c(blocks[end - block_bytes : end]) for end in ends], dtype=np.uint32)
    fields = np.frombuffer(blocks, dtype=np.uint8).reshape(count, block_bytes)[:, offset : offset + 4]
    tables = _field_tables(block_bytes, offset)
    for position in range(4):
        sums ^= tables[position][fields[:, position]]
    return sums
