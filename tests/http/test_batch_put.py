"""``:mput``: exact results for each entry, nothing of a broken upload, nothing left behind."""

from __future__ import annotations

import base64
import errno
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from unittest import mock

import pytest

from api.batch.verbs import BATCH_VERBS
from api.limits import BATCH_ENTRIES_MAX
from storage.device.counters import OpKind
from storage.engine import Engine
from storage.errors import EntryNotFound
from tests.http.batches import entries, entry, objects, pack, results
from tests.http.local_client import LocalClient
from tests.support.engines import (
    OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    put,
    short_journal,
    until,
)
from tests.support.simulated_device import Image, Pending, SimulatedDevice

POISONED = b"this write fails"


class PickyDevice(SimulatedDevice):
    """Writes of records with a certain payload fail."""

    def _finish(self, pending: Pending, error: int = 0, *, lands: bool = False) -> None:
        if pending.kind is OpKind.WRITE and POISONED in bytes(pending.view):
            error = errno.EIO
        super()._finish(pending, error, lands=lands)


class PickyRig(Rig):
    def __init__(self, image: Image) -> None:
        super().__init__(image)
        self.device = PickyDevice(image)
        self.engine = Engine(self.device, self.options, self.clock)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with short_journal():
        rig = PickyRig(formatted_image(slabs=20))
        await rig.start()
        yield rig
        await at_rest(rig.engine)
        check_accounts(rig.engine)
        await rig.stop()


@pytest.fixture
def client(rig: Rig) -> LocalClient:
    return LocalClient(rig.engine)


async def at_rest(engine: Engine) -> None:
    """A1: once the device is done with what was begun, no slot and no buffer is still somebody's."""

    def is_at_rest() -> bool:
        status = engine.status()
        return not status.capacity.slots.in_flight and not status.buffers.used_bytes

    await until(is_at_rest)


async def keys_of(engine: Engine) -> set[bytes]:
    found: set[bytes] = set()
    cursor: str | None = ""
    while cursor is not None:
        page = await engine.list_entries("n", limit=1000, cursor=cursor)
        found |= {info.key for info in page.entries}
        cursor = page.cursor
    return found


