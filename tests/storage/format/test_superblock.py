"""The superblock: whole or refused (B3, B4), and a newer format by its name."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import FormatUnsupported
from storage.format.checksums import crc32c_without
from storage.format.geometry import plan
from storage.format.layout import Defect, Undecodable
from storage.format.superblock import (
    SUPERBLOCK,
    Superblock,
    claimed_block_bytes,
    decode_superblock,
    encode_superblock,
    writable,
)
from tests.storage.format.bits import SECRET, UUID, single_bit_flips, with_bytes

GEOMETRY = plan(32 << 20)
ONE = Superblock(UUID, SECRET, 1_700_000_000_000, GEOMETRY, start_count=3)
ENCODED = encode_superblock(ONE, 0)


def resealed(encoded: bytes, offset: int, content: bytes) -> bytearray:
    """Changed, with a right checksum: written wrong rather than damaged."""
    changed = with_bytes(encoded, offset, content)
    struct.pack_into("<I", changed, SUPERBLOCK.offsets["checksum"], crc32c_without(changed, 8))
    return changed


def refusal(block: bytes | bytearray, place: int = 0) -> str:
    with pytest.raises(Undecodable) as caught:
        decode_superblock(block, place)
    return caught.value.reason


@given(
    size=st.sampled_from([32 << 20, 1 << 30, 3 << 40]),
    block_bytes=st.sampled_from([4096, 16384]),
    place=st.integers(0, 1),
    created_ms=st.integers(0, 2**64 - 1),
    start_count=st.integers(0, 2**32 - 1),
    compat=st.integers(0, 2**64 - 1),
)
def test_round_trip(size: int, block_bytes: int, place: int, created_ms: int, start_count: int, compat: int) -> None:
    geometry = plan(max(size, 128 << 20) if block_bytes > 4096 else size, block_bytes=block_bytes)
    superblock = Superblock(UUID, SECRET, created_ms, geometry, start_count, compat, ro_compat=compat)
    encoded = encode_superblock(superblock, place)
    assert len(encoded) == block_bytes == claimed_block_bytes(encoded[:512])
    assert decode_superblock(encoded, place) == superblock


def test_all_fields_lie_in_the_first_sector() -> None:
    assert not any(ENCODED[512:])


def test_every_single_bit_flip_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(ENCODED):
        try:
            decode_superblock(damaged, 0)
        except Undecodable as error:
            assert error.reason == (Defect.MAGIC if bit < 64 else Defect.CHECKSUM)
        else:
            pytest.fail(f"bit {bit} flipped and not noticed")


def test_wrong_place_b3() -> None:
    assert refusal(ENCODED, 1) == Defect.WRONG_PLACE


def test_cut_block() -> None:
    assert refusal(ENCODED[:2048]) == Defect.CHECKSUM


def test_no_superblock_claims_no_block() -> None:
    assert claimed_block_bytes(bytes(512)) == 0
    assert refusal(bytes(4096)) == Defect.MAGIC


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("reserved", b"\1"),
        ("classes", b"\0\0\0\0"),
        ("classes", struct.pack("<I", 65)),
        ("classes", b"\1\0\0\0"),
        ("copies", b"\1\0\0\0"),
        ("copies", b"\xff\xff\xff\xff"),
        ("slabs", b"\0\0\0\0"),
        ("slabs", b"\xff\xff\xff\xff"),
        ("slab_bytes", b"\1\0\0\0"),
        ("smallest_slot_bytes", b"\0\0\0\0"),
        ("journal_blocks", b"\1\0\0\0"),
        ("device_bytes", bytes(8)),
        ("class_bytes", b"\0\0\0\0"),
        ("class_bytes", b"\xff\xff\xff\xff"),
    ],
)
def test_odd_values_are_refused_even_under_a_right_checksum_b4(field: str, content: bytes) -> None:
    assert refusal(resealed(ENCODED, SUPERBLOCK.offsets[field], content)) == Defect.INVALID


def test_bytes_behind_the_structure_are_zero_b4() -> None:
    assert refusal(resealed(ENCODED, 4000, b"\1")) == Defect.INVALID


@pytest.mark.parametrize(("field", "content"), [("version", b"\2\0"), ("incompat", b"\0\0\0\0\0\0\0\1")])
def test_newer_formats_are_refused_as_such_d5(field: str, content: bytes) -> None:
    with pytest.raises(FormatUnsupported):
        decode_superblock(resealed(ENCODED, SUPERBLOCK.offsets[field], content), 0)


def test_features_an_older_program_may_live_with() -> None:
    assert writable(ONE)
    assert writable(dataclasses.replace(ONE, compat=1 << 60))
    assert not writable(dataclasses.replace(ONE, ro_compat=1 << 60))
