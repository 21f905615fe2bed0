"""The incremental reader of msgpack: whatever the pieces, the same objects; of any bytes, nothing but a refusal."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.batch.keys import parse_msgpack
from api.batch.msgpack_reader import MsgpackReader, OddMap
from api.errors import BatchTooLarge, BodyInvalid
from tests.support.engines import payload_of

MAP_MAX_BYTES = 2048

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=40)
)
texts = st.text(max_size=20)
documents = st.dictionaries(
    texts, scalars | texts | st.lists(scalars, max_size=4) | st.dictionaries(texts, texts, max_size=3)
)


class Source:
    """Hands out a body in pieces cut at the given places."""

    def __init__(self, body: bytes, cuts: list[int]) -> None:
        places = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
        self.pieces = [body[start:stop] for start, stop in zip(places, places[1:], strict=False) if start < stop]

    async def next(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


async def read_all(reader: MsgpackReader, read_bytes: int) -> list[tuple[Any, bytes]]:
    found: list[tuple[Any, bytes]] = []
    while (head := await reader.next_map()) is not None:
        left = await reader.next_bin()
        value = b""
        while left:
            most = min(left, max(read_bytes, left // 100))
            piece = await reader.read(most)
            assert 1 <= len(piece) <= most
            value += piece
            left -= len(piece)
        found.append((head, value))
    return found


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.just({}) | documents | st.binary(max_size=300).map(lambda key: {"key": key}), st.integers(0, 600))
    ),
    st.lists(st.integers(0, 2**30), max_size=20),
)
@example([({"key": b"k"}, 70_000)], [])
@example([({"key": b"k" * 300}, 5), ({"key": "text"}, 5), ({"key": b""}, 0)], [])
async def test_plain_entries_are_read_at_once_or_left_as_they_are(
    entries: list[tuple[dict[str, Any], int]], cuts: list[int]
) -> None:
    """Taking what is there whole changes nothing of what is read."""
    packed = [(head, payload_of(number, size)) for number, (head, size) in enumerate(entries)]
    body = b"".join(msgpack.packb(head) + msgpack.packb(value) for head, value in packed)
    reader = MsgpackReader(Source(body, cuts).next, MAP_MAX_BYTES)
    found: list[tuple[Any, bytes]] = []
    while True:
        plain = reader.plain_entry_now()
        if plain is not None:
            key, value = plain
            found.append(({"key": key}, bytes(value)))
            continue
        head = await reader.next_map()
        if head is None:
            break
        left, content = await reader.next_bin(), b""
        while len(content) < left:
            content += await reader.read(left - len(content))
        found.append((head, content))
    assert found == packed


@settings(deadline=None)
@given(
    st.lists(st.tuples(documents, st.integers(0, 600) | st.sampled_from([65535, 65536])), max_size=6),
    st.lists(st.integers(0, 2**30), max_size=20),
    st.integers(1, 5000),
)
async def test_any_objects_in_any_pieces_are_read_as_they_were_packed(
    objects: list[tuple[dict[str, Any], int]], cuts: list[int], read_bytes: int
) -> None:
    heads = [
        (head, payload_of(index, size_bytes))
        for index, (head, size_bytes) in enumerate(objects)
        if len(msgpack.packb(head)) <= MAP_MAX_BYTES
    ]
    body = b"".join(msgpack.packb(head) + msgpack.packb(value) for head, value in heads)
    reader = MsgpackReader(Source(body, cuts).next, MAP_MAX_BYTES)
    assert await read_all(reader, read_bytes) == heads


@settings(deadline=None)
@given(st.lists(st.tuples(documents, st.binary(max_size=600)), min_size=1, max_size=4), st.integers(0, 2**30))
async def test_a_body_that_ends_within_an_object_is_refused(objects: list[tuple[Any, bytes]], cut: int) -> None:
    body = b"".join(msgpack.packb(head) + msgpack.packb(value) for head, value in objects)
    boundaries = set()
    at = 0
    for head, value in objects:
        boundaries.add(at)
        at += len(msgpack.packb(head)) + len(msgpack.packb(value))
    cut %= len(body)
    reader = MsgpackReader(Source(body[:cut], []).next, 1 << 20)
    if cut in boundaries:
        await read_all(reader, 1000)
    else:
        with pytest.raises(BodyInvalid):
            await read_all(reader, 1000)


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=6))
@example(b"\x81\x91\xc0\xc0\xc4\x00", [])  # an array for a name
@example(b"\xdf\xff\xff\xff\xff", [])
@example(b"\x81\xa1a" + b"\x91" * 190, [])
@example(b"\x81\xa1a\xc7\x05\xff12345", [])  # a time stamp of an odd length
@example(b"\x81\xa1a\xd7\xff" + b"\xff" * 8, [])
@example(b"\x81\xa1\xff\xc0\xc4\x00", [])  # a name that is not UTF-8
@example(b"\x82\xa1a\xc0\xa1a\xc0\xc4\x00", [])
@example(b"\x81\xa1a\xc1", [])
async def test_any_bytes_are_objects_or_a_refusal(body: bytes, cuts: list[int]) -> None:
    try:
        found = await read_all(MsgpackReader(Source(body, cuts).next, MAP_MAX_BYTES), 100)
    except BodyInvalid:
        return
    assert all(isinstance(head, (dict, OddMap)) for head, _ in found)


async def test_a_map_is_refused_at_its_limit_and_not_before_its_end() -> None:
    exact = msgpack.packb({"a": b"x" * (MAP_MAX_BYTES - 6)})
    assert len(exact) == MAP_MAX_BYTES
    assert await MsgpackReader(Source(exact, []).next, MAP_MAX_BYTES).next_map() is not None
    longer = msgpack.packb({"a": b"x" * (MAP_MAX_BYTES - 5)})
    with pytest.raises(BodyInvalid):
        await MsgpackReader(Source(longer, [100]).next, MAP_MAX_BYTES).next_map()


async def test_a_large_value_passes_through_without_being_collected() -> None:
    pieces = [msgpack.packb({"a": 1}) + b"\xc6\x10\x00\x00\x00", *[bytes(1 << 16)] * 4096]
    source = Source(b"", [])
    source.pieces = pieces
    reader = MsgpackReader(source.next, MAP_MAX_BYTES)
    await reader.next_map()
    left = await reader.next_bin()
    assert left == 1 << 28
    while left:
        piece = await reader.read(left)
        assert len(piece) <= 1 << 16
        left -= len(piece)
    assert await reader.next_map() is None


@settings(deadline=None)
@given(st.dictionaries(texts.filter(lambda name: name != "keys"), scalars | texts, max_size=10), st.lists(st.binary()))
def test_a_list_of_keys_is_read_with_its_fields(fields: dict[str, Any], keys: list[bytes]) -> None:
    found, others = parse_msgpack(msgpack.packb({**fields, "keys": keys}))
    assert (found, others) == (keys, fields)


@settings(deadline=None)
@given(st.binary(max_size=120))
@example(b"\x81\xa4keys\xdd\x00\x00\x27\x11")
@example(b"\x81\xa4keys\x91\x91\xc0")
@example(b"\x81\xa1a\x91\xc0")
@example(b"\x82\xa4keys\x90\xa4keys\x90")
@example(b"\x80\x80")
@example(b"\x90")
@example(b"")
def test_any_bytes_are_a_list_of_keys_or_a_refusal(body: bytes) -> None:
    try:
        keys, fields = parse_msgpack(body)
    except (BodyInvalid, BatchTooLarge):
        return
    assert keys is None or all(type(key) is bytes for key in keys)
    assert all(type(name) is str for name in fields)