async def test_entries_are_stored_and_told_one_by_one(rig: Rig, client: LocalClient) -> None:
    await put(rig.engine, b"old", b"before")
    body = entries([(b"new", b"one"), (b"old", b"two"), (b"empty", b"")], durability="flush")
    answer = await client.batch("mput", body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/msgpack")
    found = results(answer.body)
    assert [result["status"] for result in found] == [201, 204, 201]
    assert {result["durability"] for result in found} == {"flush"}
    assert len({result["etag"] for result in found}) == 3
    assert objects(answer.body)[-1]["stored"] == 3
    assert [await get(rig.engine, key) for key in (b"new", b"old", b"empty")] == [b"one", b"two", b""]


async def test_one_bad_entry_does_not_fail_its_neighbours(rig: Rig, client: LocalClient) -> None:
    """Oversize, no key, a duplicate, a write that fails, a wrong digest, odd fields: each has its own result."""
    present = await put(rig.engine, b"present", b"stays")
    etag = f'"{present.write_id:016x}"'
    digest = base64.b64encode(hashlib.sha256(b"right").digest()).decode()
    too_large = rig.engine.status().capacity.max_value_bytes + 70_000
    body = pack({}) + b"".join(
        [
            entry({"key": b"first"}, b"1"),
            entry({"key": b"large"}, bytes(too_large)),
            entry({"key": b""}, b"2"),
            entry({"key": b"k" * 1025}, b"3"),
            entry({"key": b"twice"}, b"earlier"),
            entry({"key": b"broken"}, POISONED),
            entry({"key": b"right", "digest": f"sha-256=:{digest}:"}, b"right"),
            entry({"key": b"wrong", "digest": f"sha-256=:{digest}:"}, b"wrong"),
            entry({"key": b"odd", "colour": "red"}, b"4"),
            entry({"key": "text"}, b"5"),
            entry({"value": b"without a key"}, b"6"),
            entry({"key": b"ttl", "ttl": True}, b"7"),
            entry({"key": b"meta", "meta": {"a": "\u20ac"}}, b"8"),
            entry({"key": b"present", "if_none_match": True}, b"9"),
            entry({"key": b"present2", "if_match": ["*"]}, b"10"),
            entry({"key": b"twice"}, b"later"),
            entry({1: 2}, b"11"),
            entry({"key": b"last"}, b"12"),
        ]
    )
    answer = await client.batch("mput", body)
    assert answer.status == 200
    found = results(answer.body)
    assert [(result["status"], result.get("reason")) for result in found] == [
        (201, None),
        (413, "value_too_large"),
        (400, "key_invalid"),
        (400, "key_invalid"),
        (200, "superseded"),
        (503, "write_failed"),
        (201, None),
        (400, "digest_mismatch"),
        (400, "parameter_invalid"),
        (400, "parameter_invalid"),
        (400, "parameter_invalid"),
        (400, "parameter_invalid"),
        (400, "metadata_invalid"),
        (412, "precondition_failed"),
        (412, "precondition_failed"),
        (201, None),
        (400, "parameter_invalid"),
        (201, None),
    ]
    assert found[4]["etag"] == found[15]["etag"]
    assert (found[13]["present_etag"], "present_etag" in found[14]) == (etag, False)
    assert "colour" in found[8]["detail"]
    assert objects(answer.body)[-1]["stored"] == 4
    assert await keys_of(rig.engine) == {b"first", b"twice", b"right", b"last", b"present"}
    assert await get(rig.engine, b"twice") == b"later"
    assert await get(rig.engine, b"present") == b"stays"


async def test_a2_a_key_that_stands_often_is_charged_once(rig: Rig, client: LocalClient) -> None:
    answer = await client.batch("mput", entries((b"k%d" % (n % 3), bytes(5000 + n)) for n in range(300)))
    found = results(answer.body)
    assert [result["status"] for result in found] == [200] * 297 + [201] * 3
    last = {n % 3: found[n]["etag"] for n in range(297, 300)}
    assert all(found[n] == {"status": 200, "reason": "superseded", "etag": last[n % 3]} for n in range(297))
    view = rig.engine.namespace("n")
    assert (view.entries, view.payload_bytes) == (3, sum(range(5297, 5300)))
    assert [await get(rig.engine, b"k%d" % (n % 3)) for n in range(297, 300)] == [
        bytes(5000 + n) for n in range(297, 300)
    ]


async def test_the_last_entry_of_a_key_decides_also_if_it_fails(rig: Rig, client: LocalClient) -> None:
    body = pack({}) + entry({"key": b"a"}, b"good") + entry({"key": b"a", "colour": 1}, b"bad")
    body += entry({"key": b"b"}, b"good") + entry({"key": b"b"}, POISONED)
    found = results((await client.batch("mput", body)).body)
    assert [result["reason"] for result in found] == ["parameter_invalid"] * 2 + ["write_failed"] * 2
    for key in (b"a", b"b"):
        with pytest.raises(EntryNotFound):
            await get(rig.engine, key)


async def test_times_to_live_are_the_entrys_then_the_batchs(rig: Rig, client: LocalClient) -> None:
    body = pack({"ttl": 100}) + entry({"key": b"batch"}, b"") + entry({"key": b"own", "ttl": 50}, b"")
    body += entry({"key": b"never", "ttl": "none"}, b"")
    assert (await client.batch("mput", body)).status == 200
    found = [(await rig.engine.head("n", key)).expires_at for key in (b"batch", b"own", b"never")]
    now = rig.clock.seconds
    assert found == [now + 100, now + 50, 0]


async def test_what_is_kept_with_a_value_comes_back(rig: Rig, client: LocalClient) -> None:
    body = pack({}) + entry({"key": b"k", "content_type": "text/plain", "meta": {"Colour": "caf\xe9", "x": ""}}, b"v")
    assert results((await client.batch("mput", body)).body)[0]["status"] == 201
    info = await rig.engine.head("n", b"k")
    assert (info.content_type, info.metadata) == ("text/plain", (("colour", "caf\xe9"), ("x", "")))


async def test_large_values_pass_through_a_small_memory(rig: Rig, client: LocalClient) -> None:
    size = rig.engine.status().capacity.max_value_bytes
    value = payload_of(1, size)
    body = entries([(b"a", value), (b"b", value)])
    pieces = [body[at : at + 10_007] for at in range(0, len(body), 10_007)]
    found = results((await client.batch("mput", pieces)).body)
    assert [result["status"] for result in found] == [201, 201]
    assert await get(rig.engine, b"b") == value


BROKEN = entries([(b"a", b"x" * 300), (b"b", payload_of(2, 9000)), (b"a", b"again")], durability="journal")
"""A body of which every part can be the last that arrives: options, heads, values, a duplicate."""


async def test_a_broken_upload_publishes_nothing_wherever_it_breaks(rig: Rig, client: LocalClient) -> None:
    places = sorted({*range(330), *range(330, len(BROKEN), 97), *range(len(BROKEN) - 30, len(BROKEN))})
    for place in places:
        answer = await client.batch("mput", [BROKEN[:place]], leaves=True)
        assert answer.status == 0, place
        await at_rest(rig.engine)
    assert not rig.engine.namespaces() or not await keys_of(rig.engine)


async def test_a_body_that_ends_too_early_is_refused_and_publishes_nothing(rig: Rig, client: LocalClient) -> None:
    whole = {0: False}  # where a shorter batch would end
    for place in sorted({*range(330), *range(330, len(BROKEN), 501), *range(len(BROKEN) - 20, len(BROKEN))}):
        body = BROKEN[:place]
        answer = await client.batch("mput", [body])
        if answer.status == 200:
            whole[place] = True
        else:
            assert (answer.status, answer.code) == (400, "body_invalid"), place
        await at_rest(rig.engine)
    assert len(whole) <= 3
    counted = pack({"entries": 3}) + BROKEN[len(pack({"durability": "journal"})) :]
    cut = counted[: -len(entry({"key": b"a"}, b"again"))]
    answer = await client.batch("mput", cut)
    assert (answer.status, answer.code) == (400, "body_invalid")
    assert results((await client.batch("mput", counted)).body)[2]["status"] in (201, 204)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "body_invalid"),
        (b"\xc1", 400, "body_invalid"),
        (pack([]), 400, "body_invalid"),
        (pack({"durability": "disk"}), 400, "parameter_invalid"),
        (pack({"colour": 1}), 400, "parameter_invalid"),
        (pack({"entries": -1}), 400, "parameter_invalid"),
        (pack({"entries": True}), 400, "parameter_invalid"),
        (pack({}) + pack({"key": b"a"}), 400, "body_invalid"),
        (pack({}) + pack({"key": b"a"}) + pack("text"), 400, "body_invalid"),
        (pack({}) + pack(b"value"), 400, "body_invalid"),
        (pack({}) + entry({"key": b"a"}, b"1") + b"\x00", 400, "body_invalid"),
        (pack({}) + pack({"key": b"a", "meta": {"a": "x" * 17_000}}) + pack(b""), 400, "body_invalid"),
        (entries([(b"", b"")] * (BATCH_ENTRIES_MAX + 1)), 413, "batch_too_large"),
    ],
)  # fmt: skip
async def test_a_body_that_is_no_batch_fails_as_a_whole(
    rig: Rig, client: LocalClient, body: bytes, status: int, code: str
) -> None:
    answer = await client.batch("mput", [body])
    assert (answer.status, answer.code) == (status, code)
    assert not rig.engine.namespaces() or not await keys_of(rig.engine)


