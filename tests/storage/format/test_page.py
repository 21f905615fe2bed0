"""Pages: of this device, this copy, this place, or refused (B3, B4)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.checksums import crc32c_without
from storage.format.layout import Defect, Undecodable
from storage.format.page import PAGE, PageHeader, decode_page_header, page_checksum, seal_page
from storage.format.row import fresh_rows, seed_of
from tests.storage.format.bits import OTHER_UUID, UUID, single_bit_flips, with_bytes

HEADER = PageHeader(copy=2, slot_class=1, page=17, slab=3, generation=4, first_slot=126, seq=99)
U32 = st.integers(0, 2**32 - 1)


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
    assert page_checksum(block) == (checksum, checksum)


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
