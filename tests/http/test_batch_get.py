"""``:mget``: every value whole or none of it, in order, to fast and slow clients, with bounded memory."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from api.limits import BATCH_ENTRIES_MAX, JSON_ANSWER_MAX_BYTES
from storage.device.counters import OpKind
from storage.errors import LeaseNotFound
from tests.http.batches import HEADERS, entries, objects, pack, results, values
from tests.http.daemon import Daemon
from tests.http.local_client import LocalClient
from tests.http.raw_client import RawClient, request
from tests.support.engines import Rig, formatted_image, payload_of, put, short_journal
from tests.support.simulated_device import fail

MIB = 1 << 20


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with short_journal():
        rig = Rig(formatted_image(slabs=20))
        await rig.start()
        yield rig
        status = rig.engine.status()
        assert (status.capacity.slots.in_flight, status.buffers.used_bytes) == (0, 0)
        await rig.stop()


@pytest.fixture
def client(rig: Rig) -> LocalClient:
    return LocalClient(rig.engine)


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with 256 MiB of values, and little memory for them."""
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img", "--buffer-bytes", "32MiB") as running:
        for number in range(64):
            value = payload_of(number, 4 * MIB)
            assert running.http.put(f"/v1/kv/large/{number}", content=value).status_code == 201
        yield running


LARGE_KEYS = pack({"keys": [b"%d" % number for number in range(64)]})


def test_l1_256_mib_in_one_answer_do_not_grow_the_daemon(stocked: Daemon) -> None:
    before = stocked.resident_bytes()
    largest = 0
    received = 0
    with stocked.http.stream("POST", "/v1/kv/large:mget", content=LARGE_KEYS, headers=HEADERS) as answer:
        for piece in answer.iter_bytes():
            received += len(piece)
            largest = max(largest, stocked.resident_bytes())
    assert received > 256 * MIB
    assert largest - before < 48 * MIB
    stocked.wait_at_rest()


def test_l1_slow_readers_of_batches_hold_copies_and_nothing_of_the_pool(stocked: Daemon) -> None:
    clients = [RawClient(stocked.address, receive_buffer_bytes=4096) for _ in range(20)]
    before = stocked.resident_bytes()
    for client in clients:
        client.send(request("POST", "/v1/kv/large:mget", HEADERS.items(), LARGE_KEYS))
    for client in clients:
        assert client.answer_head().status == 200
    stocked.wait_at_rest()
    assert stocked.resident_bytes() - before < len(clients) * 4 * MIB
    for client in clients:
        client.close()
    stocked.wait_at_rest()


def test_b1_a_slow_reader_gets_every_byte_of_every_value(stocked: Daemon) -> None:
    keys = pack({"keys": [b"%d" % number for number in range(6)]})
    with RawClient(stocked.address, receive_buffer_bytes=4096) as client:
        headers = [*HEADERS.items(), ("Connection", "close")]
        client.send(request("POST", "/v1/kv/large:mget", headers, keys))
        assert client.answer_head().header("transfer-encoding") == "chunked"
        stocked.wait_at_rest()
        body = b""
        while size := int(client._file.readline(), 16):
            body += client.read(size)
            assert client.read(2) == b"\r\n"
    found, end = values(body)
    assert [value for _, value in found] == [payload_of(number, 4 * MIB) for number in range(6)]
    assert end == {"end": True, "results": 6, "hits": 6, "leading_hits": 6}


def test_ten_thousand_keys_come_back_in_order(daemon: Daemon) -> None:
    pairs = [(b"key-%d" % number, payload_of(number, number % 500)) for number in range(BATCH_ENTRIES_MAX)]
    stored = daemon.http.post("/v1/kv/mget-many:mput", content=entries(pairs), headers=HEADERS)
    etags = [result["etag"] for result in results(stored.content)]
    keys = pack({"keys": [key for key, _ in pairs]})
    answer = daemon.http.post("/v1/kv/mget-many:mget", content=keys, headers=HEADERS)
    found, end = values(answer.content)
    assert [value for _, value in found] == [value for _, value in pairs]
    assert [result["etag"] for result, _ in found] == etags
    assert (end["hits"], end["leading_hits"]) == (BATCH_ENTRIES_MAX, BATCH_ENTRIES_MAX)
    too_many = pack({"keys": [b"k"] * (BATCH_ENTRIES_MAX + 1)})
    for verb in ("mget", "mdelete", "exists"):
        refused = daemon.http.post(f"/v1/kv/mget-many:{verb}", content=too_many, headers=HEADERS)
        assert (refused.status_code, refused.json()["code"]) == (413, "batch_too_large")
    daemon.http.delete("/v1/namespaces/mget-many")
    daemon.wait_at_rest()


