"""Snapshots over HTTP: one moment of a namespace, exported whole however long it takes (B1, L3)."""

from __future__ import annotations

import hashlib
import random
import re
import struct
import threading
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from tests.http.batches import HEADERS, entries, entry, pack, results
from tests.http.daemon import POLLS_MAX, Daemon
from tests.http.raw_client import RawClient, request
from tests.http.restores import PARTS, Export, content, end, export, parse, set_schema, take
from tests.http.test_damage import _damage

NO_SUCH = "0" * 32


@pytest.fixture(autouse=True)
def _nothing_is_left(daemon: Daemon) -> Iterator[None]:
    """No test holds what another one needs, if it fails."""
    yield
    for snapshot in daemon.http.get("/v1/snapshots").json()["snapshots"]:
        end(daemon, snapshot)


def put_many(daemon: Daemon, namespace: str, values: dict[bytes, bytes]) -> None:
    answer = daemon.http.post(f"/v1/kv/{namespace}:mput", content=entries(values.items()), headers=HEADERS)
    assert all(result["status"] in (201, 204) for result in results(answer.content))


def checksum_of(heads: list[dict[str, Any]]) -> str:
    """As the page about snapshots says."""
    columns = [
        b"".join(head["digest"] for head in heads),
        b"".join(int(head["etag"][1:-1], 16).to_bytes(8, "little") for head in heads),
        b"".join(head["size"].to_bytes(4, "little") for head in heads),
        b"".join(head["payload_checksum"].to_bytes(4, "little") for head in heads),
    ]
    return hashlib.sha256(b"".join(columns)).hexdigest()


def value_of(number: int, size: int) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(size)


def listed(daemon: Daemon, namespace: str) -> list[str]:
    """Ids of the snapshots of a namespace; others may have some of theirs."""
    snapshots = daemon.http.get("/v1/snapshots").json()["snapshots"]
    return [one["id"] for one in snapshots if one["namespace"] == namespace]


def test_b1_an_export_is_one_moment_whatever_comes_after(daemon: Daemon) -> None:
    sizes = [0, 1, 96, 3500, 70_000, (1 << 20) + 1, 5 << 20]
    values = {b"key \xff%d" % number: value_of(number, size) for number, size in enumerate(sizes)}
    daemon.http.delete("/v1/namespaces/moment")
    put_many(daemon, "moment", values)
    described = {"Content-Type": "text/plain", "Rawblockd-Meta-Epoch": "7"}
    etag = daemon.http.put("/v1/kv/moment/described?ttl=1000", content=b"v", headers=described).headers["etag"]
    values[b"described"] = b"v"
    snapshot = take(daemon, "moment", owner="saver")
    assert (snapshot["namespace"], snapshot["owner"], snapshot["entries"]) == ("moment", "saver", len(values))
    assert snapshot["payload_bytes"] == sum(map(len, values.values()))
    assert 0 < snapshot["expires_in_seconds"] <= 600
    assert (snapshot["freed_bytes"], snapshot["schema"]["parts"]) == (0, [])
    first = export(daemon, snapshot)
    for number, key in enumerate(list(values)):
        assert daemon.http.put(f"/v1/kv/moment/new{number}", content=b"new").status_code == 201
        if number % 2:
            put_many(daemon, "moment", {key: b"overwritten"})
        else:
            daemon.http.post("/v1/kv/moment:mdelete", content=pack({"keys": [key]}), headers=HEADERS)
    second = export(daemon, snapshot)
    assert first.values == second.values == values
    assert first.manifest == second.manifest
    assert first.heads == second.heads
    assert [head["position"] for head in first.heads] == list(range(len(values)))
    assert max(head["seq"] for head in first.heads) <= snapshot["seq"]
    (head,) = (head for head in first.heads if head["key"] == b"described")
    assert (head["etag"], head["content_type"], head["meta"]) == (etag, "text/plain", {"epoch": "7"})
    assert head["expires_at"] == pytest.approx(head["stored_at"] + 1000, abs=2)
    assert first.manifest["device"] == daemon.status()["device"]["uuid"]
    assert len({head["digest"] for head in first.heads}) == len(values)
    assert snapshot["checksum"] == checksum_of(first.heads)

    now = daemon.http.get(f"/v1/snapshots/{snapshot['id']}").json()
    assert now["freed_bytes"] == now["held_bytes"] == snapshot["held_bytes"], "nothing of it is live any more"
    (hold,) = (hold for hold in daemon.status()["holds"] if hold["holder"] == "saver")
    assert (hold["kind"], hold["namespace"], hold["slots"]) == ("snapshot", "moment", len(values))
    assert hold["held_bytes"] == snapshot["held_bytes"]
    metrics = daemon.http.get("/metrics").text
    expected = {"held_slots_bytes": now["held_bytes"], "held_freed_bytes": now["freed_bytes"], "holds": 1}
    for name, value in expected.items():
        (shown,) = re.findall(rf'^rawblockd_{name}{{kind="snapshot"}} (.*)$', metrics, re.MULTILINE)
        assert float(shown) == value
    assert listed(daemon, "moment") == [snapshot["id"]]
    end(daemon, snapshot)
    daemon.wait_at_rest()
    for path in ("", "/export"):
        assert daemon.http.get(f"/v1/snapshots/{snapshot['id']}{path}").json()["code"] == "snapshot_not_found"


