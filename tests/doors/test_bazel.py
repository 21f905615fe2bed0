"""Bazel's door: what its client sends, byte by byte, and what must not get in."""

from __future__ import annotations

import hashlib

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head

LARGE_BYTES = 700_000
TOO_LARGE_BYTES = 3 << 20
AS_BAZEL = (("Accept", "*/*"), ("Connection", "keep-alive"), ("User-Agent", "bazel/8.0.0"))


def _blob(name: str, size_bytes: int = 100) -> tuple[str, bytes]:
    """The path of a blob in the store, and the blob."""
    body = hashlib.shake_128(name.encode()).digest(size_bytes)
    return f"/bazel/cas/{hashlib.sha256(body).hexdigest()}", body


def _action(name: str) -> str:
    return f"/bazel/ac/{hashlib.sha256(name.encode()).hexdigest()}"


def test_the_sequence_of_a_first_and_a_second_build(client: RawClient) -> None:
    action = _action("build")
    blob, body = _blob("output", LARGE_BYTES)
    result = b"\x0a\x0b an action result, which is none of the daemon's business"
    assert client.ask("GET", action, AS_BAZEL).status == 404
    assert client.ask("PUT", blob, AS_BAZEL, body).status == 201
    assert client.ask("PUT", action, AS_BAZEL, result).status == 201
    assert client.ask("GET", action, AS_BAZEL).body == result
    assert client.ask("GET", blob, AS_BAZEL).body == body
    # A second machine that built the same sends the same again.
    assert client.ask("PUT", blob, AS_BAZEL, body).status == 204


def test_a_miss_has_a_length_since_bazel_wants_one(client: RawClient) -> None:
    answer = client.ask("GET", _action("missing"), AS_BAZEL)
    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.header("cache-status") == "rawblockd; fwd=miss"
    assert not answer.closes


def test_head_tells_the_size(client: RawClient) -> None:
    blob, body = _blob("asked for")
    assert client.ask("HEAD", blob).status == 404
    client.ask("PUT", blob, body=body)
    answer = client.ask("HEAD", blob)
    assert (answer.status, answer.header("content-length")) == (200, str(len(body)))


def test_the_empty_blob(client: RawClient) -> None:
    blob = f"/bazel/cas/{hashlib.sha256(b'').hexdigest()}"
    assert client.ask("PUT", blob, body=b"").status in (201, 204)
    answer = client.ask("GET", blob)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("size_bytes", [1, 100, LARGE_BYTES])
def test_b1_a_blob_of_another_digest_is_not_stored(client: RawClient, size_bytes: int) -> None:
    blob, body = _blob(f"forged {size_bytes}", size_bytes)
    forged = body[:-1] + bytes([body[-1] ^ 1])
    answer = client.ask("PUT", blob, AS_BAZEL, forged)
    assert (answer.status, answer.code) == (400, "digest_mismatch")
    assert not answer.closes
    assert client.ask("GET", blob).status == 404
    assert client.ask("PUT", blob, body=body).status == 201
    assert client.ask("PUT", blob, body=forged).status == 400
    assert client.ask("GET", blob).body == body


def test_the_digest_that_a_client_declares_besides_must_hold_too(client: RawClient) -> None:
    blob, body = _blob("declared")
    wrong = ("Content-Digest", "sha-256=:" + "A" * 43 + "=:")
    answer = client.ask("PUT", blob, [wrong], body)
    assert (answer.status, answer.code) == (400, "digest_mismatch")
    assert client.ask("GET", blob).status == 404


def test_an_action_result_is_kept_whatever_it_is(client: RawClient) -> None:
    action = _action("anything")
    assert client.ask("PUT", action, body=b"one").status == 201
    assert client.ask("PUT", action, body=b"two").status == 204
    assert client.ask("GET", action).body == b"two"


@pytest.mark.parametrize(
    "path",
    [
        "/bazel/cas/" + "A" * 64,
        "/bazel/cas/" + "a" * 63,
        "/bazel/cas/" + "a" * 65,
        "/bazel/ac/" + "a" * 40,
        "/bazel/ac/%61" + "a" * 63,
        "/bazel/ac/" + "a" * 64 + "/",
        "/bazel/cas/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_what_is_no_sha256_is_refused(client: RawClient, method: str, path: str) -> None:
    answer = client.ask(method, path, body=b"x" if method == "PUT" else None)
    assert (answer.status, answer.code) == (400, "build_key_invalid")


@pytest.mark.parametrize("path", ["/bazel", "/bazel/", "/bazel/cas", "/bazel/blobs/" + "a" * 64, "/bazel//cas/x"])
def test_other_paths_are_404(client: RawClient, path: str) -> None:
    answer = client.ask("GET", path)
    assert (answer.status, answer.code) == (404, "no_such_route")


def test_other_methods_are_405_and_leave_the_blob(client: RawClient) -> None:
    blob, body = _blob("undeletable")
    client.ask("PUT", blob, body=body)
    for method in ("DELETE", "POST", "PROPFIND"):
        answer = client.ask(method, blob, body=b"")
        assert (answer.status, answer.code, answer.header("allow")) == (405, "method_not_allowed", "GET, HEAD, PUT")
    assert client.ask("GET", blob).body == body


def test_a_blob_too_large_is_413_before_its_body(client: RawClient) -> None:
    blob = f"/bazel/cas/{'0' * 64}"
    client.send(head("PUT", blob, [("Content-Length", str(TOO_LARGE_BYTES)), ("Expect", "100-continue")]))
    answer = client.answer()
    assert (answer.status, answer.code, answer.closes) == (413, "value_too_large", True)


def test_a_body_without_a_length_is_411(client: RawClient) -> None:
    blob, _ = _blob("chunked")
    client.send(head("PUT", blob, [("Transfer-Encoding", "chunked")]) + b"1\r\nx\r\n0\r\n\r\n")
    answer = client.answer()
    assert (answer.status, answer.code) == (411, "length_required")


def test_an_upload_that_breaks_off_leaves_nothing(open_doors: Daemon, client: RawClient) -> None:
    blob, body = _blob("broken off", LARGE_BYTES)
    with RawClient(open_doors.address) as other:
        other.send(head("PUT", blob, [("Content-Length", str(len(body)))]) + body[:1000])
    open_doors.wait_at_rest()
    assert client.ask("GET", blob).status == 404


def test_the_store_is_the_namespace_of_the_door(client: RawClient) -> None:
    blob, body = _blob("seen from both sides")
    client.ask("PUT", blob, body=body)
    assert client.ask("GET", blob.replace("/bazel/", "/v1/kv/bazel/")).body == body