def test_a_small_answer_has_a_length_and_keeps_the_connection(daemon: Daemon) -> None:
    with RawClient(daemon.address) as client:
        for _ in range(3):
            answer = client.ask("POST", "/v1/kv/no-such:mget", HEADERS.items(), pack({"keys": [b"k"]}))
            assert results(answer.body) == [{"status": 404, "reason": "not_found"}]


async def test_each_key_has_a_result_and_a_bad_one_fails_no_other(rig: Rig, client: LocalClient) -> None:
    await put(rig.engine, b"plain", b"one")
    rich = await put(
        rig.engine, b"rich", b"", content_type="text/plain", metadata=(("a", "\xe9"),), expires_at=1_800_000_000
    )
    asked = [b"plain", b"gone", b"", b"k" * 1025, b"rich", b"plain"]
    answer = await client.batch("mget", pack({"keys": asked}))
    found, end = values(answer.body)
    assert [(result["status"], value) for result, value in found] == [
        (200, b"one"),
        (404, None),
        (400, None),
        (400, None),
        (200, b""),
        (200, b"one"),
    ]
    assert found[4][0] == {
        "status": 200,
        "etag": f'"{rich.write_id:016x}"',
        "size": 0,
        "stored_at": rig.clock.seconds,
        "expires_at": 1_800_000_000,
        "content_type": "text/plain",
        "meta": {"a": "\xe9"},
    }
    assert (found[0][0]["expires_at"], found[0][0]["content_type"]) == (None, "application/octet-stream")
    assert (end["hits"], end["leading_hits"]) == (3, 1)
    assert objects(answer.body).count(b"") == 1  # the empty value has a piece too


async def test_it_can_stop_at_the_first_miss(rig: Rig, client: LocalClient) -> None:
    for name in (b"a", b"b", b"d"):
        await put(rig.engine, name, name)
    keys = [b"a", b"b", b"c", b"d"]
    answer = await client.batch("mget", pack({"keys": keys, "stop_at_first_miss": True}))
    found, end = values(answer.body)
    assert [value for _, value in found] == [b"a", b"b", None]
    assert end == {"end": True, "results": 3, "hits": 2, "leading_hits": 2}
    lookups = rig.engine.counters.lookups
    assert (lookups["hit"], lookups["miss"]) == (2, 1), "what stands behind the miss was not looked up"
    answer = await client.ask(
        "POST",
        "/v1/kv/n:mget",
        json.dumps({"keys": ["a", "c", "b"], "stop_at_first_miss": True}).encode(),
        [("Content-Type", "application/json")],
    )
    assert [result["status"] for result in json.loads(answer.body)["results"]] == [200, 404]


@pytest.mark.parametrize("size", [3000, 3_000_000])
async def test_b1_a_value_that_fails_is_no_value_and_its_neighbours_are(
    rig: Rig, client: LocalClient, size: int
) -> None:
    """R8: small ones fail before their head, large ones in the place of their next piece."""
    keys = [b"before", b"damaged", b"behind"]
    size = min(size, rig.engine.status().capacity.max_value_bytes)
    bodies = [payload_of(number, size) for number in range(3)]
    for name, body in zip(keys, bodies, strict=True):
        await put(rig.engine, name, body)
    place = bodies[1][-200:-100]
    at = next(at for at in range(0, rig.device.size_bytes, 4096) if place in rig.device.image.read(at, 8192))
    rig.device.flip(at + rig.device.image.read(at, 8192).index(place))
    answer = await client.batch("mget", pack({"keys": keys}))
    assert answer.status == 200
    found, end = values(answer.body)
    assert [value for _, value in found] == [bodies[0], None, bodies[2]]
    assert found[1][0] == {"status": 404, "reason": "corrupt"}
    assert (end["hits"], end["leading_hits"]) == (2, 1)


async def test_a_device_that_fails_reads_fails_single_keys(rig: Rig, client: LocalClient) -> None:
    for name in (b"a", b"b"):
        await put(rig.engine, name, name * 100)
    asked = pack({"keys": [b"a", b"gone", b"b"]})
    rig.device.faults.append(fail(OpKind.READ, errno.EIO, times=-1))
    found, _ = values((await client.batch("mget", asked)).body)
    assert [(result["status"], result["reason"]) for result, _ in found] == [
        (503, "io_error"),
        (404, "not_found"),
        (503, "io_error"),
    ]
    rig.device.faults.clear()
    found, _ = values((await client.batch("mget", asked)).body)
    assert [value for _, value in found] == [b"a" * 100, None, b"b" * 100]


