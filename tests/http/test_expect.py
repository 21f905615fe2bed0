"""``Expect: 100-continue`` and an answer that comes without the body: what the client then sends is never a request.

RFC 9110, 10.1.1: a client may send the body after all, or go without it. As long as the connection goes on, the bytes
behind the head are the body that its framing declares, whatever they look like; else the connection ends.
"""

from __future__ import annotations

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawAnswer, RawClient, head, request

VICTIM = "/v1/kv/tests/expect-victim"
SMUGGLED = request("PUT", VICTIM, body=b"smuggled")
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
EXPECTS = ("Expect", "100-continue")
LENGTH = ("Content-Length", str(len(SMUGGLED)))
REQUESTS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "a get that hits": ("GET", "/v1/kv/tests/expect-there", []),
    "a get that misses": ("GET", "/v1/kv/tests/expect-absent", []),
    "a head": ("HEAD", "/v1/kv/tests/expect-there", []),
    "a deletion": ("DELETE", "/v1/kv/tests/expect-absent", []),
    "a put refused for its condition": ("PUT", "/v1/kv/tests/expect-there", [("If-None-Match", "*")]),
    "a put refused for its key": ("PUT", "/v1/kv/tests/" + "k" * 1025, []),
    "a method that is not allowed": ("POST", "/v1/kv/tests/expect-there", []),
    "a batch of another type": ("POST", "/v1/kv/tests:mget", [("Content-Type", "text/plain")]),
    "a listing": ("GET", "/v1/kv/tests?limit=1", []),
    "the framework": ("GET", "/livez", []),
    "the framework, not found": ("POST", "/v1/nothing", []),
    "the framework, not allowed": ("PUT", "/v1/status", []),
}


def final_answer(client: RawClient, method: str) -> RawAnswer:
    """Interim answers ask for the body; the test may have been asked before it could be refused."""
    answer = client.answer(method)
    while answer.status == 100:
        answer = client.answer(method)
    return answer


@pytest.fixture
def victim(daemon: Daemon) -> Daemon:
    with RawClient(daemon.address) as client:
        assert client.ask("PUT", VICTIM, body=b"alive").status in (201, 204)
        assert client.ask("PUT", "/v1/kv/tests/expect-there", body=b"there").status in (201, 204)
    return daemon


def check_unharmed(daemon: Daemon) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask("GET", VICTIM).body == b"alive"


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_body_sent_after_the_answer_all_the_same_is_no_request(victim: Daemon, name: str, framing: str) -> None:
    method, path, headers = REQUESTS[name]
    framed = LENGTH if framing == "length" else ("Transfer-Encoding", "chunked")
    body = SMUGGLED if framing == "length" else CHUNKED
    with RawClient(victim.address) as client:
        client.send(head(method, path, [*headers, framed, EXPECTS]))
        answer = final_answer(client, method)
        try:
            client.send(body + request("GET", "/v1/kv/tests/expect-next"))
        except ConnectionError:
            assert answer.closes
        if answer.closes:
            assert client.read_to_end() == b""
        else:
            assert client.answer().code == "not_found"  # the one request behind the body, and nothing before it
    check_unharmed(victim)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_body_that_never_comes_makes_no_request_out_of_what_follows(victim: Daemon, name: str) -> None:
    """A client that goes on without it is out of step: what it sends is the body, or the connection has ended."""
    method, path, headers = REQUESTS[name]
    with RawClient(victim.address) as client:
        client.send(head(method, path, [*headers, LENGTH, EXPECTS]))
        answer = final_answer(client, method)
        try:
            client.send(SMUGGLED)
        except ConnectionError:
            assert answer.closes
        if answer.closes:
            assert client.read_to_end() == b""
        else:
            assert client.ask("GET", "/v1/kv/tests/expect-next").code == "not_found"
    check_unharmed(victim)
