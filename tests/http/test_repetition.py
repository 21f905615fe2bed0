"""Ten thousand of each bad input leave the daemon as it was (A1, L1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head, request

REPETITIONS = 10_000
GROWTH_MAX_BYTES = 8 << 20
"""Far below a kilobyte kept of each of ten thousand requests."""
PASSES_MAX = 3
"""Memory is judged again after another pass: an allocator and a collector reach a level once, a leak grows on."""
BATCH = 100
MSGPACK = ("Content-Type", "application/msgpack")

KEPT = {
    "key of no bytes": (request("GET", "/v1/kv/tests/"), 400),
    "key of 1025 bytes": (request("GET", "/v1/kv/tests/" + "k" * 1025), 400),
    "malformed escape": (request("GET", "/v1/kv/tests/%zz"), 400),
    "bad namespace": (request("GET", "/v1/kv/a%00b/k"), 400),
    "dots": (request("GET", "/v1/kv/tests/.."), 404),
    "escaped slash": (request("GET", "/v1/kv/tests/%2F"), 404),
    "nul": (request("GET", "/v1/kv/tests/%00"), 404),
    "not utf-8": (request("GET", "/v1/kv/tests/%ff%fe"), 404),
    "unknown parameter": (request("GET", "/v1/kv/tests/k?x=1"), 400),
    "put without length": (request("PUT", "/v1/kv/tests/k"), 411),
    "odd condition": (request("DELETE", "/v1/kv/tests/k", [("If-Match", "odd")]), 400),
    "wrong digest": (
        request("PUT", "/v1/kv/tests/k", [("Content-Digest", f"sha-256=:{'A' * 43}=:")], b"body"),
        400,
    ),
    "unsatisfiable range": (request("GET", "/v1/kv/tests/present", [("Range", "bytes=99-")]), 416),
    "wrong method": (request("POST", "/v1/kv/tests/k"), 405),
    "unknown route": (request("GET", "/v1/kv/tests:none"), 404),
    "namespace not there": (request("GET", "/v1/kv/no-such-namespace"), 404),
    "odd listing": (request("GET", "/v1/kv/tests?cursor=odd"), 400),
    "broken batch": (request("POST", "/v1/kv/tests:mput", [MSGPACK], b"\x80\x81\xa3key\xc4\x01k\xc4\x09half"), 400),
    "batch of misses": (request("POST", "/v1/kv/tests:mget", [MSGPACK], b"\x81\xa4keys\x91\xc4\x01k"), 200),
    "framework 404": (request("GET", "/nothing"), 404),
    "framework 422": (request("GET", "/v1/recovery?limit=x"), 422),
}
"""Requests after which the connection lives on, and the status of their answer."""

CLOSED = {
    "too large": (head("PUT", "/v1/kv/tests/k", [("Content-Length", str(1 << 40))]), 413),
    "chunked": (head("PUT", "/v1/kv/tests/k", [("Transfer-Encoding", "chunked")]) + b"1\r\nx\r\n0\r\n\r\n", 411),
    "failed condition": (request("PUT", "/v1/kv/tests/k", [("If-Match", "*")], b"body"), 412),
    "content range": (request("PUT", "/v1/kv/tests/k", [("Content-Range", "bytes 0-3/9")], b"body"), 400),
    "bad metadata": (request("PUT", "/v1/kv/tests/k", [("Content-Type", "odd")], b"body"), 400),
    "no http": (b"\x00\r\n\r\n", 400),
}
"""Requests whose answer ends the connection."""


def _state(daemon: Daemon) -> dict[str, object]:
    status = daemon.wait_at_rest()
    return {"slots": status["capacity"]["slots"], "namespaces": status["namespaces"], "buffers": status["buffers"]}


def _unchanged(daemon: Daemon, repeat: Callable[[int], None]) -> None:
    assert daemon.http.put("/v1/kv/tests/present", content=b"present").status_code in (201, 204)
    repeat(BATCH)
    before, files, resident = _state(daemon), daemon.open_files(), daemon.resident_bytes()
    growth = GROWTH_MAX_BYTES
    for _ in range(PASSES_MAX):
        if growth < GROWTH_MAX_BYTES:
            break
        repeat(REPETITIONS)
        assert _state(daemon) == before
        assert daemon.open_files() <= files + 1  # a connection of the test's own client may have been renewed
        now = daemon.resident_bytes()
        growth, resident = now - resident, now
    assert growth < GROWTH_MAX_BYTES


@pytest.mark.parametrize("name", KEPT)
def test_repeated_on_one_connection(daemon: Daemon, name: str) -> None:
    data, status = KEPT[name]
    with RawClient(daemon.address) as client:
        client.send(data)
        assert client.answer().status == status
        size = client.answered_bytes
        line = b"HTTP/1.1 %d " % status

        def repeat(times: int) -> None:
            for _ in range(times // BATCH):
                client.send(data * BATCH)
                # Alike but for the date: taken apart by their size, which costs a hundredth of reading each field.
                answers = client.read(size * BATCH)
                assert all(answers.startswith(line, number * size) for number in range(BATCH)), answers

        _unchanged(daemon, repeat)


@pytest.mark.parametrize("name", CLOSED)
def test_repeated_on_a_connection_each(daemon: Daemon, name: str) -> None:
    data, status = CLOSED[name]

    def repeat(times: int) -> None:
        for _ in range(times):
            with RawClient(daemon.address) as client:
                client.send(data)
                if name == "too large":
                    client.socket.shutdown(1)  # it gives up its body at once
                assert client.answer().status == status
                assert client.at_end()

    _unchanged(daemon, repeat)


@pytest.mark.parametrize("declared", [1, 100_000])
def test_repeatedly_gone_in_mid_body(daemon: Daemon, declared: int) -> None:
    def repeat(times: int) -> None:
        gone = daemon.request_count("PUT", 499)
        data = head("PUT", "/v1/kv/tests/k", [("Content-Length", str(declared + 1))]) + bytes(declared)
        for _ in range(times):
            client = RawClient(daemon.address)
            client.send(data)
            client.close()
        daemon.wait_for_count("PUT", 499, gone + times)

    _unchanged(daemon, repeat)
