"""Rows: one line is whole, plausible and of this device, or refused; many at once are judged as one by one (B3, B4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from storage.format.layout import Defect, Undecodable
from storage.format.row import (
    ACCESS_OFFSET,
    ROW,
    ROW_BYTES,
    ROW_DTYPE,
    ROW_STRUCT,
    FreeReason,
    QuarantineReason,
    Row,
    SlotState,
    checksums_of,
    decode_row,
    encode_row,
    fresh_rows,
    implausible_of,
    plausible,
    seed_of,
)
from tests.storage.format.bits import OTHER_UUID, UUID, single_bit_flips

SEED = seed_of(UUID)
DIGEST = bytes(range(100, 116))
LIVE: dict[str, Any] = {
    "state": SlotState.LIVE,
    "slot_class": 2,
    "slab": 7,
    "slot": 300,
    "seq": 12345,
    "namespace_id": 4,
    "write_id": 1 << 42 | 9,
    "digest": DIGEST,
    "payload_bytes": 70000,
    "payload_checksum": 0xDEADBEEF,
    "expires_at": 2_000_000_000,
    "header_units": 3,
}
FREED: dict[str, Any] = {
    "state": SlotState.FREE,
    "slot_class": 2,
    "slab": 7,
    "slot": 300,
    "seq": 12345,
    "namespace_id": 4,
    "write_id": 1 << 42 | 9,
    "digest": DIGEST,
    "reason": FreeReason.CLIENT,
}

FIELDS = st.fixed_dictionaries(
    {
        "state": st.one_of(st.integers(0, 5), st.integers(0, 255)),
        "slot_class": st.integers(0, 255),
        "slab": st.integers(0, 2**32 - 1),
        "slot": st.integers(0, 2**16 - 1),
        "seq": st.one_of(st.just(0), st.integers(0, 2**64 - 1)),
        "namespace_id": st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
        "write_id": st.one_of(st.just(0), st.integers(0, 2**64 - 1)),
        "digest": st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16)),
        "payload_bytes": st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
        "payload_checksum": st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
        "expires_at": st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
        "header_units": st.one_of(st.integers(0, 3), st.integers(0, 2**16 - 1)),
        "reason": st.one_of(st.integers(0, 10), st.integers(0, 255)),
    }
)


def refusal(line: bytes | bytearray, seed: int = SEED) -> str:
    with pytest.raises(Undecodable) as caught:
        decode_row(seed, bytes(line))
    return caught.value.reason


@pytest.mark.parametrize("fields", [LIVE, FREED])
def test_round_trip(fields: dict[str, Any]) -> None:
    line = encode_row(SEED, **fields)
    assert len(line) == ROW_BYTES
    row = decode_row(SEED, line)
    assert {name: getattr(row, name) for name in fields} == fields
    assert row.access == 0


def test_sizes_of_a_record() -> None:
    row = decode_row(SEED, encode_row(SEED, **LIVE))
    assert row.header_bytes == 192
    assert row.record_bytes == 70192


@pytest.mark.parametrize("fields", [LIVE, FREED])
def test_every_single_bit_flip_but_of_the_access_counter_is_refused_b3(fields: dict[str, Any]) -> None:
    for bit, damaged in single_bit_flips(encode_row(SEED, **fields)):
        if bit >> 3 == ACCESS_OFFSET:
            assert decode_row(SEED, bytes(damaged)).access == 1 << (bit & 7)
        else:
            assert refusal(damaged) == Defect.CHECKSUM


def test_row_of_another_device_b3() -> None:
    assert refusal(encode_row(SEED, **LIVE), seed_of(OTHER_UUID)) == Defect.CHECKSUM


@pytest.mark.parametrize(
    "changed",
    [
        {"seq": 0},
        {"seq": 1 << 63},
        {"state": 5},
        {"state": 255},
        {"reason": 1},
        {"namespace_id": 0},
        {"write_id": 0},
        {"header_units": 1},
        {"header_units": 0},
        {"state": SlotState.STAGED, "reason": 1},
        {"state": SlotState.FREE},
        {"state": SlotState.QUARANTINED, "reason": 0},
        {"state": SlotState.QUARANTINED, "reason": QuarantineReason.UNREADABLE + 1},
    ],
)
def test_odd_values_of_a_live_row_b4(changed: dict[str, int]) -> None:
    assert refusal(encode_row(SEED, **(LIVE | changed))) == Defect.INVALID


@pytest.mark.parametrize(
    "changed",
    [
        {"reason": FreeReason.RECOVERY + 1},
        {"reason": FreeReason.NEVER_USED},
        {"payload_bytes": 1},
        {"payload_checksum": 1},
        {"expires_at": 1},
        {"header_units": 2},
        {"seq": 0},
    ],
)
def test_odd_values_of_a_free_row_b4(changed: dict[str, int]) -> None:
    assert refusal(encode_row(SEED, **(FREED | changed))) == Defect.INVALID


@given(st.lists(FIELDS, min_size=1, max_size=20))
def test_encoded_rows_have_the_checksums_the_array_form_computes(many: list[dict[str, Any]]) -> None:
    rows = np.frombuffer(b"".join(encode_row(SEED, **fields) for fields in many), dtype=ROW_DTYPE)
    assert checksums_of(SEED, rows).tolist() == rows["checksum"].tolist()


@given(st.lists(FIELDS, min_size=1, max_size=20))
def test_plausible_agrees_with_the_array_form(many: list[dict[str, Any]]) -> None:
    lines = [encode_row(SEED, **fields) for fields in many]
    rows = np.frombuffer(b"".join(lines), dtype=ROW_DTYPE)
    one_by_one = [not plausible(Row._make(ROW_STRUCT.unpack(line))) for line in lines]
    assert implausible_of(rows).tolist() == one_by_one


@settings(max_examples=50)
@given(st_numpy.arrays(np.uint8, st.tuples(st.integers(1, 30), st.just(ROW_BYTES))))
def test_random_bytes_are_judged_alike(lines: np.ndarray) -> None:
    rows = lines.view(ROW_DTYPE).reshape(-1)
    decoded = [Row._make(ROW_STRUCT.unpack(line.tobytes())) for line in lines]
    assert implausible_of(rows).tolist() == [not plausible(row) for row in decoded]
    assert [row.digest for row in decoded] == [digest.tobytes() for digest in rows["digest"]]
    sums = checksums_of(SEED, rows)
    for line, claimed, right in zip(lines, rows["checksum"], sums, strict=True):
        if claimed != right:
            assert refusal(line.tobytes()) == Defect.CHECKSUM


def test_fresh_rows_are_free_rows_one_by_one() -> None:
    rows = fresh_rows(SEED, slab=5, slot_class=2, slots=70, seq=44)
    for slot, row in enumerate(rows):
        expected = encode_row(SEED, state=SlotState.FREE, slot_class=2, slab=5, slot=slot, seq=44)
        assert row.tobytes() == expected
    assert not implausible_of(rows).any()


def test_access_counter_is_the_only_byte_outside_the_checksum() -> None:
    assert ROW.offsets["access"] == ACCESS_OFFSET
    rows = np.frombuffer(encode_row(SEED, **LIVE), dtype=ROW_DTYPE).copy()
    before = checksums_of(SEED, rows)
    rows["access"] = 255
    assert checksums_of(SEED, rows) == before
