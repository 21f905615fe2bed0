"""GET, HEAD and DELETE: whole values, ranges, conditions, misses."""

from __future__ import annotations

import hashlib
from email.utils import formatdate

import pytest

from tests.http.raw_client import RawClient

BODY = bytes(range(256))
LARGE = hashlib.shake_128(b"large").digest(3 * (1 << 20) + 12345)


@pytest.fixture
def stored(client: RawClient, key: str) -> str:
    """The path of a value ``BODY``."""
    assert client.ask("PUT", key, body=BODY).status == 201
    return key


def test_a_hit_tells_what_it_is(client: RawClient, stored: str) -> None:
    answers = [client.ask("GET", stored), client.ask("HEAD", stored)]
    for answer in answers:
        assert answer.status == 200
        assert answer.header("content-length") == "256"
        assert answer.header("accept-ranges") == "bytes"
        assert answer.header("cache-status") == "rawblockd; hit"
        assert (answer.header("last-modified") or "").endswith(" GMT")
        etag = answer.header("etag")
        assert etag is not None
        assert len(etag) == 18
        int(etag.strip('"'), 16)
    assert answers[0].body == BODY
    named = [[item for item in answer.headers if item[0] not in ("date", "age")] for answer in answers]
    assert named[0] == named[1]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_a_miss_is_a_problem_that_says_so(client: RawClient, key: str, method: str) -> None:
    answer = client.ask(method, key)
    assert answer.status == 404
    assert answer.header("cache-status") == "rawblockd; fwd=miss"
    assert answer.header("content-type") == "application/problem+json"
    if method != "HEAD":
        assert answer.code == "not_found"
    assert not answer.closes


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 256),
        ("bytes=255-", 255, 256),
        ("bytes=10-19", 10, 20),
        ("bytes=10-9999999999999999999999999999", 10, 256),
        ("bytes=-1", 255, 256),
        ("bytes=-256", 0, 256),
        ("bytes=-99999999999999999999999999", 0, 256),
        ("Bytes = 1-2", 1, 3),
        ("bytes=,1-2,", 1, 3),
    ],
)
def test_one_range_is_served(client: RawClient, stored: str, asked: str, start: int, stop: int) -> None:
    answer = client.ask("GET", stored, [("Range", asked)])
    assert answer.status == 206
    assert answer.header("content-range") == f"bytes {start}-{stop - 1}/256"
    assert answer.body == BODY[start:stop]


@pytest.mark.parametrize("asked", ["bytes=256-", "bytes=300-400", "bytes=-0", "bytes=99999999999999999999999999-"])
def test_a_range_behind_the_value_is_unsatisfiable(client: RawClient, stored: str, asked: str) -> None:
    answer = client.ask("GET", stored, [("Range", asked)])
    assert (answer.status, answer.code) == (416, "range_unsatisfiable")
    assert answer.header("content-range") == "bytes */256"
    assert not answer.closes


@pytest.mark.parametrize(
    "asked",
    ["bytes=0-1,5-6", "bytes=5-1", "bytes=-", "bytes=a-b", "lines=1-2", "bytes", "", "bytes=1-2-3", "bytes=1--2"],
)
def test_other_ranges_are_ignored(client: RawClient, stored: str, asked: str) -> None:
    answer = client.ask("GET", stored, [("Range", asked)])
    assert (answer.status, answer.body) == (200, BODY)


def test_a_head_ignores_ranges(client: RawClient, stored: str) -> None:
    answer = client.ask("HEAD", stored, [("Range", "bytes=0-0")])
    assert (answer.status, answer.header("content-length")) == (200, "256")


def test_ranges_of_the_empty_value(client: RawClient, key: str) -> None:
    client.ask("PUT", key, body=b"")
    assert client.ask("GET", key).body == b""
    unsatisfied = client.ask("GET", key, [("Range", "bytes=0-")])
    assert (unsatisfied.status, unsatisfied.header("content-range")) == (416, "bytes */0")
    assert client.ask("GET", key, [("Range", "bytes=-5")]).status == 200


def test_b1_ranges_of_a_value_in_several_pieces(client: RawClient, key: str) -> None:
    client.ask("PUT", key, body=LARGE)
    assert client.ask("GET", key).body == LARGE
    mib = 1 << 20
    spans = [
        (0, 1),
        (mib - 1, mib + 1),
        (65535, 65537),
        (1, len(LARGE)),
        (2 * mib, 3 * mib),
        (len(LARGE) - 1, len(LARGE)),
    ]
    spans += [(100, 100 + mib), (100, 101 + mib), (65536, 65536 + 15 * 65536 + 1)]
    for start, stop in spans:
        answer = client.ask("GET", key, [("Range", f"bytes={start}-{stop - 1}")])
        assert answer.status == 206
        assert answer.body == LARGE[start:stop]