def cut_off(daemon: Daemon, path: str, at_least_bytes: int) -> Export:
    """An export whose client leaves in the middle; what it has of it whole."""
    with RawClient(daemon.address, receive_buffer_bytes=4096) as client:
        client.send(request("GET", path))
        assert client.answer_head().status == 200
        received = bytearray()
        while len(received) < at_least_bytes:
            size = int(client._file.readline(), 16)
            received += client.read(size)
            client.read(2)
    unpacker = msgpack.Unpacker(max_buffer_size=len(received))
    unpacker.feed(bytes(received))
    return parse(list(unpacker), whole=False)


def test_an_export_goes_on_where_it_broke_off(daemon: Daemon) -> None:
    rng = random.Random(3)
    values = {b"%d" % number: value_of(number, rng.choice([10, 4000, 200_000, 1 << 21])) for number in range(120)}
    daemon.http.delete("/v1/namespaces/resumed")
    put_many(daemon, "resumed", values)
    snapshot = take(daemon, "resumed")
    found: dict[bytes, bytes] = {}
    position = 0
    for _ in range(3):
        part = cut_off(daemon, f"/v1/snapshots/{snapshot['id']}/export?from={position}", 6 << 20)
        assert not found.keys() & part.values.keys()
        found |= part.values
        assert position < part.next_position < len(values)
        position = part.next_position
    daemon.wait_at_rest()
    rest = export(daemon, snapshot, f"?from={position}")
    assert rest.manifest["entries"] == len(values) - position
    assert not found.keys() & rest.values.keys()
    assert found | rest.values == values
    assert export(daemon, snapshot, f"?from={len(values)}").heads == []
    end(daemon, snapshot)


def test_what_changed_since_an_earlier_snapshot_and_what_is_gone(daemon: Daemon) -> None:
    """The holder of the earlier one has, with this, exactly what the later one has."""
    values = {b"%d" % number: value_of(number, 500) for number in range(200)}
    daemon.http.delete("/v1/namespaces/increment")
    put_many(daemon, "increment", values)
    base = take(daemon, "increment")
    held = {head["digest"]: (head["key"], value) for head, value in pairs(export(daemon, base))}
    end(daemon, base)
    put_many(daemon, "increment", {b"7": b"other", b"1000": b"new", b"8": b"shortly"})
    daemon.http.post("/v1/kv/increment:mdelete", content=pack({"keys": [b"8", b"9"]}), headers=HEADERS)
    assert daemon.http.patch("/v1/kv/increment/10?ttl=1000").status_code == 204
    later = take(daemon, "increment")
    changes = export(daemon, later, f"?since={base['seq']}")
    assert {head["key"] for head in changes.heads} == {b"7", b"1000", b"10"}
    assert (changes.manifest["since"], changes.manifest["entries"]) == (base["seq"], 3)
    assert changes.digests is not None
    held |= {head["digest"]: (head["key"], value) for head, value in pairs(changes)}
    # The export's order is that of the slots, whichever those are on a device that others use too.
    assert sorted(held[digest][0] for digest in held if digest not in changes.digests) == [b"8", b"9"]
    held = {digest: held[digest] for digest in held if digest in changes.digests}
    assert len(held) == len(changes.digests) == later["entries"]
    whole = export(daemon, later)
    assert dict(held.values()) == whole.values
    assert whole.digests is None
    nothing = export(daemon, later, f"?since={later['seq']}")
    assert (nothing.heads, nothing.digests) == ([], changes.digests)
    end(daemon, later)


