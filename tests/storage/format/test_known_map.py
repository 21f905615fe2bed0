"""What a read decodes of a header: exactly what ``decode_map`` and ``verified_header`` accept, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.checksums import crc32c, header_hash, keyed_sum
from storage.format.known_map import KEPT_MAX_BYTES, decode_known_map
from storage.format.layout import Undecodable
from storage.format.record import RECORD, decode_map, pack_chunk_checksums, pack_map, write_header
from storage.format.row import HEADER_UNIT_BYTES, Row, SlotState
from storage.limits import CHUNK_BYTES
from storage.verify import verified_head, verified_header
from tests.storage.format.bits import OTHER_UUID, SECRET, UUID, single_bit_flips

SUMMED_FROM = RECORD.offsets["version"]
STORED_MS = 1_700_000_000_000
TEXT = st.text(max_size=30)
MAPS = st.builds(
    pack_map,
    st.binary(min_size=1, max_size=300),
    st.text("abcXYZ09._-", min_size=1, max_size=128),
    st.integers(0, 2**63),
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=20).map(tuple),
)


def outcome(decode: Callable[[], Any]) -> Any:
    """What comes of it: the result, or the reason why not."""
    try:
        return decode()
    except Undecodable as error:
        return error.reason


def both(packed: bytes, key: bytes, namespace: str) -> Any:
    """As decoded by the one who knows key and namespace, which is the same as by the one who does not."""
    known = outcome(lambda: tuple(decode_known_map(packed, key, namespace)))
    assert known == outcome(lambda: astuple(decode_map(packed)))
    return known


@given(MAPS, st.data())
def test_b4_maps_are_decoded_as_if_nothing_were_known(packed: bytes, data: st.DataObject) -> None:
    found = decode_map(packed)
    assert both(packed, found.key, found.namespace)[:2] == (found.key, found.namespace)
    both(packed, found.key + b"x", found.namespace)
    both(packed, found.key, found.namespace + "x")
    at = data.draw(st.integers(0, len(packed)))
    changed = packed[:at] + data.draw(st.binary(max_size=3)) + packed[at + data.draw(st.integers(0, 3)) :]
    both(changed, found.key, found.namespace)


def test_b4_every_bit_of_a_map_counts() -> None:
    packed = pack_map(b"key", "n", STORED_MS, "text/plain", (("colour", "red"),))
    for _, changed in single_bit_flips(packed):
        both(bytes(changed), b"key", "n")


@pytest.mark.parametrize("more", [{"k": b"other"}, {"x": 1}, {"c": 1}, {"m": ((1, 2),)}, {"p": 5}])
def test_b4_what_is_odd_behind_key_and_namespace_is_refused(more: dict[str, Any]) -> None:
    plain = pack_map(b"key", "n", STORED_MS)
    odd = b"%c%b%b" % (plain[0] + 1, plain[1:], msgpack.packb(more)[1:])
    assert both(odd, b"key", "n") == "invalid"
    assert both(plain + b"\0", b"key", "n") == "invalid"
    assert both(plain[:-1], b"key", "n") == "invalid"


@pytest.mark.parametrize("size", [0, 10, KEPT_MAX_BYTES, KEPT_MAX_BYTES + 1, 8000])
def test_descriptions_of_any_size(size: int) -> None:
    packed = pack_map(b"key", "n", STORED_MS, "text/plain", (("name", "x" * size),))
    for _ in range(2):
        assert both(packed, b"key", "n") == (b"key", "n", STORED_MS, "text/plain", (("name", "x" * size),), ())


def test_b4_a_name_that_is_none_is_refused() -> None:
    packed = pack_map(b"key", "no/name", STORED_MS)
    assert both(packed, b"key", "no/name") == "invalid"


# -- headers ------------------------------------------------------------------------------------------------------

IDENTITY: Any = SimpleNamespace(uuid=UUID, secret=SECRET, fresh_header_hash=header_hash(SECRET))
GENERATION = 1 << 42 | 5


def record_of(payload_bytes: int, content_type: str = "") -> tuple[bytearray, Row]:
    """A block with a header, and its row."""
    checksums = pack_chunk_checksums(list(range(5, 5 + -(-payload_bytes // CHUNK_BYTES))))
    place: dict[str, Any] = {"slab": 7, "slot": 300, "slot_class": 2}
    entry: dict[str, Any] = {"write_id": 1 << 42 | 9, "digest": bytes(range(50, 66)), "namespace_id": 4}
    block = bytearray(4096)
    size = write_header(
        memoryview(block),
        uuid=UUID,
        secret=SECRET,
        **place,
        generation=GENERATION,
        **entry,
        payload_bytes=payload_bytes,
        expires_at=0,
        packed_map=pack_map(b"key", "n", STORED_MS, content_type),
        packed_chunk_checksums=checksums,
    )
    row = Row(
        checksum=0,
        state=SlotState.LIVE,
        access=0,
        reason=0,
        seq=99,
        payload_bytes=payload_bytes,
        payload_checksum=crc32c(checksums),
        expires_at=0,
        header_units=size // HEADER_UNIT_BYTES,
        **place,
        **entry,
    )
    return block, row


def of_head(block: bytes | bytearray, row: Row, generation: int = GENERATION, identity: Any = IDENTITY) -> Any:
    """What a read makes of it, which is what ``verified_header`` does."""
    view = memoryview(block)

    def by_rule() -> Any:
        header = verified_header(view, row, generation, identity)
        return header.header_bytes, header.chunk_checksums, astuple(header.map)

    found = outcome(lambda: tuple(verified_head(view, row, generation, identity, b"key", "n")))
    found = found if isinstance(found, str) else (*found[:2], tuple(found[2]))
    assert found == outcome(by_rule)
    return found


@pytest.mark.parametrize("payload_bytes", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1])
def test_b1_a_header_verifies_as_by_the_rule(payload_bytes: int) -> None:
    block, row = record_of(payload_bytes, "text/plain")
    found = of_head(block, row)
    assert found[0] == row.header_bytes
    assert found[2][:3] == (b"key", "n", STORED_MS)


@pytest.mark.parametrize("payload_bytes", [0, 70_000])
def test_b1_b3_every_bit_of_a_header_counts_under_a_right_sum_too(payload_bytes: int) -> None:
    block, row = record_of(payload_bytes)
    size = row.header_bytes
    refused = 0
    for _, changed in single_bit_flips(bytes(block[:size])):
        assert isinstance(of_head(changed, row), str)
        resealed = bytearray(changed)
        resealed[8:SUMMED_FROM] = keyed_sum(SECRET, resealed[SUMMED_FROM:size])
        refused += isinstance(of_head(resealed, row), str)
    assert refused > 8 * size * 3 // 4, "all but time, key and expiry"


@pytest.mark.parametrize("name", [name for name in Row._fields if name not in ("digest", "checksum")])
def test_b1_another_row_is_told_apart(name: str) -> None:
    block, row = record_of(70_000)
    changed: dict[str, Any] = {name: 0}
    of_head(block, row._replace(**changed))
    changed[name] = getattr(row, name) + 1
    free = name in ("state", "access", "reason", "seq", "expires_at")
    assert isinstance(of_head(block, row._replace(**changed)), str) is not free
    assert isinstance(of_head(block, row._replace(digest=bytes(16))), str)


def test_b3_another_device_generation_or_length_is_told_apart() -> None:
    block, row = record_of(100)
    other = SimpleNamespace(uuid=OTHER_UUID, secret=SECRET, fresh_header_hash=header_hash(SECRET))
    assert of_head(block, row, identity=other) == "wrong_device"
    forger = SimpleNamespace(uuid=UUID, secret=bytes(32), fresh_header_hash=header_hash(bytes(32)))
    assert of_head(block, row, identity=forger) == "checksum"
    assert of_head(block, row, GENERATION + 1) == "wrong_place"
    for length in (0, 64, 95, row.header_bytes - 1):
        assert of_head(block[:length], row) == "invalid"
