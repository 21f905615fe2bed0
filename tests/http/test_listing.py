"""Listing over HTTP: complete, in pages, with keys of any bytes."""

from __future__ import annotations

import base64
from typing import Any

import msgpack
import pytest

from tests.http.batches import HEADERS, entries, results
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

ODD_KEYS = [b"a/b", b"..", b"%41", b"\x00", b"\xff\xfe", b" ", "schön".encode(), b"a+b", b"a&b=c", b"k" * 1024]


def pages(daemon: Daemon, namespace: str, **parameters: Any) -> list[dict[str, Any]]:
    """All entries, page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        given = {**parameters, **({"cursor": cursor} if cursor else {})}
        answer = daemon.http.get(f"/v1/kv/{namespace}", params=given)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["entries"]) <= int(parameters.get("limit", 100))
        found += page["entries"]
        cursor = page["cursor"]
    return found


def key_of(entry: dict[str, Any]) -> bytes:
    key = entry.get("key")
    return base64.b64decode(entry["key_base64"]) if key is None else key.encode()


def test_a_listing_is_complete_and_has_no_entry_twice(daemon: Daemon) -> None:
    pairs = [(b"key-%d" % number, bytes(number % 50)) for number in range(700)]
    answer = daemon.http.post("/v1/kv/listing:mput", content=entries(pairs, ttl=10_000), headers=HEADERS)
    etags = {key: result["etag"] for (key, _), result in zip(pairs, results(answer.content), strict=True)}
    found = pages(daemon, "listing", limit=64)
    assert sorted(map(key_of, found)) == sorted(key for key, _ in pairs)
    sizes = dict(pairs)
    for entry in found:
        assert entry["etag"] == etags[key_of(entry)]
        assert entry["size"] == len(sizes[key_of(entry)])
        assert entry["content_type"] == "application/octet-stream"
        assert 9900 < entry["expires_at"] - entry["stored_at"] <= 10_001
    assert [key_of(entry) for entry in pages(daemon, "listing", limit=1000)] == [key_of(entry) for entry in found]
    with_prefix = [key for key, _ in pairs if key.startswith(b"key-12")]
    assert sorted(map(key_of, pages(daemon, "listing", prefix="key-12", limit=7))) == sorted(with_prefix)


def test_keys_of_any_bytes_are_listed_and_a_prefix_is_any_bytes(daemon: Daemon) -> None:
    daemon.http.post("/v1/kv/odd-keys-listed:mput", content=entries([(key, b"") for key in ODD_KEYS]), headers=HEADERS)
    listed = pages(daemon, "odd-keys-listed")
    assert sorted(map(key_of, listed)) == sorted(ODD_KEYS)
    assert {"key_base64" in entry for entry in listed if key_of(entry) == b"\xff\xfe"} == {True}
    answer = daemon.http.get("/v1/kv/odd-keys-listed", headers={"Accept": "application/msgpack"})
    assert answer.headers["content-type"] == "application/msgpack"
    document = msgpack.unpackb(answer.content)
    assert sorted(entry["key"] for entry in document["entries"]) == sorted(ODD_KEYS)
    assert document["cursor"] is None
    with RawClient(daemon.address) as client:
        for escaped, prefix in [
            ("%FF", b"\xff"), ("%2541", b"%41"), ("a/", b"a/"), ("a%2F", b"a/"), ("a+", b"a+"), ("a%26b%3D", b"a&b="),
            ("", b""), ("%00", b"\x00"),
        ]:  # fmt: skip
            found = client.ask("GET", f"/v1/kv/odd-keys-listed?prefix={escaped}", [("Accept", "application/msgpack")])
            keys = [entry["key"] for entry in msgpack.unpackb(found.body)["entries"]]
            assert sorted(keys) == sorted(key for key in ODD_KEYS if key.startswith(prefix)), escaped


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=1001", "limit=x", "limit=", "limit=1.5", "limit=-1", "cursor=nonsense", "cursor=%ff",
        "cursor=AAAA", "colour=red", "prefix=a&prefix=b", "prefix=%", "prefix=" + "k" * 1025,
    ],
)  # fmt: skip
def test_odd_listings_are_refused(daemon: Daemon, query: str) -> None:
    daemon.http.put("/v1/kv/odd-listing/a", content=b"")
    with RawClient(daemon.address) as client:
        answer = client.ask("GET", f"/v1/kv/odd-listing?{query}")
        assert (answer.status, answer.code) == (400, "parameter_invalid")


def test_the_paths_of_a_namespace(daemon: Daemon) -> None:
    daemon.http.put("/v1/kv/paths/a", content=b"")
    with RawClient(daemon.address) as client:
        assert client.ask("HEAD", "/v1/kv/paths").status == 200
        assert client.ask("GET", "/v1/kv/no-such-namespace").code == "namespace_not_found"
        assert client.ask("GET", "/v1/kv/").code == "namespace_invalid"
        answer = client.ask("PUT", "/v1/kv/paths", body=b"")
        assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")
        assert client.ask("GET", "/v1/kv/p%61ths").status == 200
