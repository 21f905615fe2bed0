"""A client that has sent all it wants to say and says so (a half-closed connection) still gets its answers.

Programs that write a request and then shut their side down, as ``nc -N`` does, are whole clients of HTTP. Over TLS
there is no such thing: its close takes both sides. One that ends in the middle of a request has left.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head, request

MIB = 1 << 20
VALUE = bytes(range(256)) * 4096 * 3
Connect = Callable[[], RawClient]


@pytest.fixture(scope="module")
def unix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("unix")
    path = str(folder / "s")
    with Daemon(folder / "cache.img", "--io-engine", "threads", uds=path):
        yield path


@pytest.fixture(params=["tcp", "unix"])
def connect(request: pytest.FixtureRequest) -> Connect:
    if request.param == "tcp":
        daemon: Daemon = request.getfixturevalue("daemon")
        return lambda: RawClient(daemon.address)
    path: str = request.getfixturevalue("unix")
    return lambda: RawClient(path)


def half_closed(connect: Connect, sent: bytes) -> RawClient:
    client = connect()
    client.send(sent)
    client.socket.shutdown(socket.SHUT_WR)
    return client


@pytest.mark.parametrize("size_bytes", [0, 100, 60_000, len(VALUE)])
def test_a_put_and_a_get_are_answered_and_then_the_connection_ends(connect: Connect, key: str, size_bytes: int) -> None:
    with half_closed(connect, request("PUT", key, body=VALUE[:size_bytes])) as client:
        assert client.answer().status == 201
        assert client.at_end()
    with half_closed(connect, request("GET", key)) as client:
        answer = client.answer()
        assert (answer.status, answer.body) == (200, VALUE[:size_bytes])
        assert client.at_end()


def test_all_of_several_requests_in_one_go_are_answered_in_order(connect: Connect, key: str) -> None:
    sent = [request("PUT", key, body=VALUE), request("GET", "/livez"), request("GET", key), request("DELETE", key)]
    with half_closed(connect, b"".join(sent)) as client:
        answers = [client.answer() for _ in sent]
        assert [answer.status for answer in answers] == [201, 200, 200, 204]
        assert answers[2].body == VALUE
        assert client.at_end()


@pytest.mark.parametrize("path", ["/livez", "/v1/status", "/v1/nothing"])
def test_what_the_framework_answers_is_answered_too(connect: Connect, path: str) -> None:
    with half_closed(connect, request("GET", path)) as client:
        assert client.answer().status == (404 if path == "/v1/nothing" else 200)
        assert client.at_end()


def test_an_answer_larger_than_the_kernel_takes_comes_whole(daemon: Daemon, key: str) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask("PUT", key, body=VALUE * 4).status == 201
    with RawClient(daemon.address, receive_buffer_bytes=8192) as client:
        client.send(request("GET", key))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.answer().body == VALUE * 4
        assert client.at_end()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /livez HT",
        head("PUT", "/v1/kv/tests/half", [("Content-Length", "1000")]) + bytes(999),
        head("PUT", "/v1/kv/tests/half", [("Content-Length", str(3 * MIB))]) + bytes(2 * MIB),
        head("POST", "/v1/kv/tests:mget", [("Content-Type", "application/json"), ("Content-Length", "9")]) + b"{",
        head("PUT", "/v1/namespaces/half-closed", [("Content-Length", "9")]) + b"{",
    ],
    ids=["nothing", "head", "body", "large body", "batch", "framework"],
)
def test_who_ends_in_the_middle_of_a_request_has_left(connect: Connect, sent: bytes) -> None:
    with half_closed(connect, sent) as client:
        assert client.at_end()
    with connect() as client:
        assert client.ask("GET", "/v1/kv/tests/half").status == 404


def test_who_ends_in_the_middle_of_a_later_request_has_left(daemon: Daemon, key: str) -> None:
    """Also where its head is known from the one before, so that its body goes past the parser."""
    sent = request("PUT", key, body=VALUE[:100_000])
    with RawClient(daemon.address) as client:
        for status in (201, 204, 204):
            client.send(sent)
            assert client.answer().status == status
        client.send(sent[:-1])
        client.socket.shutdown(socket.SHUT_WR)
        assert client.at_end()


def test_events_end_with_the_client_that_follows_them(daemon: Daemon) -> None:
    """An answer without an end is for who stays: it would else go on until somebody finds that nobody reads it."""
    with RawClient(daemon.address) as client:
        client.send(request("GET", "/v1/events?since=0"))
        assert client.answer_head().status == 200
        client.socket.shutdown(socket.SHUT_WR)
        client.read_to_end()
