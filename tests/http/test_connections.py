"""What a connection goes through: errors and keep-alive, unread bodies, clients that leave."""

from __future__ import annotations

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawAnswer, RawClient, head, request

SMUGGLED = request("DELETE", "/v1/kv/tests/victim")
"""What a client could hide in a body that is never read."""


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/kv/tests/missing", [], 404),
        ("GET", "/v1/kv/tests/%", [], 400),
        ("GET", "/v1/kv/a%20b/c", [], 400),
        ("GET", "/v1/kv/tests/missing?x=1", [], 400),
        ("GET", "/v1/kv/tests?limit=0", [], 400),
        ("GET", "/v1/kv/no-such-namespace", [], 404),
        ("GET", "/v1/kv/", [], 400),
        ("GET", "/v1/kv", [], 404),
        ("GET", "/v1/nothing", [], 404),
        ("GET", "/v1/recovery?limit=0", [], 422),
        ("HEAD", "/v1/kv/tests/missing", [], 404),
        ("POST", "/v1/kv/tests/missing", [], 405),
        ("PATCH", "/v1/kv/tests/missing", [], 400),
        ("PATCH", "/v1/kv/tests/missing?ttl=5", [], 404),
        ("OPTIONS", "/v1/kv/tests/missing", [], 405),
        ("POST", "/v1/kv/tests:none", [], 404),
        ("POST", "/v1/kv/tests:mget", [], 415),
        ("POST", "/v1/kv/tests:mget", [("Content-Type", "application/json")], 400),
        ("GET", "/v1/kv/tests:mget", [], 405),
        ("POST", "/v1/status", [], 405),
        ("PUT", "/v1/kv/tests/no-length", [], 411),
        ("DELETE", "/v1/kv/tests/missing", [], 404),
        ("DELETE", "/v1/kv/tests/missing", [("If-Match", "nonsense")], 400),
        ("POST", "/v1/recovery/acknowledge", [], 409),
    ],
)
def test_a_connection_lives_on_after_an_error_without_a_body(
    client: RawClient, method: str, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    for _ in range(3):
        answer = client.ask(method, path, headers)
        assert (answer.status, answer.closes) == (status, False)
        assert answer.header("content-type") == "application/problem+json"
        if method != "HEAD":
            assert answer.code
    # Pipelined behind each other too.
    client.send(request(method, path, headers) * 5 + request("GET", "/livez"))
    assert [client.answer(method).status for _ in range(5)] == [status] * 5
    assert client.answer().body == b"alive\n"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/kv/tests/%", [], 400),
        ("/v1/kv/a%20b/c", [], 400),
        ("/v1/kv/tests/x?durability=disk", [], 400),
        ("/v1/kv/tests/x", [("Content-Range", "bytes 0-1/2")], 400),
        ("/v1/kv/tests/x", [("Content-Type", "nonsense")], 400),
        ("/v1/kv/tests/x", [("If-Match", "*")], 412),
        ("/v1/kv/tests/", [], 400),
        ("/v1/kv/tests", [], 405),
        ("/v1/kv/tests:mput", [], 405),
        ("/v1/kv/tests:none", [], 404),
    ],
)
def test_an_unread_body_is_never_the_next_request(
    daemon: Daemon, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask("PUT", "/v1/kv/tests/victim", body=b"alive").status in (201, 204)
        answer = client.ask("PUT", path, headers, SMUGGLED)
        assert (answer.status, answer.closes) == (status, True)
        assert answer.code
        assert client.at_end()
    with RawClient(daemon.address) as client:
        # The client stops in mid-body and goes on as if it had been read.
        declared = [*headers, ("Content-Length", "1000")]
        client.send(head("PUT", path, declared) + SMUGGLED)
        answer = client.answer()
        assert (answer.status, answer.closes) == (status, True)
        client.send(SMUGGLED)
        client.socket.shutdown(1)
        assert client.at_end()
    with RawClient(daemon.address) as client:
        assert client.ask("GET", "/v1/kv/tests/victim").body == b"alive"
    daemon.wait_at_rest()


@pytest.mark.parametrize("method", ["POST", "PATCH", "GET", "DELETE"])
def test_a_body_where_none_is_taken_is_never_the_next_request(daemon: Daemon, method: str) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask("PUT", "/v1/kv/tests/victim", body=b"alive").status in (201, 204)
        answer = client.ask(method, "/v1/kv/tests/missing", [], SMUGGLED)
        assert answer.status == {"POST": 405, "PATCH": 400}.get(method, 404)
    with RawClient(daemon.address) as client:
        assert client.ask("GET", "/v1/kv/tests/victim").body == b"alive"


def test_an_answer_reaches_a_client_that_is_still_sending(daemon: Daemon) -> None:
    """A large body is refused: the client gets the answer although it sends on, not a reset connection."""
    with RawClient(daemon.address) as client:
        client.send(head("PUT", "/v1/kv/tests/x", [("Content-Length", "800000"), ("If-Match", "*")]))
        for _ in range(8):
            client.send(bytes(100_000))
        answer = client.answer()
        assert (answer.status, answer.code) == (412, "precondition_failed")
        assert client.at_end()


def test_lingering_is_bounded(daemon: Daemon) -> None:
    """A client that never ends the body that nobody reads is cut off."""
    with RawClient(daemon.address) as client:
        client.send(head("PUT", "/v1/kv/tests/x", [("Content-Length", str(1 << 30)), ("If-Match", "*")]))
        assert client.answer().status in (412, 413)
        sent = 0
        try:
            while sent < 512 << 20:
                client.send(bytes(1 << 16))
                sent += 1 << 16
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 512 << 20


def test_chunked_bodies_are_refused_unread(daemon: Daemon) -> None:
    with RawClient(daemon.address) as client:
        chunked = head("PUT", "/v1/kv/tests/x", [("Transfer-Encoding", "chunked")])
        client.send(chunked + b"5\r\nhello\r\n0\r\n\r\n" + SMUGGLED)
        answer = client.answer()
        assert (answer.status, answer.code, answer.closes) == (411, "length_required", True)
        assert client.at_end()


def test_two_lengths_are_refused(daemon: Daemon) -> None:
    for headers in (
        [("Content-Length", "5"), ("Transfer-Encoding", "chunked")],
        [("Content-Length", "5"), ("Content-Length", "6")],
        [("Content-Length", "-5")],
        [("Content-Length", "5x")],
        [("Content-Length", "99999999999999999999999")],
    ):
        with RawClient(daemon.address) as client:
            client.send(head("PUT", "/v1/kv/tests/x", headers) + b"hello")
            answer = client.answer()
            assert answer.status in (400, 411)
            assert client.at_end()


def test_a_body_longer_than_declared_is_no_part_of_the_value(daemon: Daemon, key: str) -> None:
    with RawClient(daemon.address) as client:
        client.send(head("PUT", key, [("Content-Length", "5")]) + b"hello")
        assert client.answer().status == 201
        client.send(b" and more of it\r\n\r\n")
        assert client.answer().status == 400
        assert client.at_end()
    with RawClient(daemon.address) as client:
        assert client.ask("GET", key).body == b"hello"


def test_a_client_gone_in_mid_body_leaves_nothing(daemon: Daemon, key: str) -> None:
    before = daemon.wait_at_rest()
    gone = daemon.request_count("PUT", 499)
    for sent in (0, 1, 4095, 70_000, 1_500_000):
        client = RawClient(daemon.address)
        client.send(head("PUT", key, [("Content-Length", "2000000")]) + bytes(sent))
        client.close()
    daemon.wait_for_count("PUT", 499, gone + 5)
    after = daemon.wait_at_rest()
    assert after["capacity"]["slots"]["live"] == before["capacity"]["slots"]["live"]
    assert daemon.http.get(key).status_code == 404


def test_b1_a_client_gone_in_mid_body_leaves_the_old_value(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=b"old").status_code == 201
    gone = daemon.request_count("PUT", 499)
    client = RawClient(daemon.address)
    client.send(head("PUT", key, [("Content-Length", "100000")]) + bytes(50_000))
    client.close()
    daemon.wait_for_count("PUT", 499, gone + 1)
    assert daemon.http.get(key).content == b"old"


def test_a_client_gone_in_mid_answer_leaves_nothing(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=bytes(14 << 20)).status_code == 201
    gone = daemon.request_count("GET", 499)
    for _ in range(3):
        client = RawClient(daemon.address, receive_buffer_bytes=4096)
        client.send(request("GET", key))
        assert client.answer_head().status == 200
        client.close()
    daemon.wait_for_count("GET", 499, gone + 3)
    daemon.wait_at_rest()
    daemon.http.delete(key)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1/kv/tests/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_400(daemon: Daemon, data: bytes) -> None:
    with RawClient(daemon.address) as client:
        client.send(data)
        answer: RawAnswer = client.answer()
        assert (answer.status, answer.code) == (400, "bad_request")
        assert client.at_end()


def test_answers_that_are_due_come_before_the_refusal_of_what_is_no_http(daemon: Daemon, key: str) -> None:
    """A body longer than declared, in one piece with its head: the put gets its own answer, not the next one's."""
    with RawClient(daemon.address) as client:
        client.send(head("PUT", key, [("Content-Length", "5")]) + b"hello and more of it\r\n\r\n")
        assert client.answer().status == 201
        refusal = client.answer()
        assert (refusal.status, refusal.code) == (400, "bad_request")
        assert client.at_end()
    with RawClient(daemon.address) as client:
        client.send(request("GET", key) * 20 + b"nonsense\r\n\r\n")
        assert [client.answer().body for _ in range(20)] == [b"hello"] * 20
        assert client.answer().code == "bad_request"
        assert client.at_end()


def test_a_body_that_breaks_off_into_no_http_leaves_nothing(daemon: Daemon, key: str) -> None:
    with RawClient(daemon.address) as client:
        client.send(head("PUT", key, [("Transfer-Encoding", "chunked")]) + b"zz\r\n\r\n")
        assert client.answer().status in (400, 411)
        assert client.at_end()
    daemon.wait_at_rest()


def test_http_1_0_is_served(daemon: Daemon, key: str) -> None:
    for method, body, status in (("PUT", b"hello", 201), ("GET", b"", 200)):
        with RawClient(daemon.address) as client:
            client.send(
                b"%s %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (method.encode(), key.encode(), len(body)) + body
            )
            answer = client.answer(method)
            assert answer.status == status
            assert answer.closes
            assert client.at_end()


UPGRADE = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "")]


def test_an_offer_to_upgrade_is_ignored(client: RawClient, key: str) -> None:
    for _ in range(3):
        assert client.ask("GET", key, UPGRADE).status == 404
        assert client.ask("GET", "/livez", UPGRADE).status == 200
    assert client.ask("PUT", key, body=b"hello").status == 201


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/kv/tests/k"), ("POST", "/v1/kv/tests/k"), ("POST", "/v1/checkpoint")]
)
def test_a_body_behind_an_offer_to_upgrade_is_never_the_next_request(daemon: Daemon, method: str, path: str) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask("PUT", "/v1/kv/tests/victim", body=b"alive").status in (201, 204)
        client.send(head(method, path, [*UPGRADE, ("Content-Length", str(len(SMUGGLED)))]))
        client.send(SMUGGLED)
        answer = client.answer()
        assert (answer.status, answer.closes) == (405 if "kv" in path and method == "POST" else 400, True)
        assert client.at_end()
    with RawClient(daemon.address) as client:
        assert client.ask("GET", "/v1/kv/tests/victim").body == b"alive"
