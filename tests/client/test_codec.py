"""The client's msgpack is msgpack."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawblockd_client.codec import Malformed, Unpacker, bin_head, pack

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=300),
)
objects = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=10), inner, max_size=17),
    max_leaves=20,
)
some = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plain(found: Any) -> Any:
    """Binary objects are views: compared as bytes."""
    if isinstance(found, memoryview):
        return bytes(found)
    if isinstance(found, list):
        return [plain(item) for item in found]
    if isinstance(found, dict):
        return {name: plain(item) for name, item in found.items()}
    return found


@some
@given(st.lists(objects, max_size=4))
def test_what_is_packed_is_msgpack(found: list[Any]) -> None:
    packed = b"".join(map(pack, found))
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed) + 1)
    unpacker.feed(packed)
    assert list(unpacker) == found


@some
@given(st.lists(objects, max_size=4))
def test_msgpack_is_understood(found: list[Any]) -> None:
    unpacker = Unpacker(b"".join(map(msgpack.packb, found)))
    assert [plain(unpacker.next()) for _ in found] == found
    assert unpacker.at_end


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536, 1 << 20])
def test_every_size_has_its_head(size: int) -> None:
    data = b"x" * size
    assert bin_head(size) + data == msgpack.packb(data)
    assert bytes(Unpacker(pack(data)).next()) == data
    assert Unpacker(pack("y" * size)).next() == "y" * size
    assert Unpacker(msgpack.packb([1] * size)).next() == [1] * size


@some
@given(objects, st.data())
def test_what_is_cut_short_or_odd_is_refused(found: Any, data: st.DataObject) -> None:
    packed = pack(found)
    with pytest.raises(Malformed):
        Unpacker(packed[: data.draw(st.integers(0, len(packed) - 1))]).next()


@pytest.mark.parametrize(
    "odd", [b"\xc1", b"\xc7\x01\x01x", b"\xd4\x01x", b"\xdd\xff\xff\xff\xff", b"\x91" * 100, b"\xa1\xff"]
)
def test_what_no_batch_has_is_refused(odd: bytes) -> None:
    with pytest.raises(Malformed):
        Unpacker(odd).next()


def test_nothing_is_coerced() -> None:
    for odd in ({1, 2}, object(), 1 << 64, -(1 << 63) - 1):
        with pytest.raises(TypeError):
            pack(odd)