async def test_a_batch_larger_than_the_device_allows_is_refused(rig: Rig, client: LocalClient) -> None:
    most = rig.engine.max_batch_bytes
    value = bytes(100_000)
    body = entries((b"%d" % n, value) for n in range(most // len(value) + 1))
    answer = await client.batch("mput", [body[at : at + 65_536] for at in range(0, len(body), 65_536)])
    assert (answer.status, answer.code) == (413, "batch_too_large")
    assert not await keys_of(rig.engine)


async def test_no_body_is_a_mistake_of_the_daemon_or_leaves_anything(rig: Rig, client: LocalClient) -> None:
    rng = random.Random("bodies")
    keys = pack({"keys": [b"a", b"b"]})
    fragments = [
        pack({}),
        entry({"key": b"a"}, b"1"),
        pack({"key": b"b"}),
        pack(b"x" * 300),
        b"\xc6\x00\x01\x00\x00",
        keys,
    ]
    seen = set()
    for number in range(600):
        verb = rng.choice(sorted(BATCH_VERBS))
        usual = fragments if verb == "mput" else [keys]
        parts = [
            rng.choice(usual) if rng.random() < 0.7 else rng.randbytes(rng.randrange(40))
            for _ in range(rng.randrange(5))
        ]
        body = b"".join(parts)
        if rng.random() < 0.3 and body:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(1) + body[at + 1 :]
        cut = rng.randrange(len(body) + 1)
        form = rng.choice(["application/msgpack", "application/json"])
        headers = [("Content-Type", form)]
        answer = await client.ask("POST", f"/v1/kv/n:{verb}", [body[:cut], body[cut:]], headers)
        assert answer.complete
        assert answer.status in (200, 400), (number, verb, body)
        seen.add((verb, form, answer.status))
    assert {verb for verb, form, status in seen if status == 200} == BATCH_VERBS.keys() - {"lease"}
    await at_rest(rig.engine)


async def test_l1_batches_share_a_bounded_memory(rig: Rig) -> None:
    keys = pack({"keys": [b"k" * 100] * 50})
    with mock.patch("api.value_routes.BATCH_MEMORY_BYTES", 6000):
        client = LocalClient(rig.engine)
    for _ in range(3):  # each gives back what it took, also when it is refused
        assert (await client.batch("exists", keys)).status == 200
        answer = await client.batch("exists", pack({"keys": [b"k" * 100] * 60}))
        assert (answer.status, answer.code, "retry-after" in answer.headers) == (503, "busy", True)
        assert (await client.batch("mput", entries([(b"a", b""), (b"b", b"")]))).status == 200
        answer = await client.batch("mput", entries([(b"a", b""), (b"b", b""), (b"c", b"")]))
        assert (answer.status, answer.code) == (503, "busy")
        assert (await client.batch("mget", [keys[:100]], leaves=True)).status == 0
    assert await keys_of(rig.engine) == {b"a", b"b"}


async def test_entries_that_get_no_room_wait_no_longer_than_a_batch_may() -> None:
    options = replace(OPTIONS, wait_timeout_seconds=0.05)
    with short_journal(), mock.patch("api.batch.upload.BATCH_WAIT_MAX_SECONDS", 0.2):
        rig = Rig(formatted_image(slabs=4), options=options)
        await rig.start()
        count = rig.engine.status().capacity.max_entries + 50
        body = entries((b"%d" % number, b"") for number in range(count))
        found = results((await LocalClient(rig.engine).batch("mput", body)).body)
        stored = [result for result in found if result["status"] == 201]
        refused = [result for result in found if result["status"] in (503, 507)]
        assert len(stored) + len(refused) == count
        assert len(stored) > count // 2
        assert refused[-1]["reason"] == "busy"
        assert len(await keys_of(rig.engine)) == len(stored)
        await rig.stop()
