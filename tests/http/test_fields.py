"""The parsers of header fields: what they read back, and that no bytes at all surprise them."""

from __future__ import annotations

import base64
import hashlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.conditions import Verdict, evaluate_read, read_conditions, read_tags
from api.dates import format_date, parse_date
from api.digests import read_digests
from api.errors import RangeUnsatisfiable
from api.freshness import freshness_lines, read_ttl
from api.headers import etag
from api.limits import TTL_MAX_SECONDS
from api.metadata import metadata_lines, read_content_type, read_metadata
from api.parameters import read_parameters
from api.ranges import select_range
from storage.entries import EntryInfo
from storage.errors import MetadataInvalid, ParameterInvalid
from storage.namespace_settings import DEFAULT_SETTINGS, expiry_of

FIELD_BYTES = st.binary(max_size=200).map(lambda raw: bytes(byte for byte in raw if byte >= 32 or byte == 9))
"""What a header field's value may consist of: the HTTP parser lets nothing else through."""
LIKELY = st.text(alphabet='Wbytes/="*,;:-0123456789 \tamx\\', max_size=60).map(str.encode)
WRITE_IDS = st.integers(min_value=0, max_value=2**64 - 1)


def _info(**changes: object) -> EntryInfo:
    values = {
        "namespace": "n",
        "key": b"k",
        "write_id": 7,
        "payload_bytes": 1000,
        "stored_at": 1_700_000_000.25,
        "expires_at": 0,
        "content_type": "",
        "metadata": (),
    }
    return EntryInfo(**{**values, **changes})  # type: ignore[arg-type]


@given(seconds=st.integers(min_value=0, max_value=250_000_000_000))
def test_dates_come_back(seconds: int) -> None:
    assert parse_date(format_date(seconds)) == seconds


@pytest.mark.parametrize(
    "text",
    [b"Sun, 06 Nov 1994 08:49:37 GMT", b"Sunday, 06-Nov-94 08:49:37 GMT", b"Sun Nov  6 08:49:37 1994"],
)
def test_all_three_forms_of_a_date_are_read(text: bytes) -> None:
    assert parse_date(text) == 784_111_777


@given(text=FIELD_BYTES | LIKELY)
def test_any_bytes_are_a_date_or_none(text: bytes) -> None:
    parse_date(text)


@given(write_ids=st.lists(WRITE_IDS, min_size=1, max_size=64), weak=st.booleans())
def test_tags_come_back(write_ids: list[int], weak: bool) -> None:
    prefix = b"W/" if weak else b""
    tags = read_tags(b", ".join(prefix + etag(write_id) for write_id in write_ids), "If-Match")
    assert (tags.weak if weak else tags.strong) == set(write_ids)
    assert not (tags.strong if weak else tags.weak)
    assert not tags.any


@given(text=FIELD_BYTES | LIKELY)
def test_any_bytes_are_conditions_or_refused(text: bytes) -> None:
    for name in (b"if-match", b"if-none-match"):
        try:
            conditions = read_conditions({name: text})
            verdict = evaluate_read({name: text}, _info())
        except ParameterInvalid:
            continue
        assert verdict in Verdict
        if conditions.write_ids is None:
            assert b"*" in text


@given(size=st.integers(min_value=0, max_value=2**63), first=st.integers(0, 2**64), last=st.integers(0, 2**64))
def test_a_range_lies_within_the_value(size: int, first: int, last: int) -> None:
    for text in (b"bytes=%d-%d" % (first, last), b"bytes=%d-" % first, b"bytes=-%d" % last):
        try:
            chosen = select_range({b"range": text}, _info(), size)
        except RangeUnsatisfiable:
            assert first >= size or last == 0
            continue
        if chosen is not None:
            start, stop = chosen
            assert 0 <= start < stop <= size


