"""The way past ASGI: bodies that go straight to their buffers, answers straight from them, in order with all others.

Over TCP, a Unix socket and TLS; the latter two on the thread engine, the first on what the machine has.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from rawblockd.receiver import READ_BYTES
from tests.access.servers import make_certificate
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head, request

MIB = 1 << 20
SIZES = (0, 1, 4096, READ_BYTES - 200, READ_BYTES, READ_BYTES + 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 7)
"""Around what one read takes, and around what one transfer to the device takes."""


@dataclass(frozen=True)
class Door:
    daemon: Daemon
    connect: Callable[[], RawClient]


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    folder = tmp_path_factory.mktemp("doors")
    certificate, key = make_certificate(folder, "door")
    path = str(folder / "s")
    flags = ("--tls-certificate", str(certificate), "--tls-key", str(key), "--io-engine", "threads")
    with Daemon(folder / "cache.img", *flags, uds=path) as running:
        context = ssl.create_default_context(cafile=str(certificate))
        yield {
            "unix": Door(running, lambda: RawClient(path)),
            "tls": Door(running, lambda: RawClient(running.address, context=context)),
        }


@pytest.fixture(params=["tcp", "unix", "tls"])
def door(request: pytest.FixtureRequest) -> Door:
    if request.param == "tcp":
        daemon: Daemon = request.getfixturevalue("daemon")
        return Door(daemon, lambda: RawClient(daemon.address))
    threaded: dict[str, Door] = request.getfixturevalue("threaded")
    return threaded[request.param]


@contextlib.contextmanager
def sending(client: RawClient, pieces: Sequence[bytes]) -> Iterator[None]:
    """Send beside what is read: a server that answers takes no more while its answers aren't taken."""

    def send() -> None:
        for piece in pieces:
            client.send(piece)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


def body_of(size_bytes: int, seed: bytes = b"") -> bytes:
    return hashlib.shake_128(b"%d %b" % (size_bytes, seed)).digest(size_bytes)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_body_arrives_exactly_and_what_follows_it_is_the_next_request(door: Door, key: str, size_bytes: int) -> None:
    """No byte of a body is taken for a request, and none of a request for the body: the reading of one ends where the
    parser begins again."""
    for round_number in range(3):
        body = body_of(size_bytes, b"%d" % round_number)
        with door.connect() as client:
            client.send(request("PUT", key, body=body) + request("GET", key) + request("GET", "/livez"))
            assert client.answer("PUT").status == (204 if round_number else 201)
            assert client.answer().body == body
            assert client.answer().body == b"alive\n"
            assert client.ask("GET", key).body == body


@pytest.mark.parametrize("seed", range(3))
def test_a_body_arrives_exactly_in_whatever_pieces_it_comes(door: Door, key: str, seed: int) -> None:
    rng = random.Random(seed)
    bodies = [body_of(size, b"pieces") for size in rng.sample(SIZES, 5)]
    sent = b"".join(request("PUT", key, body=body) + request("GET", key) for body in bodies)
    cuts = sorted({0, len(sent), *(rng.randrange(len(sent)) for _ in range(40))})
    with door.connect() as client, sending(client, [sent[a:b] for a, b in itertools.pairwise(cuts)]):
        for body in bodies:
            assert client.answer("PUT").status in (201, 204)
            assert client.answer().body == body


def test_a_body_that_was_asked_for_arrives_exactly(door: Door, key: str) -> None:
    body = body_of(2 * MIB)
    with door.connect() as client:
        client.send(head("PUT", key, [("Content-Length", str(len(body))), ("Expect", "100-continue")]))
        assert client.answer().status == 100
        client.send(body + request("HEAD", key))
        assert client.answer("PUT").status == 201
        assert client.answer("HEAD").header("content-length") == str(len(body))
        assert client.ask("GET", key).body == body


def test_a_digest_is_verified_of_a_body_that_passes_the_parser(door: Door, key: str) -> None:
    wrong = [("Content-Digest", "sha-256=:" + "A" * 43 + "=:")]
    with door.connect() as client:
        answer = client.ask("PUT", key, wrong, body_of(2 * MIB))
        assert (answer.status, answer.code, answer.closes) == (400, "digest_mismatch", False)
        assert client.ask("GET", key).status == 404


def test_answers_come_in_the_order_of_the_requests_whoever_answers_them(door: Door, key: str) -> None:
    """Values are answered in front of ASGI, all else by the framework; both wait for each other."""
    body = body_of(MIB)
    asked = [
        ("GET", "/livez", None),
        ("PUT", key, body),
        ("GET", "/livez", None),
        ("GET", key, None),
        ("HEAD", key, None),
        ("GET", "/livez", None),
        ("GET", "/v1/kv/tests/absent", None),
        ("PUT", key, body[::-1]),
        ("GET", key, None),
    ] * 3
    with door.connect() as client, sending(client, [request(method, path, body=sent) for method, path, sent in asked]):
        for (method, path, _), (_, _, put) in zip(asked, _last_puts(asked), strict=True):
            answer = client.answer(method)
            if path == "/livez":
                assert answer.body == b"alive\n"
            elif path != key:
                assert answer.status == 404
            elif method == "GET":
                assert answer.body == put
            else:
                assert answer.status in (200, 201, 204)


def _last_puts(asked: list[tuple[str, str, bytes | None]]) -> Iterator[tuple[str, str, bytes | None]]:
    last = asked[0]
    for one in asked:
        last = one if one[0] == "PUT" else last
        yield last


