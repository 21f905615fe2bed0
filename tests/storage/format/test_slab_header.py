"""Slab headers: of this device and slab, whole or refused (B3, B4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.checksums import keyed_sum
from storage.format.layout import Defect, Undecodable
from storage.format.slab_header import SLAB, SlabHeader, decode_slab_header, encode_slab_header
from tests.storage.format.bits import OTHER_UUID, SECRET, UUID, single_bit_flips, with_bytes

HEADER = SlabHeader(7, 2, 1 << 42 | 5)
ENCODED = encode_slab_header(HEADER, uuid=UUID, secret=SECRET, block_bytes=4096)
PREFIX = SLAB.offsets["version"]


def decode(
    block: bytes | bytearray, *, uuid: bytes = UUID, secret: bytes = SECRET, slab: int = 7, classes: int = 10
) -> SlabHeader:
    return decode_slab_header(block, uuid=uuid, secret=secret, slab=slab, classes=classes)


def refusal(
    block: bytes | bytearray, *, uuid: bytes = UUID, secret: bytes = SECRET, slab: int = 7, classes: int = 10
) -> str:
    with pytest.raises(Undecodable) as caught:
        decode(block, uuid=uuid, secret=secret, slab=slab, classes=classes)
    return caught.value.reason


@given(st.integers(0, 2**32 - 1), st.integers(0, 63), st.integers(1, 2**64 - 1), st.sampled_from([4096, 65536]))
def test_round_trip(slab: int, slot_class: int, generation: int, block_bytes: int) -> None:
    header = SlabHeader(slab, slot_class, generation)
    block = encode_slab_header(header, uuid=UUID, secret=SECRET, block_bytes=block_bytes)
    assert len(block) == block_bytes
    assert decode(block, slab=slab, classes=64) == header


def test_every_single_bit_flip_is_refused_b3() -> None:
    for bit, damaged in single_bit_flips(ENCODED):
        try:
            decode(damaged)
        except Undecodable:
            continue
        pytest.fail(f"bit {bit} flipped and not noticed")


def test_header_of_another_device_secret_or_slab_b3() -> None:
    assert refusal(ENCODED, uuid=OTHER_UUID) == Defect.WRONG_DEVICE
    assert refusal(ENCODED, secret=bytes(32)) == Defect.CHECKSUM
    assert refusal(ENCODED, slab=8) == Defect.WRONG_PLACE


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [
        ("version", b"\2", Defect.VERSION),
        ("slot_class", b"\x0a", Defect.INVALID),
        ("reserved", b"\1", Defect.INVALID),
        ("reserved2", b"\1", Defect.INVALID),
        ("generation", bytes(8), Defect.INVALID),
    ],
)
def test_odd_values_b4(field: str, content: bytes, reason: str) -> None:
    changed = with_bytes(ENCODED, SLAB.offsets[field], content)
    changed[8:PREFIX] = keyed_sum(SECRET, changed[PREFIX : SLAB.size_bytes])
    assert refusal(changed) == reason