def test_if_range_with_another_entry_sends_the_whole_value(client: RawClient, stored: str) -> None:
    etag = client.ask("HEAD", stored).header("etag")
    modified = client.ask("HEAD", stored).header("last-modified")
    for validator, status in [(etag, 206), (f"W/{etag}", 200), ('"other"', 200), (modified, 200), ("nonsense", 200)]:
        answer = client.ask("GET", stored, [("Range", "bytes=0-0"), ("If-Range", str(validator))])
        assert answer.status == status
    # A range that would be unsatisfiable does not matter either then.
    assert client.ask("GET", stored, [("Range", "bytes=999-"), ("If-Range", '"other"')]).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_if_none_match_answers_304(client: RawClient, stored: str, method: str) -> None:
    etag = client.ask("HEAD", stored).header("etag")
    for value in ("*", etag, f"W/{etag}", f'"other", {etag}'):
        answer = client.ask(method, stored, [("If-None-Match", str(value))])
        assert (answer.status, answer.header("etag"), answer.body) == (304, etag, b"")
        assert answer.header("content-length") is None
        assert answer.header("last-modified") is not None
    future = [("If-None-Match", '"other"'), ("If-Modified-Since", formatdate(4_000_000_000, usegmt=True))]
    assert client.ask(method, stored, future).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_if_modified_since_and_if_unmodified_since(client: RawClient, stored: str, method: str) -> None:
    modified = client.ask("HEAD", stored).header("last-modified")
    assert modified is not None
    past = "Sunday, 06-Nov-94 08:49:37 GMT"
    expected = [
        ("If-Modified-Since", modified, 304),
        ("If-Modified-Since", past, 200),
        ("If-Modified-Since", "nonsense", 200),
        ("If-Modified-Since", "Sun, 99 Nov 1994 08:49:37 GMT", 200),
        ("If-Unmodified-Since", modified, 200),
        ("If-Unmodified-Since", "Sun Nov  6 08:49:37 1994", 412),
        ("If-Unmodified-Since", "nonsense", 200),
    ]
    for name, value, status in expected:
        assert client.ask(method, stored, [(name, value)]).status == status, (name, value)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_if_match_of_a_read_compares_strongly(client: RawClient, stored: str, method: str) -> None:
    etag = client.ask("HEAD", stored).header("etag")
    for value, status in [("*", 200), (etag, 200), (f"W/{etag}", 412), ('"other"', 412)]:
        answer = client.ask(method, stored, [("If-Match", str(value))])
        assert (answer.status, answer.header("etag")) == (status, etag)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_unknown_parameters_are_refused_by_name(client: RawClient, stored: str, method: str) -> None:
    answer = client.ask(method, f"{stored}?ttl=5")
    assert answer.status == 400
    if method != "HEAD":
        assert answer.problem["parameter"] == "ttl"


def test_delete_deletes_once(client: RawClient, stored: str) -> None:
    assert client.ask("DELETE", f"{stored}?durability=flush").status == 204
    assert client.ask("GET", stored).status == 404
    assert client.ask("DELETE", stored).status == 404


def test_delete_with_if_match_deletes_only_the_entry_it_names(client: RawClient, stored: str) -> None:
    etag = client.ask("HEAD", stored).header("etag")
    refused = client.ask("DELETE", stored, [("If-Match", '"0000000000000001"')])
    assert (refused.status, refused.code, refused.header("etag")) == (412, "precondition_failed", etag)
    assert client.ask("DELETE", f"{stored}?durability=disk").problem["parameter"] == "durability"
    assert client.ask("DELETE", stored, [("If-Match", str(etag))]).status == 204
    assert client.ask("GET", stored).status == 404


def test_an_expired_entry_is_a_miss(client: RawClient, key: str) -> None:
    assert client.ask("PUT", f"{key}?ttl=1", body=b"x").status == 201
    # Reads never make it live longer; the second ends while we ask.
    while client.ask("GET", key).status == 200:
        pass
    answer = client.ask("GET", key)
    assert (answer.status, answer.header("cache-status")) == (404, "rawblockd; fwd=miss")