async def test_an_answer_in_json_is_bounded_and_says_so(rig: Rig, client: LocalClient) -> None:
    size = rig.engine.status().capacity.max_value_bytes - 100
    count = JSON_ANSWER_MAX_BYTES // size + 1
    for number in range(count):
        await put(rig.engine, b"%d" % number, payload_of(number, size))
    body = json.dumps({"keys": [str(number) for number in range(count)]}).encode()
    answer = await client.ask("POST", "/v1/kv/n:mget", body, [("Content-Type", "application/json")])
    found = json.loads(answer.body)["results"]
    whole = [result for result in found if result["status"] == 200]
    assert 0 < len(whole) < count
    assert len(answer.body) < JSON_ANSWER_MAX_BYTES + 10_000
    assert found[-1]["reason"] == "batch_too_large"
    assert found[-1]["size"] == size


@pytest.mark.parametrize("looked_up", [0, 70])
async def test_a_lease_that_ends_within_a_batch_fails_the_keys_that_are_left(
    rig: Rig, client: LocalClient, looked_up: int
) -> None:
    keys = [b"%d" % number for number in range(100)]
    for name in keys:
        await put(rig.engine, name, name)
    lease_id = rig.engine.lease("n", keys, ttl_seconds=60).lease.lease_id
    leases = rig.engine._parts.leases
    answers: Iterator[Callable[..., object]] = itertools.chain(
        itertools.repeat(leases.find, looked_up), itertools.repeat(_no_lease)
    )
    with mock.patch.object(leases, "find", side_effect=lambda *arguments: next(answers)(*arguments)):
        answer = await client.batch(f"mget?lease={lease_id}", pack({"keys": keys}))
    rig.engine.release(lease_id)
    if not looked_up:
        assert (answer.status, answer.code) == (404, "lease_not_found")
        return
    found, end = values(answer.body)
    whole = [value for _, value in found if value is not None]
    assert 0 < len(whole) < 70
    assert whole == keys[: len(whole)]
    assert {result.get("reason") for result, _ in found[len(whole) :]} == {"lease_not_found"}
    assert (end["results"], end["hits"]) == (100, len(whole))


def _no_lease(*_: object) -> None:
    raise LeaseNotFound


async def test_a_client_that_leaves_half_way_leaves_nothing_behind(rig: Rig, client: LocalClient) -> None:
    for number in range(8):
        await put(rig.engine, b"%d" % number, payload_of(number, 500_000))
    keys = pack({"keys": [b"%d" % number for number in range(8)] * 20})
    answer = await client.batch("mget", [keys], goes_behind=1)
    assert answer.status == 200
    assert not answer.complete


def test_forms_are_chosen_by_the_fields(daemon: Daemon) -> None:
    body = json.dumps({"keys": ["k"]}).encode()
    for sent, accepted, expected in [
        ("application/json", None, "application/json"),
        ("application/json; charset=utf-8", "*/*", "application/json"),
        ("application/json", "text/html, application/msgpack;q=0.5", "application/msgpack"),
        ("APPLICATION/JSON", "application/json", "application/json"),
    ]:
        headers = {"Content-Type": sent} | ({"Accept": accepted} if accepted else {"Accept": "text/html"})
        answer = daemon.http.post("/v1/kv/forms:mget", content=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, expected)
    for sent in ("application/x-www-form-urlencoded", "text/plain", ""):
        answer = daemon.http.post("/v1/kv/forms:mget", content=body, headers={"Content-Type": sent})
        assert (answer.status_code, answer.json()["code"]) == (415, "media_type_unsupported")


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", "{", '{"keys": 1}', '{"keys": [1]}', '{"keys": [null]}', '{"keys": [{"base64": "x"}]}',
        '{"keys": [{"base64": "eA==", "more": 1}]}', '{"keys": ["\\ud800"]}', '{"keys": [], "keys": []}',
        '{"keys": [], "colour": 1}', '{"keys": [], "stop_at_first_miss": 1}', '{"keys": [], "lease": 5}',
        '{"keys": NaN}', '{"stop_at_first_miss": true}', "[" * 100_000, '{"keys": [' + "1" * 10_000 + "]}",
    ],
)  # fmt: skip
def test_json_is_read_strictly(daemon: Daemon, body: str) -> None:
    answer = daemon.http.post("/v1/kv/strict:mget", content=body.encode(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["code"] in ("body_invalid", "parameter_invalid")


def test_the_other_verbs_and_methods_do_not_exist(daemon: Daemon, tmp_path: Path) -> None:
    with RawClient(daemon.address) as client:
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            answer = client.ask(method, "/v1/kv/n:mget", body=b"")
            assert (answer.status, answer.header("allow")) == (405, "POST")
        for path in ("/v1/kv/n:", "/v1/kv/n:mgett", "/v1/kv/n:mget:mget"):
            assert client.ask("POST", path, body=b"").code == "no_such_route"
        # An escaped colon is part of the name, and no name has one.
        assert client.ask("POST", "/v1/kv/n%3Amget", body=b"").status == 405
        assert client.ask("GET", "/v1/kv/n%3Amget").code == "namespace_invalid"
        assert client.ask("GET", "/v1/kv/n:mget/key").code == "namespace_invalid"