@given(text=FIELD_BYTES | LIKELY, size=st.integers(min_value=0, max_value=1000))
def test_any_bytes_are_a_range_or_ignored_or_unsatisfiable(text: bytes, size: int) -> None:
    try:
        chosen = select_range({b"range": text}, _info(), size)
    except RangeUnsatisfiable:
        return
    assert chosen is None or 0 <= chosen[0] < chosen[1] <= size


@given(body=st.binary(max_size=300), wrong=st.booleans(), algorithm=st.sampled_from(["sha-256", "sha-512"]))
def test_a_digest_accepts_its_body_alone(body: bytes, wrong: bool, algorithm: str) -> None:
    digest = hashlib.new(algorithm.replace("-", ""), body + b"x" * wrong).digest()
    check = read_digests({b"content-digest": f"{algorithm}=:{base64.b64encode(digest).decode()}:".encode()})
    assert check is not None
    for at in range(0, len(body), 7):
        check.update(body[at : at + 7])
    if wrong:
        with pytest.raises(Exception, match="of the body"):
            check.verify()
    else:
        check.verify()


@given(text=FIELD_BYTES | LIKELY)
def test_any_bytes_are_digests_or_refused(text: bytes) -> None:
    try:
        read_digests({b"content-digest": text})
    except ParameterInvalid:
        return


def _fields(lines: bytes) -> dict[bytes, bytes]:
    """Header fields as they are sent, by name."""
    *found, rest = lines.split(b"\r\n")
    assert rest == b""
    return dict(one.split(b": ", 1) for one in found)


@given(ttl=st.integers(min_value=1, max_value=TTL_MAX_SECONDS), now=st.floats(min_value=1e9, max_value=4e9))
def test_a_time_to_live_is_never_shorter_than_asked(ttl: int, now: float) -> None:
    assert read_ttl({"ttl": str(ttl)}, {}) == read_ttl({}, {b"cache-control": b"max-age=%d" % ttl}) == ttl
    asked = expiry_of(DEFAULT_SETTINGS, ttl, now)
    assert ttl <= asked - Fraction(now) < ttl + 1
    headers = _fields(freshness_lines(_info(stored_at=now, expires_at=asked), now))
    assert headers[b"cache-control"] == b"max-age=%d" % ttl
    assert headers[b"age"] == b"0"


@given(text=FIELD_BYTES | LIKELY)
def test_any_bytes_are_a_lifetime_or_none_or_refused(text: bytes) -> None:
    try:
        ttl = read_ttl({}, {b"cache-control": text})
    except ParameterInvalid:
        assert b"max-age" in text.lower()
        return
    assert ttl is None or 1 <= ttl <= TTL_MAX_SECONDS


@given(content_type=FIELD_BYTES | LIKELY, name=st.from_regex(rb"[a-z0-9-]{1,20}", fullmatch=True), value=FIELD_BYTES)
def test_what_is_kept_comes_back_as_it_was(content_type: bytes, name: bytes, value: bytes) -> None:
    fields = {b"content-type": content_type, b"rawblockd-meta-" + name: value}
    try:
        kept_type = read_content_type(fields)
        kept = read_metadata(fields, kept_type)
    except MetadataInvalid:
        return
    headers = _fields(metadata_lines(_info(content_type=kept_type, metadata=kept)))
    assert headers == fields
    assert not any(byte in value for value in headers.values() for byte in b"\r\n\0")


@pytest.mark.parametrize("text", [b"a/b" + b"; " * 3000 + b"!", b"a/b" + b";a=b " * 1500 + b"!", b" " * 8000])
def test_no_content_type_takes_long(text: bytes) -> None:
    """A pattern that backtracks would not come to an end."""
    with pytest.raises(MetadataInvalid):
        read_content_type({b"content-type": text})


@given(query=st.binary(max_size=100))
def test_any_query_is_parameters_or_refused(query: bytes) -> None:
    try:
        found = read_parameters(query, frozenset({"ttl"}))
    except ParameterInvalid:
        return
    assert found.keys() <= {"ttl"}
