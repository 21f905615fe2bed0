"""Keys and namespaces in paths: any byte is legal in a key and nothing is normalised."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.value_paths import decode_key, decode_namespace, split_path
from storage.errors import KeyInvalid, NamespaceInvalid
from tests.http.raw_client import RawClient

ODD_KEYS = [
    b"..",
    b".",
    b"../../etc/passwd",
    b"a/../b",
    b"/",
    b"//",
    b"/leading",
    b"trailing/",
    b"a//b",
    b"%2F",
    b"%",
    b"%41",
    b"+",
    b" ",
    b"?query#fragment",
    b";parameter",
    b"\x00",
    b"a\x00b",
    b"\r\n",
    b"\xff\xfe",
    b"\x80",
    "schl\u00fcssel".encode(),
    bytes(range(256)),
    b"k" * 1024,
    b"\xff" * 1024,
]


@pytest.mark.parametrize("key", ODD_KEYS, ids=lambda key: repr(key[:20]))
def test_b1_every_odd_key_is_its_own_entry(client: RawClient, key: bytes) -> None:
    path = f"/v1/kv/odd-keys/{quote_from_bytes(key, safe='')}"
    assert client.ask("PUT", path, body=b"value of " + key).status in (201, 204)
    assert client.ask("GET", path).body == b"value of " + key
    assert client.ask("HEAD", path).status == 200


def test_b1_odd_keys_do_not_meet(client: RawClient) -> None:
    """Every key is stored, then every one still holds its own value."""
    paths = {key: f"/v1/kv/odd-keys-apart/{quote_from_bytes(key, safe='')}" for key in ODD_KEYS}
    for key, path in paths.items():
        assert client.ask("PUT", path, body=b"value of " + key).status == 201
    for key, path in paths.items():
        assert client.ask("GET", path).body == b"value of " + key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a/b", "a%2Fb"),
        ("a/b", "a%2fb"),
        ("plain", "%70lain"),
        ("a/../b", "a%2F..%2Fb"),
        ("x~y", "x%7Ey"),
        ("a+b", "a%2Bb"),
        ("a:b@c", "a%3Ab%40c"),
    ],
)
def test_two_spellings_of_one_key_are_one_key(client: RawClient, one: str, other: str) -> None:
    assert client.ask("PUT", f"/v1/kv/spellings/{one}", body=one.encode()).status in (201, 204)
    assert client.ask("GET", f"/v1/kv/spellings/{other}").body == one.encode()
    assert client.ask("DELETE", f"/v1/kv/spellings/{other}").status == 204


def test_an_escaped_percent_sign_is_not_decoded_twice(client: RawClient) -> None:
    client.ask("PUT", "/v1/kv/twice/%2541", body=b"percent 41")
    assert client.ask("GET", "/v1/kv/twice/A").status == 404
    assert client.ask("GET", "/v1/kv/twice/%2541").body == b"percent 41"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
@pytest.mark.parametrize("key", ["", "%", "%4", "%zz", "a%", "%%41", "k" * 1025, "%ff" * 1025])
def test_what_is_no_key_is_refused(client: RawClient, method: str, key: str) -> None:
    answer = client.ask(method, f"/v1/kv/tests/{key}", body=b"" if method == "PUT" else None)
    assert answer.status == 400
    if method != "HEAD":
        assert answer.code == "key_invalid"


@pytest.mark.parametrize("namespace", ["", "a%20b", "a:mget", "%2F", "%00", "%ff", "n" * 129, "a%", "a,b", "%C3%BC"])
def test_what_is_no_namespace_is_refused(client: RawClient, namespace: str) -> None:
    answer = client.ask("GET", f"/v1/kv/{namespace}/key")
    assert (answer.status, answer.code) == (400, "namespace_invalid")


@pytest.mark.parametrize("namespace", [".", "..", "n" * 128, "A-Z_0.9"])
def test_odd_namespaces_are_legal(client: RawClient, namespace: str) -> None:
    assert client.ask("PUT", f"/v1/kv/{namespace}/key", body=b"x").status == 201
    assert client.ask("GET", f"/v1/kv/{namespace}/key").body == b"x"
    assert client.ask("DELETE", f"/v1/kv/{namespace}/key").status == 204


def test_one_key_in_two_namespaces_is_two_entries(client: RawClient) -> None:
    client.ask("PUT", "/v1/kv/tenant-a/key", body=b"a")
    client.ask("PUT", "/v1/kv/tenant-b/key", body=b"b")
    client.ask("DELETE", "/v1/kv/tenant-a/key")
    assert client.ask("GET", "/v1/kv/tenant-a/key").status == 404
    assert client.ask("GET", "/v1/kv/tenant-b/key").body == b"b"


@given(key=st.binary(min_size=1, max_size=1024), unescaped=st.sampled_from(["", "/", "/:@!$&'()*+,;=~-._"]))
@settings(deadline=None)
def test_every_key_survives_its_path(key: bytes, unescaped: str) -> None:
    parts = split_path(b"/v1/kv/space/" + quote_from_bytes(key, safe=unescaped).encode())
    assert parts is not None
    assert decode_namespace(parts[0]) == "space"
    assert decode_key(parts[1]) == key


@given(raw=st.binary(max_size=4000))
@settings(deadline=None)
def test_any_path_gives_a_legal_key_or_an_error(raw: bytes) -> None:
    try:
        key = decode_key(raw)
    except KeyInvalid:
        return
    assert 1 <= len(key) <= 1024


@given(raw=st.binary(max_size=200))
@settings(deadline=None)
def test_any_path_gives_a_legal_namespace_or_an_error(raw: bytes) -> None:
    try:
        namespace = decode_namespace(raw)
    except NamespaceInvalid:
        return
    assert 1 <= len(namespace) <= 128
    assert namespace.isascii()