def pairs(found: Export) -> Iterator[tuple[dict[str, Any], bytes]]:
    for head in found.heads:
        yield head, found.values[head["key"]]


WRITERS = 3
ROUNDS = 20
ROUND_KEYS = 100
"""A writer puts so many keys at once, in so many rounds; then it begins anew with the next versions."""


def version_of(key: int, newest: int) -> int:
    """The newest version of a key among the first ``newest`` of its writer; 0 or less for none."""
    turn = key // WRITERS // ROUND_KEYS
    return newest - (newest - turn) % ROUNDS


def row_of(key: int, version: int) -> bytes:
    return b"".join(struct.pack("<8f", key, version, part, *range(5)) for part in range(3))


class Writers:
    """Three clients that insert and overwrite rows of three parts without pause. ``done`` are the versions of each."""

    def __init__(self, daemon: Daemon, parts: list[Any]) -> None:
        self._daemon = daemon
        self._parts = parts
        self._stop = threading.Event()
        self.done = [0] * WRITERS
        self.failures: list[object] = []
        self._threads = [threading.Thread(target=self._run, args=(writer,)) for writer in range(WRITERS)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, writer: int) -> None:
        with RawClient(self._daemon.address) as client:
            while not self._stop.is_set() and not self.failures:
                version = self.done[writer] + 1
                first = version % ROUNDS * ROUND_KEYS
                keys = [index * WRITERS + writer for index in range(first, first + ROUND_KEYS)]
                rows = (entry({"key": b"%d" % key, "parts": self._parts}, row_of(key, version)) for key in keys)
                answer = client.ask("POST", "/v1/kv/training:mput", HEADERS.items(), pack({}) + b"".join(rows))
                if answer.status != 200 or {result["status"] for result in results(answer.body)} - {201, 204}:
                    self.failures.append(answer)
                    return
                self.done[writer] = version


def test_b1_writers_insert_without_pause_while_a_snapshot_is_exported(daemon: Daemon) -> None:
    """Every row is one that was put for its key, its parts are of one generation, and none is older than what was
    acknowledged, or newer than what was under way, when the snapshot was taken."""
    set_schema(daemon, "training", on_missing="reject")
    parts = [[part["name"], part["dtype"], part["shape"]] for part in PARTS]
    seqs: list[int] = []
    with Writers(daemon, parts) as writers:
        while len(set(seqs)) < 5 or min(writers.done) <= ROUNDS:
            before = list(writers.done)
            snapshot = take(daemon, "training")
            after = [done + 1 for done in writers.done]
            found = export(daemon, snapshot)
            end(daemon, snapshot)
            assert writers.failures == []
            assert found.manifest["schema"]["schema_version"] == 1
            for head, value in pairs(found):
                key = int(head["key"])
                version = int(struct.unpack_from("<8f", value)[1])
                assert value == row_of(key, version), "parts of one generation"
                writer = key % WRITERS
                assert version_of(key, before[writer]) <= version <= version_of(key, after[writer])
                assert head["parts"] == parts
            expected = {
                b"%d" % key
                for key in range(WRITERS * ROUNDS * ROUND_KEYS)
                if version_of(key, before[key % WRITERS]) > 0
            }
            assert expected <= found.values.keys()
            seqs.append(snapshot["seq"])
    assert writers.failures == []
    assert seqs == sorted(seqs)
    daemon.wait_at_rest()


