"""``GET /v1/events`` on a running daemon: what a client reads, and how a stream begins and ends."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api.access.roles import Role
from storage.events import SUBSCRIBERS_MAX
from tests.access.servers import Guarded, Holder
from tests.http.daemon import Daemon
from tests.support.daemon_process import DaemonProcess

DEADLINE_SECONDS = 30.0


@dataclass
class Block:
    """One block of the stream."""

    name: str = ""
    id: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def read_blocks(lines: Iterator[str]) -> Iterator[Block]:
    """The blocks that a browser would hand on, or that only carry an id."""
    block = Block()
    for line in lines:
        name, _, value = line.partition(": ")
        if not line:
            if block.id or block.name:
                yield block
            block = Block()
        elif name == "event":
            block.name = value
        elif name == "id":
            block.id = value
        elif name == "data":
            block.data = json.loads(value)


def ask(daemon: Daemon, **parameters: str | int) -> list[Block]:
    """What there is, without waiting."""
    answer = daemon.http.get("/v1/events", params={"wait": 0, **parameters})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.startswith("retry: ")
    return list(read_blocks(iter(answer.text.split("\n"))))


def told(blocks: list[Block]) -> list[tuple[str, str | None]]:
    return [(block.name, block.data.get("key")) for block in blocks if block.name in ("stored", "deleted", "wiped")]


@contextmanager
def following(daemon: Daemon, **parameters: str | int) -> Iterator[Iterator[Block]]:
    """A stream that goes on; its first block was read."""
    with daemon.http.stream("GET", "/v1/events", params=dict(parameters)) as answer:
        assert answer.status_code == 200
        blocks = read_blocks(answer.iter_lines())
        assert next(blocks).name == "position"
        yield blocks


def next_told(blocks: Iterator[Block]) -> Block:
    return next(block for block in blocks if block.name)


def test_what_happens_is_told_at_once(daemon: Daemon) -> None:
    with following(daemon, namespace="live") as blocks:
        stored = daemon.http.put("/v1/kv/live/a%2Fb", content=b"12345", params={"ttl": 100})
        event = next_told(blocks)
        assert event.name == "stored"
        assert event.data["etag"] == stored.headers["etag"]
        assert (event.data["namespace"], event.data["key"], event.data["size"]) == ("live", "a/b", 5)
        assert 90 < event.data["expires_at"] - time.time() < 110
        replaced = daemon.http.put("/v1/kv/live/a%2Fb", content=b"123")
        event = next_told(blocks)
        assert event.data["etag"] == replaced.headers["etag"]
        assert event.data["replaced"] == stored.headers["etag"]
        assert "expires_at" not in event.data
        daemon.http.delete("/v1/kv/live/a%2Fb")
        event = next_told(blocks)
        assert (event.name, event.data["reason"], event.data["etag"]) == ("deleted", "client", replaced.headers["etag"])
        daemon.http.put("/v1/kv/live/%ff", content=b"")
        event = next_told(blocks)
        assert event.data["key_base64"] == "/w=="
        daemon.http.delete("/v1/namespaces/live")
        event = next_told(blocks)
        assert (event.name, event.data["namespace"]) == ("wiped", "live")


def test_a_client_that_comes_back_misses_nothing(daemon: Daemon) -> None:
    [position, _] = ask(daemon)
    for number in range(5):
        daemon.http.put(f"/v1/kv/back/{number}", content=b"x")
    blocks = ask(daemon, since=position.id)
    assert told(blocks) == [("stored", str(number)) for number in range(5)]
    third = [block for block in blocks if block.name == "stored"][2]
    assert told(ask(daemon, since=third.id)) == [("stored", "3"), ("stored", "4")]
    assert told(ask(daemon, since=third.data["seq"])) == [("stored", "3"), ("stored", "4")]
    again = daemon.http.get("/v1/events?wait=0&since=0", headers={"Last-Event-ID": third.id})
    assert told(list(read_blocks(iter(again.text.split("\n"))))) == [("stored", "3"), ("stored", "4")]
    assert told(ask(daemon, since=blocks[-1].id)) == []


def test_a_batch_is_told_entry_by_entry(daemon: Daemon) -> None:
    [position, _] = ask(daemon)
    entries = [{"key": str(number), "value": ""} for number in range(5)]
    daemon.http.post("/v1/kv/batch:mput", json={"entries": entries})
    daemon.http.post("/v1/kv/batch:mdelete", json={"keys": ["0", "1"]})
    found = told(ask(daemon, since=position.id))
    assert sorted(found[:5]) == [("stored", str(number)) for number in range(5)]
    assert sorted(found[5:]) == [("deleted", "0"), ("deleted", "1")]


def test_a_filter_does_not_make_one_fall_behind(daemon: Daemon) -> None:
    """The last id is that of what was passed over."""
    [position, _] = ask(daemon)
    daemon.http.put("/v1/kv/others/a", content=b"x")
    blocks = ask(daemon, since=position.id, namespace="nobody")
    assert told(blocks) == []
    assert blocks[-1].name == ""
    assert int(blocks[-1].id.partition("-")[0]) > int(position.id.partition("-")[0])


def test_the_last_events(daemon: Daemon) -> None:
    for number in range(5):
        daemon.http.put(f"/v1/kv/last/{number}", content=b"x")
    assert told(ask(daemon, last=2)) == [("stored", "3"), ("stored", "4")]
    daemon.http.put("/v1/kv/other/x", content=b"x")
    assert told(ask(daemon, last=2, namespace="last")) == [("stored", "3"), ("stored", "4")]


@pytest.mark.parametrize(
    ("since", "reason"),
    [("9999999999", "ahead"), ("1-999-00000000", "other_device")],
)
def test_what_cannot_go_on_is_told_to_resync(daemon: Daemon, since: str, reason: str) -> None:
    blocks = ask(daemon, since=since)
    resync = next(block for block in blocks if block.name == "resync")
    assert resync.data["reason"] == reason
    assert told(ask(daemon, since=resync.id)) == []
    assert f'rawblockd_event_resyncs_total{{reason="{reason}"}} 0.0' not in daemon.http.get("/metrics").text


@pytest.mark.parametrize(
    "query",
    ["since=x", "since=-1", "since=1-2", "namespace=a%2Fb", "keys=2", "last=1001", "wait=-1", "wait=x", "last=-1"],
)
def test_odd_parameters_are_refused(daemon: Daemon, query: str) -> None:
    answer = daemon.http.get(f"/v1/events?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_head_has_no_stream(daemon: Daemon) -> None:
    answer = daemon.http.head("/v1/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_keys_are_read_on_request(daemon: Daemon) -> None:
    """An entry that expired is told without its key, unless somebody asks for it."""
    daemon.http.put("/v1/kv/expiring/the-key", content=b"x", params={"ttl": 1})
    with following(daemon, namespace="expiring", keys=1, last=1) as blocks:
        assert next_told(blocks).name == "stored"
        event = next_told(blocks)
        assert (event.name, event.data["reason"], event.data.get("key")) == ("deleted", "expired", "the-key")
    assert "key" not in next(b for b in ask(daemon, last=1, namespace="expiring") if b.name == "deleted").data


def test_a_token_follows_its_namespaces_alone(tmp_path: Path) -> None:
    operator = Holder("operator", Role.OPERATOR)
    reader = Holder("reader", Role.READER, ("mine",))
    with Guarded(tmp_path, holders=(operator, reader)) as guarded:
        for namespace in ("mine", "theirs"):
            assert guarded.ask("PUT", f"/v1/kv/{namespace}/k", body=b"x", holder=operator).status == 201
        assert guarded.ask("GET", "/v1/events?wait=0&since=0").status == 401
        url = f"http://127.0.0.1:{guarded.process.port}/v1/events?wait=0&since=0"
        for holder, namespaces in ((operator, ["mine", "theirs"]), (reader, ["mine"])):
            answer = httpx2.get(url, headers=dict([holder.bearer]))
            blocks = read_blocks(iter(answer.text.split("\n")))
            assert [block.data["namespace"] for block in blocks if block.name == "stored"] == namespaces
        answer = httpx2.get(f"{url}&namespace=theirs", headers=dict([reader.bearer]))
        assert "theirs" not in answer.text
        assert guarded.process.stop() == 0


def test_l1_so_many_may_follow(daemon: Daemon) -> None:
    opened = []
    try:
        for _ in range(SUBSCRIBERS_MAX):
            sock = socket.create_connection(daemon.address)
            opened.append(sock)
            sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"
        refused = daemon.http.get("/v1/events")
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_subscribers")
        assert int(refused.headers["retry-after"]) > 0
        assert f"rawblockd_event_subscribers {SUBSCRIBERS_MAX}.0" in daemon.http.get("/metrics").text
    finally:
        for sock in opened:
            sock.close()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "rawblockd_event_subscribers 0.0" not in daemon.http.get("/metrics").text:
        assert time.monotonic() < deadline, "a client that left keeps its place"


def test_l1_a_client_that_does_not_read_is_cut_off_and_costs_no_memory(tmp_path: Path) -> None:
    """It falls out of a small ring; what waits for it is what sockets hold."""
    arguments = ("--event-buffer-bytes", "1MiB", "--send-timeout-seconds", "0.2")
    with Daemon(tmp_path / "cache.img", *arguments, size="64MiB") as daemon:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(daemon.address)
            sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"
            deadline = time.monotonic() + DEADLINE_SECONDS
            entries = [{"key": f"{number:03}{'k' * 1000}", "value": ""} for number in range(200)]
            while "rawblockd_event_subscribers 0.0" not in daemon.http.get("/metrics").text:
                assert time.monotonic() < deadline, "who does not read is not cut off"
                assert daemon.http.post("/v1/kv/slow:mput", json={"entries": entries}).status_code == 200
        assert any(block.name == "resync" for block in ask(daemon, since=0))


def test_a_stop_ends_the_streams_and_does_not_wait_for_them(tmp_path: Path) -> None:
    """Also for one that does not read; afterwards the client goes on where it left off."""
    device = str(tmp_path / "cache.img")
    arguments = ("--device", device, "--create", "--size", "64MiB")
    with DaemonProcess(tmp_path / "log", *arguments) as process:
        process.wait_ready()
        url = f"http://127.0.0.1:{process.port}"
        with httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS) as client:
            client.put("/v1/kv/n/before", content=b"x")
            with client.stream("GET", "/v1/events", params={"last": 1}) as answer, stalled(process.port):
                blocks = read_blocks(answer.iter_lines())
                while (block := next(blocks)).name != "stored":
                    pass
                process.process.send_signal(signal.SIGTERM)
                rest = list(blocks)
                assert [b.name for b in rest if b.name] == []
                assert process.wait() == 0
    assert "requests cut off" not in process.log_text()
    with DaemonProcess(tmp_path / "log2", *arguments) as process:
        process.wait_ready()
        process.request("PUT", "/v1/kv/n/after", b"x")
        _, body = process.get(f"/v1/events?wait=0&since={block.id}")
        found = list(read_blocks(iter(body.decode().split("\n"))))
        assert told(found) == [("stored", "after")]
        assert process.stop() == 0


@contextmanager
def stalled(port: int) -> Iterator[None]:
    """A client that asks for the events and never reads."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET /v1/events?last=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(1)
        yield
