"""Damage for encoded structures."""

from __future__ import annotations

from collections.abc import Iterator

UUID = bytes(range(16))
OTHER_UUID = bytes(range(16, 32))
SECRET = bytes(range(32))


def single_bit_flips(encoded: bytes) -> Iterator[tuple[int, bytearray]]:
    """(bit number, the structure with that bit flipped) for every bit. The array is valid until the next one."""
    damaged = bytearray(encoded)
    for bit in range(len(encoded) * 8):
        damaged[bit >> 3] ^= 1 << (bit & 7)
        yield bit, damaged
        damaged[bit >> 3] ^= 1 << (bit & 7)


def with_bytes(encoded: bytes, offset: int, content: bytes) -> bytearray:
    """The structure with other bytes at ``offset``."""
    changed = bytearray(encoded)
    changed[offset : offset + len(content)] = content
    return changed
