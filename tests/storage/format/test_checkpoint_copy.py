"""Copy headers, directories and catalogues: theirs or refused (B3, B4)."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format.checkpoint_copy import (
    CATALOGUE_MAGIC,
    COPY,
    DIRECTORY_DTYPE,
    DIRECTORY_MAGIC,
    STREAM,
    CopyHeader,
    decode_copy_header,
    decode_directory,
    decode_stream,
    encode_copy_header,
    encode_stream,
    stream_checksum,
)
from storage.format.checksums import crc32c, crc32c_without
from storage.format.layout import Defect, Undecodable
from tests.storage.format.bits import OTHER_UUID, UUID, single_bit_flips, with_bytes

HEADER = CopyHeader(1, 7, 1000, 90, 3, 55, 0x11223344, 0x55667788, 900, 1_700_000_000_000, 12, 40)
ENCODED = encode_copy_header(HEADER, UUID, 4096)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def resealed(encoded: bytes, offset: int, content: bytes, checksum_offset: int) -> bytearray:
    changed = with_bytes(encoded, offset, content)
    struct.pack_into("<I", changed, checksum_offset, crc32c_without(changed, checksum_offset))
    return changed


def refusal(block: bytes | bytearray, uuid: bytes = UUID, copy: int = 1, pages: int = 55) -> str:
    with pytest.raises(Undecodable) as caught:
        decode_copy_header(block, uuid, copy=copy, pages=pages)
    return caught.value.reason


@given(
    st.builds(
        CopyHeader,
        copy=st.integers(0, 7),
        number=st.integers(1, 2**64 - 1),
        seq=U64,
        journal_block=U64,
        start_count=U32,
        pages=U32,
        directory_checksum=U32,
        catalogue_checksum=U32,
        catalogue_bytes=U32,
        written_ms=U64,
        entries=U64,
        tail=U64,
    ),
    st.sampled_from([4096, 65536]),
)
def test_header_round_trip(header: CopyHeader, block_bytes: int) -> None:
    encoded = encode_copy_header(header, UUID, block_bytes)
    assert len(encoded) == block_bytes
    assert decode_copy_header(encoded, UUID, copy=header.copy, pages=header.pages) == header


def test_every_single_bit_flip_of_a_header_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(ENCODED):
        try:
            decode_copy_header(damaged, UUID, copy=1, pages=55)
        except Undecodable as error:
            assert error.reason == (Defect.MAGIC if bit < 64 else Defect.CHECKSUM)
        else:
            pytest.fail(f"bit {bit} flipped and not noticed")


def test_header_of_another_device_or_place_b3() -> None:
    assert refusal(ENCODED, uuid=OTHER_UUID) == Defect.WRONG_DEVICE
    assert refusal(ENCODED, copy=0) == Defect.WRONG_PLACE


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [
        ("version", b"\2\0", Defect.VERSION),
        ("padding", b"\1", Defect.INVALID),
        ("reserved", b"\1", Defect.INVALID),
        ("pages", b"\1\0\0\0", Defect.INVALID),
        ("number", bytes(8), Defect.INVALID),
    ],
)
def test_odd_header_values_b4(field: str, content: bytes, reason: str) -> None:
    assert refusal(resealed(ENCODED, COPY.offsets[field], content, COPY.offsets["checksum"])) == reason


def test_bytes_behind_the_header_are_zero_b4() -> None:
    assert refusal(resealed(ENCODED, 4095, b"\1", COPY.offsets["checksum"])) == Defect.INVALID


# -- streams --------------------------------------------------------------------------------------------------------


def stream(content: bytes, block_bytes: int = 4096) -> bytes:
    return encode_stream(CATALOGUE_MAGIC, content, uuid=UUID, copy=1, number=7, block_bytes=block_bytes)


def stream_refusal(blocks: bytes | bytearray, **changed: object) -> str:
    expected = {"uuid": UUID, "copy": 1, "number": 7, "block_bytes": 4096} | changed
    with pytest.raises(Undecodable) as caught:
        decode_stream(CATALOGUE_MAGIC, blocks, **expected)  # type: ignore[arg-type]
    return caught.value.reason


@settings(max_examples=50)
@given(st.integers(0, 20_000), st.sampled_from([4096, 8192]), st.randoms(use_true_random=False))
def test_stream_round_trip(size: int, block_bytes: int, random: object) -> None:
    content = random.randbytes(size)  # type: ignore[attr-defined]
    blocks = stream(content, block_bytes)
    assert len(blocks) == -(-size // (block_bytes - 64)) * block_bytes
    assert stream_checksum(blocks) == crc32c(blocks)
    assert decode_stream(CATALOGUE_MAGIC, blocks, uuid=UUID, copy=1, number=7, block_bytes=block_bytes) == content


def test_every_single_bit_flip_of_a_stream_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(stream(b"content")):
        try:
            decode_stream(CATALOGUE_MAGIC, damaged, uuid=UUID, copy=1, number=7, block_bytes=4096)
        except Undecodable:
            continue
        pytest.fail(f"bit {bit} flipped and not noticed")


def test_stream_blocks_know_their_place_b3() -> None:
    blocks = stream(bytes(9000))
    assert stream_refusal(blocks, uuid=OTHER_UUID) == Defect.WRONG_DEVICE
    assert stream_refusal(blocks, copy=0) == Defect.WRONG_PLACE
    assert stream_refusal(blocks, number=8) == Defect.WRONG_PLACE
    assert stream_refusal(blocks[4096:8192] + blocks[:4096] + blocks[8192:]) == Defect.WRONG_PLACE
    directory = encode_stream(DIRECTORY_MAGIC, b"x", uuid=UUID, copy=1, number=7, block_bytes=4096)
    assert stream_refusal(directory) == Defect.MAGIC


@pytest.mark.parametrize(
    ("offset", "content", "reason"),
    [
        (STREAM.offsets["version"], b"\2\0", Defect.VERSION),
        (STREAM.offsets["used_bytes"], struct.pack("<I", 4033), Defect.INVALID),
        (STREAM.offsets["used_bytes"], b"\xff\xff\xff\xff", Defect.INVALID),
        (STREAM.offsets["reserved"], b"\1", Defect.INVALID),
        (4095, b"\1", Defect.INVALID),
    ],
)
def test_odd_stream_values_b4(offset: int, content: bytes, reason: str) -> None:
    assert stream_refusal(resealed(stream(b"content"), offset, content, STREAM.offsets["checksum"])) == reason


def test_directory_is_one_entry_per_page_b4() -> None:
    entries = np.array([(5, 6, 0), (7, 8, 0)], dtype=DIRECTORY_DTYPE)
    decoded = decode_directory(entries.tobytes(), 2)
    assert decoded.tolist() == entries.tolist()
    decoded["seq"][0] = 9  # its own memory, which a checkpoint changes
    for content, pages in ((entries.tobytes(), 3), (entries.tobytes()[:-1], 2)):
        with pytest.raises(Undecodable, match="size"):
            decode_directory(content, pages)
    entries["reserved"][1] = 1
    with pytest.raises(Undecodable, match="reserved"):
        decode_directory(entries.tobytes(), 2)
