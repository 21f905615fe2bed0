"""Pages: of this device, this copy, this place, or refused (B3, B4)."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format.checksums import crc32c_without
from storage.format.layout import Defect, Undecodable
from storage.format.page import (
    PAGE,
    PAGE_DTYPE,
    PageHeader,
    PageHeaders,
    blank_headers,
    decode_page_header,
    pages_as_named,
    rows_hold,
    seal_pages,
)
from storage.format.row import ACCESS_OFFSET, ROW_DTYPE, checksums_of, fresh_rows, seed_of
from tests.storage.format.bits import OTHER_UUID, UUID, single_bit_flips, with_bytes

HEADER = PageHeader(copy=2, slot_class=1, page=17, slab=3, generation=4, first_slot=126, seq=99)
U32 = st.integers(0, 2**32 - 1)


def seal_page(block: memoryview, uuid: bytes, header: PageHeader) -> int:
    headers: PageHeaders = np.zeros(1, dtype=PAGE_DTYPE)
    for name, value in header._asdict().items():
        headers[name] = value
    return int(seal_pages(block, uuid, headers)[0])


def claimed_checksum(block: bytes | bytearray) -> int:
    return int(np.frombuffer(block, dtype=PAGE_DTYPE, count=1)["checksum"][0])


def sealed(header: PageHeader = HEADER, block_bytes: int = 4096) -> bytearray:
    block = bytearray(block_bytes)
    rows = fresh_rows(seed_of(UUID), header.slab, header.slot_class, block_bytes // 64 - 1, 1)
    block[64:] = rows.tobytes()
    seal_page(memoryview(block), UUID, header)
    return block


def refusal(block: bytes | bytearray, uuid: bytes = UUID, copy: int = 2, page: int = 17) -> str:
    with pytest.raises(Undecodable) as caught:
        decode_page_header(block, uuid, copy=copy, page=page)
    return caught.value.reason


@given(
    st.builds(
        PageHeader,
        copy=st.integers(0, 255),
        slot_class=st.integers(0, 255),
        page=U32,
        slab=U32,
        generation=U32,
        first_slot=U32,
        seq=st.integers(0, 2**64 - 1),
    )
)
def test_round_trip(header: PageHeader) -> None:
    block = bytearray(4096)
    checksum = seal_page(memoryview(block), UUID, header)
    assert decode_page_header(block, UUID, copy=header.copy, page=header.page) == header
    assert claimed_checksum(block) == crc32c_without(block, PAGE.offsets["checksum"]) == checksum


def test_sealing_leaves_the_rows_alone() -> None:
    block = sealed()
    again = bytearray(block)
    seal_page(memoryview(again), UUID, HEADER._replace(seq=100))
    assert again[64:] == block[64:]


def test_every_single_bit_flip_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(bytes(sealed())):
        try:
            decode_page_header(damaged, UUID, copy=2, page=17)
        except Undecodable as error:
            assert error.reason == (Defect.MAGIC if bit < 64 else Defect.CHECKSUM)
        else:
            pytest.fail(f"bit {bit} flipped and not noticed")


def test_page_of_another_device_or_place_b3() -> None:
    assert refusal(sealed(), uuid=OTHER_UUID) == Defect.WRONG_DEVICE
    assert refusal(sealed(), copy=1) == Defect.WRONG_PLACE
    assert refusal(sealed(), page=18) == Defect.WRONG_PLACE


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [("version", b"\2\0", Defect.VERSION), ("reserved", b"\0\1", Defect.INVALID)],
)
def test_odd_values_b4(field: str, content: bytes, reason: str) -> None:
    block = with_bytes(bytes(sealed()), PAGE.offsets[field], content)
    struct.pack_into("<I", block, PAGE.offsets["checksum"], crc32c_without(block, PAGE.offsets["checksum"]))
    assert refusal(block) == reason


# -- many pages at once -----------------------------------------------------------------------------------------------

COUNT = 4


def neighbours() -> bytearray:
    """Pages 17 to 20."""
    return bytearray().join(sealed(HEADER._replace(page=17 + position)) for position in range(COUNT))


def named(blocks: bytearray) -> PageHeaders:
    headers = blank_headers(COUNT, UUID, HEADER.copy)
    for position in range(COUNT):
        header = HEADER._replace(page=17 + position)
        for name, value in header._asdict().items():
            headers[name][position] = value
        headers["checksum"][position] = claimed_checksum(sealed(header))
    return headers


def decodes(block: bytes, page: int) -> bool:
    try:
        return decode_page_header(block, UUID, copy=HEADER.copy, page=page) == HEADER._replace(page=page)
    except Undecodable:
        return False


@given(st.dictionaries(st.integers(0, COUNT * 4096 - 1) | st.integers(0, 63), st.integers(1, 255), max_size=4))
def test_pages_as_named_are_those_that_decode_to_the_header_b3(changes: dict[int, int]) -> None:
    blocks = neighbours()
    headers = named(blocks)
    for place, change in changes.items():
        blocks[place] ^= change
    pages = [bytes(blocks[4096 * position : 4096 * (position + 1)]) for position in range(COUNT)]
    expected = [decodes(page, 17 + position) for position, page in enumerate(pages)]
    assert pages_as_named(memoryview(blocks), 4096, headers).tolist() == expected
    assert sum(expected) == COUNT - len({place // 4096 for place in changes})


def test_a_page_that_decodes_but_is_not_the_one_named_is_none_b3() -> None:
    blocks = neighbours()
    for name in ("seq", "generation", "slot_class", "slab", "first_slot", "checksum"):
        headers = named(blocks)
        headers[name][1] += 1
        assert pages_as_named(memoryview(blocks), 4096, headers).tolist() == [True, False, True, True], name


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 63), min_size=COUNT, max_size=COUNT),
    st.lists(st.tuples(st.integers(0, COUNT * 64 - 1), st.integers(0, 63), st.integers(1, 255)), max_size=5),
    st.integers(0, 7),
)
def test_rows_hold_where_each_row_does_b4(slots: list[int], changes: list[tuple[int, int, int]], access: int) -> None:
    seed = seed_of(UUID)
    lines = np.frombuffer(neighbours(), dtype=ROW_DTYPE).copy()
    lines["access"] = access
    for line, place, change in changes:
        lines.view(np.uint8).reshape(-1, 64)[line, place] ^= change
    right = (lines["checksum"] == checksums_of(seed, lines)).reshape(COUNT, -1)
    expected = [bool(right[page, 1 : 1 + count].all()) for page, count in enumerate(slots)]
    assert rows_hold(lines.view(np.uint8).data, 4096, seed, np.array(slots)).tolist() == expected
    assert all(expected) or any(line % 64 and place != ACCESS_OFFSET for line, place, _ in changes)