def test_damaged_entries_are_named_and_counted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A small one, and a large one whose damage shows behind its head."""
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img") as daemon:
        values = {b"%d" % number: value_of(number, 9000) for number in range(20)} | {b"large": value_of(99, 4 << 20)}
        put_many(daemon, "n", values)
        daemon.http.put("/v1/kv/n/flushed?durability=flush", content=b"v")
        # What the scrubber finds before a snapshot is taken isn't in it.
        snapshot = take(daemon, "n")
        _damage(daemon.device, values[b"3"][100:164])
        _damage(daemon.device, values[b"large"][3_500_000:3_500_064])
        found = export(daemon, snapshot)
        assert found.values == {key: value for key, value in values.items() if key not in (b"3", b"large")} | {
            b"flushed": b"v"
        }
        assert [(one["status"], one["reason"]) for one in found.damaged] == [(404, "corrupt")] * 2
        assert {one["size"] for one in found.damaged if "size" in one} == {9000}
        assert export(daemon, snapshot).values == found.values
        end(daemon, snapshot)


def test_a_snapshot_that_ends_in_the_middle_cuts_the_export(daemon: Daemon) -> None:
    daemon.http.delete("/v1/namespaces/cut")
    values = {b"%d" % number: value_of(number, 1 << 20) for number in range(30)}
    put_many(daemon, "cut", values)
    snapshot = take(daemon, "cut")
    with RawClient(daemon.address, receive_buffer_bytes=4096) as client:
        client.send(request("GET", f"/v1/snapshots/{snapshot['id']}/export"))
        assert client.answer_head().status == 200
        client.read(1)
        # A client that takes its time holds no buffer while it does.
        daemon.wait_at_rest()
        end(daemon, snapshot)
        rest = client.read_to_end()
    assert len(rest) < 30 << 20
    assert b"\xa3end\xc3" not in rest[-64:]
    daemon.wait_at_rest()


def test_a_stalled_reader_of_an_export_is_cut_off(impatient: Daemon) -> None:
    values = {b"%d" % number: value_of(number, 1 << 20) for number in range(20)}
    put_many(impatient, "stalled", values)
    snapshot = take(impatient, "stalled")
    with RawClient(impatient.address, receive_buffer_bytes=4096) as client:
        client.send(request("GET", f"/v1/snapshots/{snapshot['id']}/export"))
        assert client.answer_head().status == 200
        impatient.wait_for_count("GET", 499, 1, "/v1/snapshots/{snapshot}/export")
        assert len(client.read_to_end()) < 20 << 20
    assert content(impatient, "stalled") == values
    end(impatient, snapshot)


def test_l1_an_export_of_much_takes_little_memory(daemon: Daemon) -> None:
    daemon.http.delete("/v1/namespaces/much")
    for first in range(0, 128, 16):
        put_many(daemon, "much", {b"%d" % number: value_of(number, 1 << 20) for number in range(first, first + 16)})
    snapshot = take(daemon, "much")
    path = f"/v1/snapshots/{snapshot['id']}/export"
    with daemon.http.stream("GET", path) as answer:
        sizes = [len(part) for part in answer.iter_raw()]
    resident = daemon.resident_bytes()
    with daemon.http.stream("GET", path) as answer:
        assert sum(len(part) for part in answer.iter_raw()) == sum(sizes)
    assert sum(sizes) > 128 << 20
    assert daemon.resident_bytes() - resident < 16 << 20
    end(daemon, snapshot)
    daemon.http.delete("/v1/namespaces/much")


def test_l3_a_snapshot_under_full_load_costs_space_and_nothing_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    """When only held entries could make room, the answer names the holder; with the snapshot its space comes back."""
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img", size="64MiB") as daemon:
        body = bytes(1 << 20)
        for number in range(80):
            assert daemon.http.put(f"/v1/kv/full/{number}", content=body).status_code == 201
        snapshot = take(daemon, "full", owner="saver")
        before = export(daemon, snapshot)
        refused = [daemon.http.put(f"/v1/kv/full/more{number}", content=body) for number in range(20)]
        problem = refused[-1].json()
        assert (refused[-1].status_code, problem["code"]) == (507, "space_held")
        assert problem["holder"] == "snapshot of full by saver"
        assert export(daemon, snapshot).values == before.values
        assert daemon.http.get("/v1/kv/full/79").content == body
        held = daemon.http.get(f"/v1/snapshots/{snapshot['id']}").json()
        status = daemon.status()
        assert [(hold["kind"], hold["freed_bytes"]) for hold in status["holds"]] == [("snapshot", held["freed_bytes"])]
        end(daemon, snapshot)
        assert daemon.http.put("/v1/kv/full/more", content=body).status_code == 201
        assert daemon.wait_at_rest()["holds"] == []


def test_l1_snapshots_are_bounded(daemon: Daemon) -> None:
    put_many(daemon, "bounded", {b"key": b"v"})
    taken = [take(daemon, "bounded") for _ in range(8)]
    refused = daemon.http.post("/v1/namespaces/bounded/snapshots", json={"ttl_seconds": 1})
    assert (refused.status_code, refused.json()["code"]) == (507, "leases_full")
    for snapshot in taken:
        end(daemon, snapshot)


def test_a_snapshot_ends_with_its_time(daemon: Daemon) -> None:
    put_many(daemon, "brief", {b"key": b"v"})
    snapshot = take(daemon, "brief", ttl_seconds=1)
    for _ in range(POLLS_MAX):
        if daemon.http.get(f"/v1/snapshots/{snapshot['id']}").status_code == 404:
            break
    else:
        raise AssertionError("it does not end")
    assert daemon.http.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{}", 422),
        (b'{"ttl_seconds": 0}', 422),
        (b'{"ttl_seconds": 3601}', 422),
        (b'{"ttl_seconds": 1.0}', 422),
        (b'{"ttl_seconds": true}', 422),
        (b'{"ttl_seconds": "1"}', 422),
        (b'{"ttl_seconds": 1, "owner": "a\\nb"}', 422),
        (b'{"ttl_seconds": 1, "owner": "%s"}' % (b"x" * 129), 422),
        (b'{"ttl_seconds": 1, "more": 1}', 422),
        (b'{"ttl_seconds": 1}' + b" " * 70_000, 413),
    ],
)
def test_a_request_for_a_snapshot_is_read_strictly(daemon: Daemon, body: bytes, status: int) -> None:
    put_many(daemon, "strict", {b"key": b"v"})
    assert daemon.http.post("/v1/namespaces/strict/snapshots", content=body).status_code == status
    assert listed(daemon, "strict") == []


def test_what_is_not_there_and_what_is_asked_for_wrongly(daemon: Daemon) -> None:
    http = daemon.http
    refused = http.post("/v1/namespaces/absent/snapshots", json={"ttl_seconds": 1})
    assert (refused.status_code, refused.json()["code"]) == (404, "namespace_not_found")
    assert http.post("/v1/namespaces/a%20b/snapshots", json={"ttl_seconds": 1}).json()["code"] == "namespace_invalid"
    assert http.delete(f"/v1/snapshots/{NO_SUCH}").json()["code"] == "snapshot_not_found"
    assert http.get(f"/v1/snapshots/{NO_SUCH}/export").json()["code"] == "snapshot_not_found"
    put_many(daemon, "asked", {b"key": b"v"})
    snapshot = take(daemon, "asked")
    path = f"/v1/snapshots/{snapshot['id']}/export"
    for query in (
        "from=-1",
        "from=x",
        "from=",
        "since=1.0",
        "since=%D9%A1",
        "from=1&from=2",
        "until=3",
        "from=" + "9" * 19,
    ):
        answer = http.get(f"{path}?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "parameter_invalid"), query
    later = http.get(f"{path}?since={snapshot['seq'] + 1}")
    assert (later.status_code, later.json()["parameter"]) == (400, "since")
    head = http.head(path)
    assert (head.status_code, head.headers["content-type"], head.content) == (200, "application/msgpack", b"")
    for method in ("PUT", "POST", "DELETE"):
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert http.get(f"{path}/").status_code == 404
    end(daemon, snapshot)
