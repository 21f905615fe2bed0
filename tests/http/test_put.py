"""PUT: what is stored, what is answered, and that nothing is refused later than it could be."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head, request

LENGTH_REQUIRED = (411, "length_required")


def test_a_new_value_is_created_and_a_second_put_replaces_it(client: RawClient, key: str) -> None:
    created = client.ask("PUT", key, body=b"one")
    assert (created.status, created.header("content-length")) == (201, "0")
    replaced = client.ask("PUT", key, body=b"two")
    assert replaced.status == 204
    assert replaced.header("content-length") is None
    assert created.header("etag") != replaced.header("etag")
    answer = client.ask("GET", key)
    assert (answer.body, answer.header("etag")) == (b"two", replaced.header("etag"))


@pytest.mark.parametrize("level", ["journal", "flush"])
def test_d1_the_level_asked_for_is_the_level_told(client: RawClient, key: str, level: str) -> None:
    answer = client.ask("PUT", f"{key}?durability={level}", body=b"x")
    assert answer.header("rawblockd-durability") == level


def test_d1_level_none_is_accepted_at_once(client: RawClient, key: str) -> None:
    answer = client.ask("PUT", f"{key}?durability=none", body=b"x")
    assert answer.status == 201
    assert answer.header("rawblockd-durability") in ("none", "journal", "flush")


def test_the_default_level_is_journal(client: RawClient, key: str) -> None:
    assert client.ask("PUT", key, body=b"x").header("rawblockd-durability") == "journal"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("durability=disk", "durability"),
        ("durability=", "durability"),
        ("durability=JOURNAL", "durability"),
        ("ttl=0", "ttl"),
        ("ttl=-1", "ttl"),
        ("ttl=1.5", "ttl"),
        ("ttl=+1", "ttl"),
        ("ttl=01", "ttl"),
        ("ttl=%D9%A1", "ttl"),
        ("ttl=2147483648", "ttl"),
        ("ttl=99999999999999999999", "ttl"),
        ("ttl=", "ttl"),
        ("tll=1", "tll"),
        ("ttl=1&ttl=1", "ttl"),
        ("colour=red", "colour"),
        ("ttl=1%", ""),
        ("ttl=%ff", ""),
    ],
)
def test_odd_parameters_are_refused_by_name(client: RawClient, key: str, query: str, named: str) -> None:
    answer = client.ask("PUT", f"{key}?{query}", body=b"x")
    assert (answer.status, answer.code, answer.problem["parameter"]) == (400, "parameter_invalid", named)
    assert answer.closes


def test_empty_parts_of_a_query_mean_nothing(client: RawClient, key: str) -> None:
    assert client.ask("PUT", f"{key}?&ttl=6000&", body=b"x").status == 201


@pytest.mark.parametrize(
    "value", ["max-age=0", "max-age", "max-age=", "max-age=-5", 'max-age="5"', "max-age=1.5", "max-age=5, max-age=5"]
)
def test_an_odd_max_age_is_refused(client: RawClient, key: str, value: str) -> None:
    answer = client.ask("PUT", key, [("Cache-Control", value)], b"x")
    assert (answer.status, answer.problem["parameter"]) == (400, "max-age")


@pytest.mark.parametrize(
    ("query", "cache_control", "lifetime"),
    [
        ("?ttl=6000", None, 6000),
        ("", "max-age=6100", 6100),
        ("", "no-transform , MAX-AGE = 6200 , immutable", 6200),
        ("?ttl=6000", "max-age=5", 6000),
        ("?ttl=6000", "max-age=nonsense", 6000),
        ("", "no-cache, s-maxage=3", None),
        ("", None, None),
        ("?ttl=2147483647", None, 2147483647),
    ],
)
def test_a_time_to_live_is_kept_and_told(
    client: RawClient, key: str, query: str, cache_control: str | None, lifetime: int | None
) -> None:
    headers = [("Cache-Control", cache_control)] if cache_control else []
    assert client.ask("PUT", key + query, headers, b"x").status == 201
    for method in ("GET", "HEAD"):
        answer = client.ask(method, key)
        told = answer.header("cache-control")
        if lifetime is None:
            assert told is None
            assert answer.header("age") is None
        else:
            # The second of the store may end between the two clock readings of a put.
            assert told in (f"max-age={lifetime}", f"max-age={lifetime - 1}")
            assert int(answer.header("age") or "-1") >= 0


def test_content_type_and_metadata_are_kept(client: RawClient, key: str) -> None:
    headers = [
        ("Content-Type", 'text/html; charset="utf-8"'),
        ("Rawblockd-Meta-Colour", "caf\xe9 blue"),
        ("rawblockd-meta-list", "a"),
        ("RAWBLOCKD-META-LIST", "b"),
        ("Rawblockd-Meta-Empty", ""),
        ("Rawblockd-Other", "not kept"),
    ]
    assert client.ask("PUT", key, headers, b"x").status == 201
    for method in ("GET", "HEAD"):
        answer = client.ask(method, key)
        assert answer.header("content-type") == 'text/html; charset="utf-8"'
        assert answer.header("rawblockd-meta-colour") == "caf\xe9 blue"
        assert answer.header("rawblockd-meta-list") == "a, b"
        assert answer.header("rawblockd-meta-empty") == ""
        assert answer.header("rawblockd-other") is None
        assert answer.header("x-content-type-options") == "nosniff"
        assert "sandbox" in (answer.header("content-security-policy") or "")


def test_a_value_without_a_type_is_octets(client: RawClient, key: str) -> None:
    client.ask("PUT", key, body=b"x")
    assert client.ask("GET", key).header("content-type") == "application/octet-stream"


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Type", "nonsense")],
        [("Content-Type", "text/plain, text/html")],
        [("Content-Type", "text/plain; charset")],
        [("Content-Type", "text/plain" + "; " * 3000 + "x")],
        [("Content-Type", "text/plain"), ("Content-Type", "text/plain")],
        [("Rawblockd-Meta-", "no name")],
        [("Rawblockd-Meta-Long", "x" * 8192)],
        [(f"Rawblockd-Meta-{index}", "x") for index in range(65)],
    ],
)
def test_metadata_beyond_its_limits_is_refused(client: RawClient, key: str, headers: list[tuple[str, str]]) -> None:
    answer = client.ask("PUT", key, headers, b"x")
    assert (answer.status, answer.code) == (400, "metadata_invalid")


def test_metadata_at_its_limits_is_kept(client: RawClient, key: str) -> None:
    headers = [(f"Rawblockd-Meta-{index:02}", "x" * 126) for index in range(64)]
    assert client.ask("PUT", key, headers, b"x").status == 201
    kept = [value for name, value in client.ask("GET", key).headers if name.startswith("rawblockd-meta-")]
    assert kept == ["x" * 126] * 64


def _digest(algorithm: str, body: bytes) -> str:
    return f":{base64.b64encode(hashlib.new(algorithm, body).digest()).decode()}:"


@pytest.mark.parametrize("body", [b"", b"small", b"large " * 100_000])
def test_a_right_content_digest_is_accepted(client: RawClient, key: str, body: bytes) -> None:
    value = f"sha-256={_digest('sha256', body)}, sha-512={_digest('sha512', body)};p, md5=:AAAA:"
    assert client.ask("PUT", key, [("Content-Digest", value)], body).status == 201
    assert client.ask("GET", key).body == body


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_a_wrong_content_digest_stores_nothing(client: RawClient, daemon: Daemon, key: str, algorithm: str) -> None:
    digest = _digest(algorithm.replace("-", ""), b"another body")
    answer = client.ask("PUT", key, [("Content-Digest", f"{algorithm}={digest}")], b"this body")
    assert (answer.status, answer.code) == (400, "digest_mismatch")
    assert not answer.closes
    assert client.ask("GET", key).status == 404
    daemon.wait_at_rest()


@pytest.mark.parametrize(
    "value",
    [
        "sha-256=:AAAA:",
        "sha-256=AAAA",
        "sha-256",
        "sha-256=:A:",
        "sha-256=:AAAA",
        "SHA-256=:AAAA:",
        "",
        ",",
        "md5=:AAAA:,",
        "md5=:AAAA: sha-256=:AAAA:",
    ],
)
def test_a_malformed_content_digest_is_refused(client: RawClient, key: str, value: str) -> None:
    answer = client.ask("PUT", key, [("Content-Digest", value)], b"x")
    assert (answer.status, answer.problem["parameter"]) == (400, "Content-Digest")


def test_unknown_digest_algorithms_are_ignored(client: RawClient, key: str) -> None:
    headers = [("Content-Digest", 'md5=:AAAA:, unixsum=30;a="b, c", token=abc')]
    assert client.ask("PUT", key, headers, b"x").status == 201


def test_411_without_a_length_comes_before_the_body(client: RawClient, key: str) -> None:
    client.send(head("PUT", key))
    answer = client.answer()
    assert (answer.status, answer.code) == LENGTH_REQUIRED
    assert not answer.closes
    client.send(head("PUT", key, [("Transfer-Encoding", "chunked")]))
    answer = client.answer()
    assert (answer.status, answer.code) == LENGTH_REQUIRED
    assert answer.closes


def test_413_comes_before_the_body(client: RawClient, key: str) -> None:
    client.send(head("PUT", key, [("Content-Length", str(1 << 40))]))
    answer = client.answer()
    assert (answer.status, answer.code) == (413, "value_too_large")
    assert answer.closes


def test_100_continue_is_sent_only_for_a_body_that_is_wanted(daemon: Daemon, key: str) -> None:
    with RawClient(daemon.address) as client:
        client.send(head("PUT", key, [("Content-Length", "5"), ("Expect", "100-continue")]))
        assert client.answer().status == 100
        client.send(b"hello")
        assert client.answer().status == 201
    refused = [
        ([("Content-Length", str(1 << 40))], 413),
        ([("Content-Length", "5"), ("If-None-Match", "*")], 412),
        ([("Content-Length", "5"), ("Content-Range", "bytes 0-4/10")], 400),
        ([("Transfer-Encoding", "chunked")], 411),
    ]
    for headers, status in refused:
        with RawClient(daemon.address) as client:
            client.send(head("PUT", key, [*headers, ("Expect", "100-continue")]))
            assert client.answer().status == status
            assert client.at_end()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([("Content-Range", "bytes 0-0/1")], "content_range_unsupported"),
        ([("Content-Encoding", "gzip")], "parameter_invalid"),
        ([("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")], "parameter_invalid"),
        ([("If-Match", "")], "parameter_invalid"),
        ([("If-Match", "abc")], "parameter_invalid"),
        ([("If-Match", '"a" "b"')], "parameter_invalid"),
        ([("If-Match", ", ".join(['"a"'] * 65))], "parameter_invalid"),
        ([("If-None-Match", '"0000000000000001"')], "parameter_invalid"),
    ],
)
def test_fields_that_a_put_cannot_honour_are_refused(
    client: RawClient, key: str, headers: list[tuple[str, str]], code: str
) -> None:
    answer = client.ask("PUT", key, headers, b"x")
    assert (answer.status, answer.code) == (400, code)


def test_if_none_match_star_creates_only(client: RawClient, daemon: Daemon, key: str) -> None:
    only_new = [("If-None-Match", "*")]
    created = client.ask("PUT", key, only_new, b"one")
    assert created.status == 201
    refused = client.ask("PUT", key, only_new, b"two")
    assert (refused.status, refused.code) == (412, "precondition_failed")
    assert refused.header("etag") == created.header("etag")
    with RawClient(daemon.address) as other:
        assert other.ask("GET", key).body == b"one"


def test_if_match_replaces_only_the_entry_it_names(daemon: Daemon, key: str) -> None:
    def put(body: bytes, if_match: str) -> tuple[int, str | None]:
        with RawClient(daemon.address) as client:
            answer = client.ask("PUT", key, [("If-Match", if_match)], body)
            return answer.status, answer.header("etag")

    assert put(b"none there", "*") == (412, None)
    with RawClient(daemon.address) as client:
        first = client.ask("PUT", key, body=b"one").header("etag")
    assert first is not None
    assert put(b"x", '"0000000000000000", "other"') == (412, first)
    assert put(b"x", f"W/{first}") == (412, first)
    status, second = put(b"two", f'"other" ,, {first}')
    assert status == 204
    assert put(b"x", first) == (412, second)
    assert put(b"three", "*")[0] == 204


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 65535, 65536, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_b1_sizes_around_blocks_chunks_and_transfers_come_back_whole(client: RawClient, key: str, size: int) -> None:
    body = hashlib.shake_128(b"%d" % size).digest(size)
    assert client.ask("PUT", key, body=body).status == 201
    answer = client.ask("GET", key)
    assert answer.header("content-length") == str(size)
    assert answer.body == body


def test_b1_values_at_the_sizes_of_the_slot_classes_come_back_whole(
    client: RawClient, daemon: Daemon, key: str
) -> None:
    largest = 0
    for slot_class in daemon.status()["classes"]:
        for size in (slot_class["slot_bytes"] + step for step in (-1, 0, 1)):
            body = hashlib.shake_128(b"%d" % size).digest(size)
            with RawClient(daemon.address) as other:
                answer = other.ask("PUT", f"{key}-{size}", body=body)
            if answer.status == 413:
                continue
            assert answer.status == 201
            largest = max(largest, size)
            assert client.ask("GET", f"{key}-{size}").body == body
            assert client.ask("DELETE", f"{key}-{size}").status == 204
    assert largest > 0 or not daemon.status()["classes"]


def test_the_largest_value_is_taken_and_one_more_byte_is_not(daemon: Daemon, key: str) -> None:
    largest = daemon.status()["capacity"]["max_value_bytes"]
    body = bytes(largest)
    with RawClient(daemon.address) as client:
        assert client.ask("PUT", key, body=body).status == 201
        assert client.ask("GET", key).body == body
        assert client.ask("DELETE", key).status == 204
        # Header units make the exact bound depend on key and metadata: a block more fits no slot.
        client.send(head("PUT", key, [("Content-Length", str(largest + 4096))]))
        assert client.answer().code == "value_too_large"


def test_a_body_in_many_small_pieces_is_one_value(client: RawClient, key: str) -> None:
    client.send(head("PUT", key, [("Content-Length", "300")]))
    for _ in range(300):
        client.send(b"z")
    assert client.answer().status == 201
    assert client.ask("GET", key).body == b"z" * 300


def test_pipelined_puts_are_answered_in_order(client: RawClient, key: str) -> None:
    client.send(b"".join(request("PUT", f"{key}-{index}", body=b"%d" % index) for index in range(50)))
    client.send(b"".join(request("GET", f"{key}-{index}") for index in range(50)))
    assert [client.answer().status for _ in range(50)] == [201] * 50
    assert [client.answer().body for _ in range(50)] == [b"%d" % index for index in range(50)]
