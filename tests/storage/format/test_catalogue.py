"""Catalogue records: exact types, known kinds, values in range, or refused (B4)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format import catalogue
from storage.format.catalogue import (
    MAXIMA,
    CatalogueRecord,
    NamespaceRecord,
    SkippedRecord,
    decode_records,
    encode_record,
)
from storage.format.layout import Defect, Undecodable

KINDS = sorted(
    (value for value in vars(catalogue).values() if isinstance(value, type) and issubclass(value, CatalogueRecord)),
    key=lambda cls: cls.kind,
)[1:]
"""Every kind of record; the first class is their common base."""
U64 = st.integers(0, 2**64 - 1)
TEXTS = st.text(max_size=12)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: U64,
    str: TEXTS,
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    dict[str, int]: st.dictionaries(TEXTS, U64, max_size=3),
    dict[str, int | str]: st.dictionaries(TEXTS, st.one_of(U64, TEXTS), max_size=3),
}
BY_NAME: dict[tuple[type[CatalogueRecord], str], st.SearchStrategy[Any]] = {
    (NamespaceRecord, "name"): st.text(st.sampled_from("abzABZ019._-"), min_size=1, max_size=128),
    (NamespaceRecord, "namespace_id"): st.integers(1, MAXIMA["namespace_id"]),
    (SkippedRecord, "raw"): st.binary(min_size=64, max_size=64),
}
SAMPLE_VALUES: dict[Any, Any] = {int: 5, str: "name", bytes: bytes(64), bool: True}


def hints_of(cls: type[CatalogueRecord]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls)}


def records_of(cls: type[CatalogueRecord]) -> st.SearchStrategy[CatalogueRecord]:
    return st.builds(cls, *(values_of(cls, name, hint) for name, hint in hints_of(cls).items()))


def values_of(cls: type[CatalogueRecord], name: str, hint: Any) -> st.SearchStrategy[Any]:
    if (cls, name) in BY_NAME:
        return BY_NAME[cls, name]
    return st.integers(0, MAXIMA[name]) if name in MAXIMA else BY_TYPE[hint]


def sample_of(cls: type[CatalogueRecord]) -> list[Any]:
    """Kind and fields as they stand in the msgpack array."""
    return [cls.kind, *(SAMPLE_VALUES.get(hint, {"a": 1}) for hint in hints_of(cls).values())]


RECORDS = st.one_of(*(records_of(cls) for cls in KINDS))
SAMPLES = [sample_of(cls) for cls in KINDS]
WIPED = [4, 5, 1]


def stream(*values: Any) -> bytes:
    packed = [value if isinstance(value, bytes) else msgpack.packb(value) for value in values]
    return b"".join(len(p).to_bytes(2, "little") + p for p in packed)


def refused(content: bytes) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_records(content)
    assert caught.value.reason == Defect.INVALID


def test_kinds_are_numbered_from_one() -> None:
    assert [cls.kind for cls in KINDS] == list(range(1, len(KINDS) + 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(RECORDS, max_size=4))
def test_round_trip(records: list[CatalogueRecord]) -> None:
    assert decode_records(b"".join(encode_record(record) for record in records)) == records


@pytest.mark.parametrize("values", SAMPLES, ids=lambda values: f"kind {values[0]}")
def test_samples_are_what_the_encoder_writes(values: list[Any]) -> None:
    (record,) = decode_records(stream(values))
    assert encode_record(record) == stream(values)
    assert record.kind == values[0]
    assert record.seq == values[1]


@pytest.mark.parametrize("values", SAMPLES, ids=lambda values: f"kind {values[0]}")
def test_each_field_is_exactly_of_its_type_b4(values: list[Any]) -> None:
    for position in range(1, len(values)):
        odd: list[Any] = [None, 1.0, [], [1], "text", b"bytes", True, 5, -1, {}]
        kind = type(values[position])
        for value in odd:
            if type(value) is kind and value != -1:
                continue  # of the right type: its range is another test's
            refused(stream([*values[:position], value, *values[position + 1 :]]))


@pytest.mark.parametrize("values", SAMPLES, ids=lambda values: f"kind {values[0]}")
def test_number_of_fields_b4(values: list[Any]) -> None:
    refused(stream(values[:-1]))
    refused(stream([*values, 0]))
    refused(stream(values[:1]))


@pytest.mark.parametrize("kind", [0, len(KINDS) + 1, -1, True, 1.0, "1", None, 2**63])
def test_unknown_kinds_b4(kind: Any) -> None:
    refused(stream([kind, 5, 3, 8999, 17, 1]))


@pytest.mark.parametrize("value", [None, 5, {}, [], "x", {1: 2}])
def test_a_record_is_an_array_b4(value: Any) -> None:
    refused(stream(value))


@pytest.mark.parametrize("counts", [{"a": True}, {"a": 1.0}, {"a": -1}, {"a": "b"}, {"a": None}, {b"a": 1}, {"a": {}}])
def test_counts_are_whole_numbers_by_name_b4(counts: Any) -> None:
    refused(stream([7, 5, 1, counts]))


@pytest.mark.parametrize("settings", [{"a": True}, {"a": 1.5}, {"a": -1}, {"a": b"b"}, {b"a": 1}])
def test_settings_are_numbers_or_texts_by_name_b4(settings: Any) -> None:
    refused(stream([3, 5, 1, "name", settings]))


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a/b", "ä", "a\0"])
def test_names_of_namespaces_b4(name: str) -> None:
    refused(stream([3, 5, 1, name, {}]))


def test_namespace_ids_start_at_one_b4() -> None:
    refused(stream([3, 5, 0, "name", {}]))


@pytest.mark.parametrize("size", [0, 63, 65])
def test_a_raw_row_is_64_bytes_b4(size: int) -> None:
    position = 1 + list(hints_of(SkippedRecord)).index("raw")
    values = sample_of(SkippedRecord)
    refused(stream([*values[:position], bytes(size), *values[position + 1 :]]))


def test_a_name_twice_in_a_map_b4() -> None:
    doubled = b"\x82" + msgpack.packb("a") + b"\x01" + msgpack.packb("a") + b"\x02"
    refused(stream(b"\x94\x07\x05\x01" + doubled))


@pytest.mark.parametrize(
    "content",
    [b"\5", b"\0\0", b"\5\0\x91", b"\1\0\xc1", stream(WIPED) + b"\0", stream(msgpack.packb(WIPED) + b"\0")],
)
def test_cut_or_overlong_streams_b4(content: bytes) -> None:
    refused(content)


def test_text_that_is_no_utf8_b4() -> None:
    refused(stream(b"\x95\x03\x05\x01\xa2\xff\xfe\x80"))


@given(st.binary(max_size=60))
def test_random_bytes_decode_or_are_refused(content: bytes) -> None:
    try:
        records = decode_records(content)
    except Undecodable:
        return
    again = decode_records(b"".join(encode_record(record) for record in records))
    assert again == records
