"""``:exists`` and ``:mdelete``: exact results for each key, in both forms."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.http.batches import objects, pack, results
from tests.http.local_client import LocalClient
from tests.support.engines import Rig, check_accounts, formatted_image, put, short_journal

JSON = [("Content-Type", "application/json")]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with short_journal():
        rig = Rig(formatted_image())
        await rig.start()
        yield rig
        check_accounts(rig.engine)
        await rig.stop()


@pytest.fixture
def client(rig: Rig) -> LocalClient:
    return LocalClient(rig.engine)


async def exists(client: LocalClient, keys: list[bytes], **fields: Any) -> dict[str, Any]:
    answer = await client.batch("exists", pack({"keys": keys, **fields}))
    assert answer.status == 200
    (document,) = objects(answer.body)
    assert isinstance(document, dict)
    return document


async def test_a_bitmap_has_a_bit_for_each_key_least_significant_first(rig: Rig, client: LocalClient) -> None:
    for number in (0, 1, 2, 9, 15, 17):
        await put(rig.engine, b"%d" % number, bytes(number))
    keys = [b"%d" % number for number in range(18)]
    document = await exists(client, keys, sizes=True)
    assert document["bitmap"] == bytes([0b00000111, 0b10000010, 0b00000010])
    assert (document["count"], document["leading_hits"]) == (6, 3)
    assert document["sizes"] == [number if number in (0, 1, 2, 9, 15, 17) else None for number in range(18)]
    assert "invalid" not in document


async def test_a_bad_key_is_named_and_counts_as_absent(rig: Rig, client: LocalClient) -> None:
    await put(rig.engine, b"a", b"")
    document = await exists(client, [b"a", b"", b"a", b"k" * 1025])
    assert (document["bitmap"], document["invalid"]) == (b"\x05", [1, 3])


async def test_no_keys_are_no_mistake(client: LocalClient) -> None:
    assert await exists(client, []) == {"count": 0, "leading_hits": 0, "bitmap": b""}
    for verb in ("mget", "mdelete"):
        assert results((await client.batch(verb, pack({"keys": []}))).body) == []


async def test_ten_thousand_keys_are_looked_up(rig: Rig, client: LocalClient) -> None:
    for number in range(0, 20, 2):
        await put(rig.engine, b"%d" % (number * 500), b"x")
    document = await exists(client, [b"%d" % number for number in range(10_000)])
    present = [number for number in range(10_000) if document["bitmap"][number // 8] >> number % 8 & 1]
    assert present == list(range(0, 10_000, 1000))


async def test_json_has_texts_where_msgpack_has_bytes(rig: Rig, client: LocalClient) -> None:
    await put(rig.engine, "naïve".encode(), b"x")
    await put(rig.engine, b"\xff", b"x")
    keys = ["na\u00efve", "no", {"base64": "/w=="}]
    answer = await client.ask("POST", "/v1/kv/n:exists", json.dumps({"keys": keys}).encode(), JSON)
    assert json.loads(answer.body) == {"count": 2, "leading_hits": 1, "bitmap": "101"}
    answer = await client.ask("POST", "/v1/kv/n:mdelete", json.dumps({"keys": keys}).encode(), JSON)
    document = json.loads(answer.body)
    assert [result["status"] for result in document["results"]] == [204, 404, 204]
    assert document["deleted"] == 2


async def test_a_batch_put_and_read_in_json(rig: Rig, client: LocalClient) -> None:
    body = {
        "ttl": 60,
        "durability": "flush",
        "entries": [
            {"key": "a", "value": "", "content_type": "text/plain", "meta": {"colour": "red"}, "ttl": "none"},
            {"key": {"base64": "/w=="}, "value": "AAH/", "if_none_match": True},
            {"key": "", "value": "AA=="},
            {"key": "a", "value": "AA==", "meta": {"\u20ac": "x"}},
        ],
    }
    answer = await client.ask("POST", "/v1/kv/n:mput", json.dumps(body).encode(), JSON)
    document = json.loads(answer.body)
    assert [result["status"] for result in document["results"]] == [400, 201, 400, 400]
    body["entries"] = body["entries"][:2]  # type: ignore[index]
    answer = await client.ask("POST", "/v1/kv/n:mput", json.dumps(body).encode(), JSON)
    assert [result["status"] for result in json.loads(answer.body)["results"]] == [201, 412]
    asked = json.dumps({"keys": ["a", {"base64": "/w=="}]}).encode()
    found = json.loads((await client.ask("POST", "/v1/kv/n:mget", asked, JSON)).body)["results"]
    assert [result["value"] for result in found] == ["", "AAH/"]
    assert (found[0]["content_type"], found[0]["meta"], found[0]["expires_at"]) == (
        "text/plain",
        {"colour": "red"},
        None,
    )


@pytest.mark.parametrize(
    "entry",
    [
        5, {}, {"key": "a"}, {"key": "a", "value": "x"}, {"key": "a", "value": 1}, {"key": 1, "value": ""},
        {"key": "a", "value": "", "colour": 1}, {"key": "a", "value": "", "ttl": 1.0},
        {"key": "a", "value": "", "ttl": True}, {"key": "a", "value": "", "if_match": []},
        {"key": "a", "value": "", "if_match": "*"}, {"key": "a", "value": "", "meta": {"a": 1}},
        {"key": "a", "value": "", "digest": "sha-256=5"},
    ],
)  # fmt: skip
async def test_an_entry_of_the_wrong_form_refuses_a_batch_in_json_whole(
    rig: Rig, client: LocalClient, entry: Any
) -> None:
    body = json.dumps({"entries": [{"key": "good", "value": ""}, entry]}).encode()
    answer = await client.ask("POST", "/v1/kv/n:mput", body, JSON)
    assert answer.status == 400
    assert answer.code in ("body_invalid", "parameter_invalid")
    assert rig.engine.namespaces() == []


async def test_of_a_key_that_stands_twice_the_second_delete_is_a_miss(rig: Rig, client: LocalClient) -> None:
    first = await put(rig.engine, b"a", b"x")
    await put(rig.engine, b"b", b"x")
    answer = await client.batch("mdelete", pack({"keys": [b"a", b"gone", b"a", b"", b"b"], "durability": "flush"}))
    found = results(answer.body)
    assert [(result["status"], result.get("reason")) for result in found] == [
        (204, None),
        (404, "not_found"),
        (404, "not_found"),
        (400, "key_invalid"),
        (204, None),
    ]
    assert found[0]["etag"] == f'"{first.write_id:016x}"'
    assert rig.engine.namespace("n").entries == 0


async def test_an_unknown_field_or_parameter_is_named(client: LocalClient) -> None:
    for verb, body, named in [
        ("exists", {"keys": [], "size": True}, "size"),
        ("mdelete", {"keys": [], "ttl": 1}, "ttl"),
        ("mget", {"keys": [], "stop": True}, "stop"),
        ("lease", {"keys": [], "ttl_seconds": 1, "ttl": 1}, "ttl"),
    ]:
        answer = await client.batch(verb, pack(body))
        assert (answer.status, json.loads(answer.body)["parameter"]) == (400, named)
        answer = await client.batch(f"{verb}?colour=red", pack({"keys": []}))
        assert (answer.status, json.loads(answer.body)["parameter"]) == (400, "colour")
