"""PATCH: what is kept with a value changes, its bytes never do."""

from __future__ import annotations

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawAnswer, RawClient


def stored(client: RawClient, key: str, query: str = "", headers: tuple[tuple[str, str], ...] = ()) -> str:
    answer = client.ask("PUT", key + query, headers, b"value")
    assert answer.status in (201, 204)
    etag = answer.header("etag")
    assert etag is not None
    return etag


def lifetime(client: RawClient, key: str) -> int | None:
    told = client.ask("GET", key).header("cache-control")
    return None if told is None else int(told.removeprefix("max-age="))


def test_a_time_to_live_changes_without_a_new_entry(client: RawClient, key: str) -> None:
    etag = stored(client, key)
    assert lifetime(client, key) is None
    answer = client.ask("PATCH", f"{key}?ttl=5000")
    assert (answer.status, answer.header("etag")) == (204, etag)
    # The TTL counts from the PATCH, max-age from when the value was stored.
    assert 4999 <= (lifetime(client, key) or 0) <= 5060
    assert client.ask("PATCH", f"{key}?ttl=none&durability=flush").header("etag") == etag
    assert lifetime(client, key) is None
    assert client.ask("GET", key).header("etag") == etag


def test_metadata_is_replaced_and_the_value_stays(client: RawClient, key: str) -> None:
    first = stored(client, key, "?ttl=5000", (("Content-Type", "text/plain"), ("Rawblockd-Meta-A", "1")))
    answer = client.ask("PATCH", key, [("Rawblockd-Meta-B", "2")])
    assert answer.status == 204
    second = answer.header("etag")
    assert second not in (None, first)
    found = client.ask("GET", key)
    assert (found.body, found.header("etag"), found.header("content-type")) == (b"value", second, "text/plain")
    assert (found.header("rawblockd-meta-a"), found.header("rawblockd-meta-b")) == (None, "2")
    assert 4999 <= (lifetime(client, key) or 0) <= 5001
    assert client.ask("PATCH", f"{key}?ttl=none", [("Content-Type", "image/png")]).status == 204
    found = client.ask("GET", key)
    assert (found.header("content-type"), found.header("rawblockd-meta-b")) == ("image/png", "2")
    assert found.header("cache-control") is None
    assert client.ask("PATCH", f"{key}?meta=none").status == 204
    found = client.ask("GET", key)
    assert (found.header("content-type"), found.header("rawblockd-meta-b"), found.body) == ("image/png", None, b"value")


def test_conditions_are_honoured(client: RawClient, key: str) -> None:
    etag = stored(client, key)

    def patch(field: str, value: str, query: str) -> RawAnswer:
        return client.ask("PATCH", key + query, [(field, value)])

    for query in ("?ttl=5000", "?meta=none"):
        for field, value in (("If-Match", '"0000000000000001"'), ("If-None-Match", "*")):
            answer = patch(field, value, query)
            assert (answer.status, answer.code, answer.header("etag")) == (412, "precondition_failed", etag)
    assert patch("If-Match", etag, "?ttl=5000").status == 204
    assert patch("If-Match", "*", "?meta=none").status == 204
    assert patch("If-Match", etag, "?meta=none").status == 412


def test_a_missing_entry_is_a_miss(client: RawClient, key: str) -> None:
    for query in ("?ttl=5000", "?meta=none"):
        answer = client.ask("PATCH", key + query)
        assert (answer.status, answer.code) == (404, "not_found")
        assert client.ask("PATCH", key + query, [("If-Match", "*")]).status in (404, 412)


@pytest.mark.parametrize(
    ("query", "headers", "body", "code"),
    [
        ("", (), None, "parameter_invalid"),
        ("?durability=flush", (), None, "parameter_invalid"),
        ("?ttl=0", (), None, "parameter_invalid"),
        ("?ttl=None", (), None, "parameter_invalid"),
        ("?meta=all", (), None, "parameter_invalid"),
        ("?meta=none", (("Rawblockd-Meta-A", "1"),), None, "parameter_invalid"),
        ("?colour=red", (), None, "parameter_invalid"),
        ("?ttl=1", (), b"body", "parameter_invalid"),
        ("", (("Content-Type", "nonsense"),), None, "metadata_invalid"),
        ("", (("Rawblockd-Meta-A", "x" * 9000),), None, "metadata_invalid"),
    ],
)
def test_odd_patches_are_refused(
    client: RawClient, key: str, query: str, headers: tuple[tuple[str, str], ...], body: bytes | None, code: str
) -> None:
    stored(client, key)
    answer = client.ask("PATCH", key + query, headers, body)
    assert (answer.status, answer.code) == (400, code)


def test_it_counts_under_its_own_name(daemon: Daemon, key: str) -> None:
    before = daemon.request_count("PATCH", 404)
    daemon.http.patch(f"{key}?ttl=5")
    assert daemon.request_count("PATCH", 404) == before + 1
