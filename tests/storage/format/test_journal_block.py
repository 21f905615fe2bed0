"""Journal blocks: of this device, at their place, whole or refused (B3, B4)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.catalogue import NamespaceWipedRecord, StartRecord, encode_record
from storage.format.checksums import crc32c_without
from storage.format.journal_block import (
    JOURNAL,
    catalogue_records,
    decodable,
    decode_journal_header,
    encode_journal_block,
    row_lines,
)
from storage.format.layout import Defect, Undecodable
from storage.format.row import encode_row, seed_of
from tests.storage.format.bits import OTHER_UUID, UUID, single_bit_flips, with_bytes

RING = 4096
FIELDS: dict[str, Any] = {
    "start_count": 3,
    "number": 9000,
    "previous": 0xCAFEBABE,
    "flushed_through": 8990,
    "tail": 5000,
    "complete_since": 70,
}
ROWS = [encode_row(seed_of(UUID), state=0, slot_class=0, slab=0, slot=slot, seq=slot + 1) for slot in range(3)]
RECORDS = [StartRecord(5, 3, 8999, 17, 1_700_000_000_000), NamespaceWipedRecord(6, 2)]


def encoded(rows: list[bytes] = ROWS, block_bytes: int = 4096, **changed: int) -> bytearray:
    block = bytearray(b"\xff" * block_bytes)
    records = b"".join(encode_record(record) for record in RECORDS)
    encode_journal_block(memoryview(block), uuid=UUID, rows=rows, records=records, **(FIELDS | changed))
    return block


def decode(block: bytes | bytearray, uuid: bytes = UUID, position: int = 9000 % RING) -> Any:
    return decode_journal_header(block, uuid, position=position, journal_blocks=RING)


def refusal(block: bytes | bytearray, **changed: Any) -> str:
    with pytest.raises(Undecodable) as caught:
        decode(block, **changed)
    return caught.value.reason


def resealed(offset: int, content: bytes) -> bytearray:
    block = with_bytes(bytes(encoded()), offset, content)
    struct.pack_into("<I", block, JOURNAL.offsets["checksum"], crc32c_without(block, JOURNAL.offsets["checksum"]))
    return block


@given(
    number=st.integers(1, 2**64 - 1),
    start_count=st.integers(1, 2**32 - 1),
    previous=st.integers(0, 2**32 - 1),
    complete_since=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_round_trip(number: int, start_count: int, previous: int, complete_since: int, data: st.DataObject) -> None:
    rows = ROWS[: data.draw(st.integers(0, 3))]
    fields = {
        "number": number,
        "start_count": start_count,
        "previous": previous,
        "flushed_through": data.draw(st.integers(0, number - 1)),
        "tail": data.draw(st.integers(0, number)),
        "complete_since": complete_since,
    }
    block = encoded(rows, **fields)
    header = decode(block, position=number % RING)
    assert {name: getattr(header, name) for name in fields} == fields
    assert bytes(row_lines(memoryview(block), header)) == b"".join(rows)
    assert catalogue_records(memoryview(block), header) == RECORDS


def test_the_block_is_filled_whole() -> None:
    block = encoded()
    header = decode(block)
    assert not any(block[JOURNAL.size_bytes + header.rows * 64 + header.catalogue_bytes :])


def test_a_full_block() -> None:
    rows = ROWS * 20
    block = bytearray(4096)
    encode_journal_block(memoryview(block), uuid=UUID, rows=rows, records=b"", **FIELDS)
    assert decode(block).rows == 60


def test_every_single_bit_flip_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(bytes(encoded())):
        try:
            decode(damaged)
        except Undecodable as error:
            assert error.reason == (Defect.MAGIC if bit < 64 else Defect.CHECKSUM)
        else:
            pytest.fail(f"bit {bit} flipped and not noticed")


def test_block_of_another_device_or_place_b3() -> None:
    assert refusal(encoded(), uuid=OTHER_UUID) == Defect.WRONG_DEVICE
    assert refusal(encoded(), position=9001 % RING) == Defect.WRONG_PLACE


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [
        ("version", b"\2\0", Defect.VERSION),
        ("reserved", b"\1", Defect.INVALID),
        ("padding", b"\1", Defect.INVALID),
        ("reserved2", b"\1", Defect.INVALID),
        ("rows", b"\x3e\0", Defect.INVALID),
        ("rows", b"\xff\xff", Defect.INVALID),
        ("rows", b"\2\0", Defect.INVALID),
        ("catalogue_bytes", b"\xff\xff", Defect.INVALID),
        ("start_count", bytes(4), Defect.INVALID),
        ("flushed_through", struct.pack("<Q", 9000), Defect.INVALID),
        ("tail", struct.pack("<Q", 9001), Defect.INVALID),
    ],
)
def test_odd_values_b4(field: str, content: bytes, reason: str) -> None:
    assert refusal(resealed(JOURNAL.offsets[field], content)) == reason


def test_bytes_behind_the_content_are_zero_b4() -> None:
    assert refusal(resealed(4095, b"\1")) == Defect.INVALID


def test_records_that_do_not_decode_b4() -> None:
    block = resealed(JOURNAL.size_bytes + 3 * 64, b"\xff\xff")
    header = decode(block)
    with pytest.raises(Undecodable):
        catalogue_records(memoryview(block), header)


HEADER_BYTES = st.integers(0, JOURNAL.size_bytes - 1)


@given(
    st.lists(st.tuples(st.integers(0, 3), HEADER_BYTES | st.integers(0, 4095), st.integers(1, 255)), max_size=4),
    st.booleans(),
    st.sets(st.integers(0, 3)),
)
def test_many_blocks_are_judged_as_one_by_one_b4(
    changes: list[tuple[int, int, int]], reseal: bool, blank: set[int]
) -> None:
    blocks = [encoded(ROWS[: number % 4], number=9000 + number) for number in range(4)]
    for which, place, change in changes:
        blocks[which][place] ^= change
        if reseal:
            sum_offset = JOURNAL.offsets["checksum"]
            struct.pack_into("<I", blocks[which], sum_offset, crc32c_without(blocks[which], sum_offset))
    for which in blank:
        blocks[which] = bytearray(4096)
    good, headers = decodable(
        memoryview(bytearray().join(blocks)), 4096, UUID, position=9000 % RING, journal_blocks=RING
    )
    for number, block in enumerate(blocks):
        try:
            expected = decode(block, position=9000 % RING + number)
        except Undecodable:
            assert not good[number]
        else:
            assert good[number]
            assert headers[number].item() == tuple(expected)
