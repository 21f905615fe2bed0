"""Record headers: a value can't forge one, and one that is odd is no header (B1, B3, B4)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.checksums import crc32c, keyed_sum
from storage.format.layout import Defect, Undecodable
from storage.format.record import (
    RECORD,
    RecordHeader,
    RecordMap,
    decode_map,
    header_size,
    pack_chunk_checksums,
    payload_checksum,
    read_header,
    write_header,
)
from storage.limits import CHUNK_BYTES, HEADER_MAX_BYTES
from tests.storage.format.bits import OTHER_UUID, SECRET, UUID, single_bit_flips, with_bytes
from tests.support.records import encode_map

PREFIX = RECORD.offsets["version"]
MAP = RecordMap(b"key", "name", 1_700_000_000_000, "text/plain", (("colour", "red"),))
TEXT = st.text(max_size=30)
NAMESPACES = st.text("abcxyzABCXYZ0189._-", min_size=1, max_size=128)
MAPS = st.builds(
    RecordMap,
    st.binary(min_size=1, max_size=100),
    NAMESPACES,
    st.integers(0, 2**63),
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=5).map(tuple),
)
FIELDS: dict[str, Any] = {
    "slab": 7,
    "slot": 300,
    "generation": 1 << 42 | 5,
    "slot_class": 2,
    "write_id": 1 << 42 | 9,
    "digest": bytes(range(50, 66)),
    "namespace_id": 4,
    "payload_bytes": 70_000,
    "expires_at": 2_000_000_000,
}


def chunk_count(payload_bytes: int) -> int:
    return (payload_bytes + 65535) // 65536


def encoded(record_map: RecordMap = MAP, packed_map: bytes | None = None, **changed: Any) -> bytearray:
    fields = FIELDS | changed
    chunks = chunk_count(fields["payload_bytes"])
    block = bytearray(b"\xff" * HEADER_MAX_BYTES)
    size = write_header(
        memoryview(block),
        uuid=UUID,
        secret=SECRET,
        packed_map=encode_map(record_map) if packed_map is None else packed_map,
        packed_chunk_checksums=pack_chunk_checksums(list(range(chunks))),
        **fields,
    )
    return block[:size]


def decode(block: bytes | bytearray, uuid: bytes = UUID, secret: bytes = SECRET) -> RecordHeader:
    return read_header(memoryview(block), uuid=uuid, secret=secret)


def refusal(block: bytes | bytearray, **changed: bytes) -> str:
    with pytest.raises(Undecodable) as caught:
        decode(block, **changed)
    return caught.value.reason


def resealed(block: bytes | bytearray, offset: int, content: bytes) -> bytearray:
    """Changed under a right sum: only the program itself can write that."""
    changed = with_bytes(bytes(block), offset, content)
    changed[8:PREFIX] = keyed_sum(SECRET, changed[PREFIX:])
    return changed


@given(
    MAPS,
    st.integers(0, 5 * CHUNK_BYTES),
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_round_trip(
    record_map: RecordMap, payload_bytes: int, write_id: int, slot: int, slab: int, generation: int
) -> None:
    changed: dict[str, Any] = {
        "payload_bytes": payload_bytes,
        "write_id": write_id,
        "slot": slot,
        "slab": slab,
        "generation": generation,
    }
    block = encoded(record_map, **changed)
    header = decode(block)
    for name, value in (FIELDS | changed).items():
        assert getattr(header, name) == value
    assert header.map == record_map
    assert header.chunk_checksums == tuple(range(chunk_count(payload_bytes)))
    assert header.header_bytes == len(block) == header_size(len(encode_map(record_map)), payload_bytes)
    assert len(block) % 64 == 0


@pytest.mark.parametrize(("payload", "chunks"), [(0, 0), (1, 1), (65536, 1), (65537, 2)])
def test_one_checksum_for_each_started_chunk(payload: int, chunks: int) -> None:
    assert decode(encoded(payload_bytes=payload)).chunk_checksums == tuple(range(chunks))


def test_payload_checksum_is_that_of_the_chunk_checksums() -> None:
    packed = pack_chunk_checksums((1, 2**32 - 1))
    assert packed == b"\1\0\0\0\xff\xff\xff\xff"
    assert payload_checksum(packed) == crc32c(packed)


def test_padding_of_the_header_is_zero_b2() -> None:
    block = encoded(RecordMap(b"k", "n", 0), payload_bytes=0)
    used = RECORD.size_bytes + len(encode_map(RecordMap(b"k", "n", 0)))
    assert used < len(block)
    assert not any(block[used:])


def test_every_single_bit_flip_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(bytes(encoded())):
        try:
            decode(damaged)
        except Undecodable:
            continue
        pytest.fail(f"bit {bit} flipped and not noticed")


def test_without_the_secret_no_header_can_be_made_b3() -> None:
    assert refusal(encoded(), secret=bytes(32)) == Defect.CHECKSUM


def test_header_of_another_device_b3() -> None:
    assert refusal(encoded(), uuid=OTHER_UUID) == Defect.WRONG_DEVICE


@pytest.mark.parametrize("length", [0, 8, 95, 96, 127, 191])
def test_cut_headers(length: int) -> None:
    assert length < len(encoded())
    refusal(encoded()[:length])


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("map_bytes", b"\0\0"),
        ("map_bytes", b"\xff\xff"),
        ("payload_bytes", b"\0\0\0\0"),
        ("payload_bytes", b"\xff\xff\xff\xff"),
        ("write_id", bytes(8)),
        ("namespace_id", bytes(4)),
        ("header_units", b"\1\0"),
        ("header_units", b"\0\0"),
        ("header_units", b"\xff\xff"),
    ],
)
def test_odd_values_b4(field: str, content: bytes) -> None:
    refusal(resealed(encoded(), RECORD.offsets[field], content))


def test_version_is_known_b4() -> None:
    assert refusal(resealed(encoded(), RECORD.offsets["version"], b"\2")) == Defect.VERSION


def test_padding_that_is_not_zero_b4() -> None:
    block = encoded()
    assert refusal(resealed(block, len(block) - 1, b"\1")) == Defect.INVALID


# -- the map --------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"k": b"key", "n": "name", "t": 5}


def map_refused(packed: bytes) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_map(packed)
    assert caught.value.reason == Defect.INVALID
    assert refusal(encoded(packed_map=packed)) == Defect.INVALID


@given(MAPS)
def test_map_round_trip(record_map: RecordMap) -> None:
    assert decode_map(encode_map(record_map)) == record_map


@pytest.mark.parametrize(
    "changed",
    [
        {"k": "text"},
        {"k": b""},
        {"k": b"x" * 1025},
        {"k": 5},
        {"n": b"bytes"},
        {"n": None},
        {"t": -1},
        {"t": 1.0},
        {"t": True},
        {"t": "5"},
        {"c": b"text/plain"},
        {"c": 1},
        {"c": None},
        {"m": {}},
        {"m": [["a"]]},
        {"m": [["a", "b", "c"]]},
        {"m": [["a", 1]]},
        {"m": [[b"a", "b"]]},
        {"m": ["ab"]},
        {"m": [["a", "b"]] * 65},
        {"x": 1},
        {b"k": b"key"},
    ],
)
def test_odd_maps_b4(changed: dict[Any, Any]) -> None:
    map_refused(msgpack.packb(GOOD | changed))


@pytest.mark.parametrize("missing", ["k", "n", "t"])
def test_maps_without_a_field_b4(missing: str) -> None:
    map_refused(msgpack.packb({name: value for name, value in GOOD.items() if name != missing}))


@pytest.mark.parametrize("value", [None, 5, [], "x", [1, 2, 3]])
def test_what_is_no_map_b4(value: Any) -> None:
    map_refused(msgpack.packb(value))


def test_a_name_twice_b4() -> None:
    pairs = [("k", b"key"), ("n", "name"), ("t", 5), ("k", b"other")]
    map_refused(b"\x84" + b"".join(msgpack.packb(part) for pair in pairs for part in pair))


@pytest.mark.parametrize("packed", [b"", b"\x83", b"\xc1", msgpack.packb(GOOD) + b"\0", msgpack.packb(GOOD)[:-1]])
def test_cut_or_overlong_maps_b4(packed: bytes) -> None:
    map_refused(packed)


def test_text_that_is_no_utf8_b4() -> None:
    map_refused(b"\x83" + msgpack.packb("k") + msgpack.packb(b"key") + b"\xa1n\xa2\xff\xfe" + b"\xa1t\5")


@given(st.binary(max_size=60))
def test_random_maps_decode_or_are_refused(packed: bytes) -> None:
    try:
        record_map = decode_map(packed)
    except Undecodable:
        return
    assert decode_map(encode_map(record_map)) == record_map
