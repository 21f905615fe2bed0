"""Checksums: the right polynomial, the array form equal to the plain one, keyed sums over all they should cover."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from storage.format.checksums import (
    crc32c,
    crc32c_of_blocks_without,
    crc32c_of_lines,
    crc32c_without,
    key_digest,
    keyed_sum,
    leading_to,
)
from tests.storage.format.bits import SECRET


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_crc32c_continues(head: bytes, tail: bytes) -> None:
    assert crc32c(tail, crc32c(head)) == crc32c(head + tail)


@given(st.binary(min_size=4, max_size=300), st.data())
def test_crc32c_without_is_that_of_four_zeros(block: bytes, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(block) - 4))
    zeroed = block[:offset] + bytes(4) + block[offset + 4 :]
    assert crc32c_without(block, offset) == crc32c(zeroed)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([2, 16, 60]).flatmap(
        lambda length: st_numpy.arrays(np.uint8, st.tuples(st.integers(0, 50), st.just(length)))
    ),
    st.integers(0, 0xFFFFFFFF),
)
def test_crc32c_of_lines_equals_crc32c(lines: np.ndarray, value: int) -> None:
    assert crc32c_of_lines(lines, value).tolist() == [crc32c(line.tobytes(), value) for line in lines]


def test_crc32c_of_more_lines_than_one_step_takes() -> None:
    lines = np.random.default_rng(1).integers(0, 256, (70_000, 60), dtype=np.uint8)
    sums = crc32c_of_lines(lines, 7)
    for index in (0, 32_767, 32_768, 65_535, 65_536, 69_999):
        assert sums[index] == crc32c(lines[index].tobytes(), 7)


@given(st.lists(st.binary(min_size=64, max_size=64), min_size=1, max_size=5), st.sampled_from([0, 8, 60]))
def test_crc32c_of_blocks_without_equals_that_of_each(blocks: list[bytes], offset: int) -> None:
    sums = crc32c_of_blocks_without(memoryview(b"".join(blocks)), 64, offset)
    assert sums.tolist() == [crc32c_without(block, offset) for block in blocks]


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
def test_four_bytes_lead_a_checksum_to_any_other(value: int, start: int) -> None:
    assert crc32c(leading_to(value).to_bytes(4, "little")) == value
    assert crc32c((leading_to(value) ^ start).to_bytes(4, "little"), start) == value


def test_keyed_sum_is_blake2b_with_the_parameters_of_the_format() -> None:
    expected = hashlib.blake2b(b"ab", digest_size=16, key=SECRET, person=b"rawblockd header").digest()
    assert keyed_sum(SECRET, b"a", b"b") == expected


def test_key_digest_is_blake2b_with_the_parameters_of_the_format() -> None:
    salt = (5).to_bytes(8, "little")
    expected = hashlib.blake2b(b"key", digest_size=16, key=SECRET, person=b"rawblockd keys", salt=salt).digest()
    assert key_digest(SECRET, 5, b"key") == expected


@pytest.mark.parametrize(
    "other", [(bytes(32), 5, b"key"), (SECRET, 6, b"key"), (SECRET, 5, b"kez"), (SECRET, 5, b"key\0")]
)
def test_key_digest_depends_on_secret_namespace_and_key(other: tuple[bytes, int, bytes]) -> None:
    assert key_digest(*other) != key_digest(SECRET, 5, b"key")