def test_a_thousand_pipelined_requests_are_answered_in_order(door: Door) -> None:
    paths = [f"/v1/kv/tests/none-{number}" if number % 7 else "/livez" for number in range(1000)]
    with door.connect() as client:
        client.send(b"".join(request("GET", path) for path in paths))
        assert [client.answer().status for _ in paths] == [404 if number % 7 else 200 for number in range(1000)]


@pytest.mark.parametrize("sent_bytes", [1, READ_BYTES, MIB, 3 * MIB])
def test_a_client_gone_within_a_body_leaves_nothing(door: Door, key: str, sent_bytes: int) -> None:
    gone = door.daemon.request_count("PUT", 499)
    for end in (RawClient.close, RawClient.reset):
        client = door.connect()
        # Asked for the body: then the put has begun, and a reset can't overtake its head.
        client.send(head("PUT", key, [("Content-Length", str(4 * MIB)), ("Expect", "100-continue")]))
        assert client.answer().status == 100
        client.send(bytes(sent_bytes))
        end(client)
    door.daemon.wait_for_count("PUT", 499, gone + 2)
    door.daemon.wait_at_rest()
    with door.connect() as other:
        assert other.ask("GET", key).status == 404


def test_a_reset_within_an_answer_leaves_nothing(door: Door, key: str) -> None:
    with door.connect() as client:
        assert client.ask("PUT", key, body=body_of(14 * MIB)).status == 201
    gone = door.daemon.request_count("GET", 499)
    for end in (RawClient.close, RawClient.reset):
        client = door.connect()
        client.send(request("GET", key))
        assert client.answer_head().status == 200
        end(client)
    door.daemon.wait_for_count("GET", 499, gone + 2)
    door.daemon.wait_at_rest()
    with door.connect() as client:
        assert client.ask("DELETE", key).status == 204


def test_b1_slow_readers_get_their_values_whole_while_buffers_and_slots_are_reused(door: Door, key: str) -> None:
    """Answers that the clients have not read are on their way while the buffers they came from, and the slots, serve
    others: no byte of another value is ever among theirs."""
    values = {f"{key}-{size}": body_of(size, b"old") for size in (4096, READ_BYTES, 900_000, 2 * MIB)}
    with door.connect() as other:
        for path, body in values.items():
            assert other.ask("PUT", path, body=body).status == 201
        slow = [(door.connect(), path) for path in values for _ in range(3)]
        for client, path in slow:
            client.send(request("GET", path) * 5)
        firsts = [client.answer_head() for client, _ in slow]
        assert {answer.status for answer in firsts} == {200}
        for round_number in range(8):
            for path, body in values.items():
                assert other.ask("PUT", path, body=bytes([round_number]) * len(body)).status == 204
                assert other.ask("GET", path).body == bytes([round_number]) * len(body)
        for client, path in slow:
            size = len(values[path])
            bodies = [client.read(size), *(client.answer().body for _ in range(4))]
            assert bodies[0] == values[path]
            assert all(body == values[path] or body == body[:1] * size for body in bodies), path
            client.close()
    door.daemon.wait_at_rest()


def test_a_connection_ends_behind_an_answer_if_the_client_asked_for_it(door: Door, key: str) -> None:
    body = body_of(2 * MIB)
    for method, sent in (("PUT", body), ("GET", None)):
        with door.connect() as client:
            answer = client.ask(method, key, [("Connection", "close")], sent)
            assert answer.closes
            assert answer.body == (b"" if sent else body)
            assert client.at_end()


@pytest.mark.parametrize("following", ["/v1/kv/tests/absent", "/livez"])
def test_the_end_of_a_body_may_come_with_the_next_request(door: Door, following: str) -> None:
    body = b'{"keys": ["YWJzZW50"]}'
    fields = [("Content-Type", "application/json"), ("Expect", "100-continue")]
    framings = (
        ([("Content-Length", str(len(body)))], body),
        ([("Transfer-Encoding", "chunked")], b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)),
    )
    for framing, sent in framings:
        with door.connect() as client:
            client.send(head("POST", "/v1/kv/tests:mget", fields + framing))
            assert client.answer().status == 100  # the handler waits for the body
            client.send(sent + request("GET", following))
            assert client.answer().status == 200
            assert client.answer().status == (200 if following == "/livez" else 404)


def test_a_body_that_breaks_the_form_of_http_is_answered(door: Door) -> None:
    """Also where the handler ends at once, because its body will never be complete."""
    fields = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked"), ("Expect", "100-continue")]
    with door.connect() as client:
        client.send(head("POST", "/v1/kv/tests:mget", fields))
        assert client.answer().status == 100
        client.send(b"1\r\n{\r\nno length\r\n")
        answer = client.answer()
        assert (answer.status, answer.code, answer.closes) == (400, "bad_request", True)
        assert client.at_end()


@pytest.mark.parametrize("junk", [False, True])
def test_a_connection_goes_on_behind_answers_that_were_taken_late(daemon: Daemon, key: str, junk: bool) -> None:
    """The last of pipelined answers is given before the client has taken it: nothing is in line then that would make
    the server read on."""
    body = body_of(15 * MIB // 8)
    with RawClient(daemon.address, receive_buffer_bytes=8192) as client:
        assert client.ask("PUT", key, body=body).status == 201
        client.send(request("GET", key) * 4 + (b"JUNK JUNK\r\n\r\n" if junk else b""))
        for _ in range(4):
            assert client.answer().body == body
        if junk:
            assert client.answer().status == 400
        else:
            assert client.ask("HEAD", key).status == 200
