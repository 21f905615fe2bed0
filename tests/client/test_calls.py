"""Every call against a running daemon, of both clients, over TCP and a Unix socket."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from rawblockd_client import BufferTooSmall, Client, Entry, Part, PartData, Problem, PutItem, arguments
from rawblockd_client.aio import AsyncClient
from rawblockd_client.arrays import arrays_of
from rawblockd_client.problems import (
    LeaseNotFound,
    ParametersInvalid,
    PartNotFound,
    PartsInvalid,
    PreconditionFailed,
    RangeUnsatisfiable,
    SchemaConflict,
)
from tests.client.places import Place, opened

ODD_KEYS = [b"\x00\xff", b"a/../b", b"..", b"%41", "ü?#&=".encode(), b"x" * 1024]


def test_both_clients_have_the_same_calls() -> None:
    def calls(client: type) -> dict[str, list[str]]:
        found = {name: call for name, call in vars(client).items() if callable(call) and not name.startswith("_")}
        return {name: list(inspect.signature(call).parameters) for name, call in found.items()}

    sync = calls(Client)
    assert "mapping" in sync
    assert {**calls(AsyncClient), "mapping": sync["mapping"]} == sync


@pytest.fixture(params=["sync-tcp", "sync-unix", "async-tcp", "async-unix"])
async def either(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Any]:
    kind, way = request.param.split("-")
    async with opened(kind, place.url if way == "tcp" else place.unix) as client:
        yield client


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_001])
async def test_b1_a_value_comes_back_as_it_was_put(either: Any, namespace: str, size: int) -> None:
    value = os.urandom(size)
    result = await either.put(namespace, "key", value, content_type="text/x", meta={"a": "1"}, ttl=100)
    assert result.created and result.durability == "journal"
    entry = await either.get_entry(namespace, "key")
    assert bytes(entry.value) == value
    assert (entry.info.etag, entry.info.size_bytes) == (result.etag, size)
    assert (entry.info.content_type, entry.info.meta) == ("text/x", {"a": "1"})
    assert await either.get(namespace, b"key") == value
    head = await either.head(namespace, "key")
    assert (head.etag, head.size_bytes, head.expires_at - head.stored_at) == (result.etag, size, 100)
    assert not (await either.put(namespace, "key", [value, b"more"])).created
    assert await either.get(namespace, "key") == value + b"more"


async def test_a_value_is_read_into_the_buffer_of_the_caller(either: Any, namespace: str) -> None:
    value = os.urandom(2_000_000)
    await either.put(namespace, "key", value)
    buffer = np.full(2_000_010, 7, dtype=np.uint8)
    assert (await either.get_into(namespace, "key", buffer)).size_bytes == len(value)
    assert buffer[:-10].tobytes() == value
    assert (buffer[-10:] == 7).all(), "what the value doesn't fill stays as it was"
    piece = bytearray(1000)
    assert (await either.get_into(namespace, "key", piece, start=1_999_500)).size_bytes == 500
    assert piece[:500] == value[-500:]
    with pytest.raises(BufferTooSmall) as small:
        await either.get_into(namespace, "key", bytearray(10))
    assert small.value.needed_bytes == len(value)
    with pytest.raises(RangeUnsatisfiable):
        await either.get_into(namespace, "key", piece, start=len(value))
    assert await either.get_into(namespace, "none", piece) is None
    assert await either.get(namespace, "key") == value, "the connection goes on after a refusal"


async def test_a_miss_is_none_and_every_other_refusal_is_raised(either: Any, namespace: str) -> None:
    assert await either.get(namespace, "none") is None
    assert await either.head(namespace, "none") is None
    assert await either.touch(namespace, "none", 5) is None
    assert not await either.delete(namespace, "none")
    assert not await either.exists(namespace, "none")
    with pytest.raises(Problem) as odd:
        await either.put(namespace, "", b"")
    assert (odd.value.code, odd.value.status) == ("key_invalid", 400)
    with pytest.raises(Problem) as odd:
        await either.get("no namespace", "key")
    assert odd.value.code == "namespace_invalid"


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_any_bytes_are_a_key(either: Any, namespace: str, key: bytes) -> None:
    await either.put(namespace, key, key)
    assert await either.get(namespace, key) == key
    assert [entry.key async for entry in either.listing(namespace)] == [key]
    assert (await either.mget(namespace, [key]))[0].value == key
    assert await either.delete(namespace, key)


async def test_conditions_hold_or_are_refused(either: Any, namespace: str) -> None:
    first = await either.put(namespace, "key", b"1", if_absent=True)
    with pytest.raises(PreconditionFailed):
        await either.put(namespace, "key", b"2", if_absent=True)
    second = await either.put(namespace, "key", b"2", if_match=first.etag)
    with pytest.raises(PreconditionFailed):
        await either.put(namespace, "key", b"3", if_match=first.etag)
    with pytest.raises(PreconditionFailed):
        await either.delete(namespace, "key", if_match=first.etag)
    assert await either.touch(namespace, "key", 60, if_match=second.etag) == second.etag
    assert await either.delete(namespace, "key", if_match=[first.etag, second.etag])


async def test_batches_have_a_result_for_each_key(either: Any, namespace: str) -> None:
    large = os.urandom(2_500_000)
    stored = await either.mput(namespace, {"a": b"1", "empty": b"", b"large": large})
    assert [result.created for result in stored] == [True, True, True]
    found = await either.mget(namespace, ["a", "none", "empty", "large"])
    assert [None if entry is None else entry.value for entry in found] == [b"1", None, b"", large]
    assert found[0].info.etag == stored[0].etag
    items = [
        PutItem("a", b"2", if_match=stored[0].etag, ttl=10, content_type="a/b", meta={"m": "n"}),
        PutItem("a2", b"3", if_match=stored[0].etag),
        PutItem("empty", b"4", if_absent=True),
    ]
    results = await either.mput(namespace, items, durability="flush")
    assert results[0].durability == "flush"
    assert isinstance(results[1], PreconditionFailed) and isinstance(results[2], PreconditionFailed)
    (entry,) = await either.mget(namespace, ["a"])
    assert (entry.info.content_type, entry.info.meta, entry.value) == ("a/b", {"m": "n"}, b"2")
    presence = await either.exists_many(namespace, ["a", "empty", "none", "large"], sizes=True)
    assert presence.found == (True, True, False, True)
    assert (presence.leading_hits, presence.sizes) == (2, (1, 0, None, len(large)))
    stopped = await either.mget(namespace, ["a", "none", "empty"], stop_at_first_miss=True)
    assert stopped[1:] == [None, None]
    assert await either.mdelete(namespace, ["a", "none", "large"]) == [True, False, True]


async def test_more_keys_than_one_batch_takes(either: Any, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "BATCH_KEYS_MAX", 100)
    keys = [f"{number}" for number in range(320)]
    await either.mput(namespace, [(key, b"x") for key in keys], durability="none")
    found = await either.exists_many(namespace, keys)
    assert (len(found.found), found.leading_hits) == (320, 320)
    assert sum(isinstance(one, Entry) for one in await either.mget(namespace, keys)) == 320
    assert {entry.key async for entry in either.listing(namespace, page=97)} == {key.encode() for key in keys}
    assert len([entry async for entry in either.listing(namespace, prefix=b"31")]) == 11
    assert await either.mdelete(namespace, keys) == [True] * 320


async def test_a_lease_reads_what_it_holds(either: Any, namespace: str) -> None:
    await either.put(namespace, "key", b"before")
    async with either.held(namespace, ["key", "none"], ttl_seconds=60, owner="tests") as lease:
        assert (lease.found, lease.entries) == ((True, False), 1)
        await either.put(namespace, "key", b"after")
        assert await either.get(namespace, "key", lease=lease.lease_id) == b"before"
        (entry,) = await either.mget(namespace, ["key"], lease=lease.lease_id)
        assert entry.value == b"before"
        longer = await either.lease(namespace, ["key"], ttl_seconds=600, lease=lease.lease_id)
        assert longer.lease_id == lease.lease_id
        assert longer.expires_in_seconds > 60
    with pytest.raises(LeaseNotFound):
        await either.release(lease.lease_id)
    with pytest.raises(LeaseNotFound):
        await either.get(namespace, "key", lease=lease.lease_id)


async def test_parts_are_stored_and_read_by_name(either: Any, namespace: str) -> None:
    large = np.arange(500_000, dtype=np.uint32)
    parts = {"w": np.arange(8, dtype=np.float32), "m": np.ones((2, 3), dtype=np.int64), "large": large}
    await either.put_parts(namespace, "key", parts, meta={"a": "b"})
    whole = arrays_of(await either.get_entry(namespace, "key"))
    assert all((whole[name] == parts[name]).all() for name in parts)
    one = await either.get_part(namespace, "key", "m")
    assert one.info.parts == (Part("m", "int64", (2, 3)),)
    assert (arrays_of(one)["m"] == parts["m"]).all()
    buffer = np.zeros(1000, dtype=np.uint32)
    await either.get_into(namespace, "key", buffer, part="large", start=4 * 123_456)
    assert (buffer == large[123_456:124_456]).all()
    (entry,) = await either.mget(namespace, ["key"], parts=["m", "w"])
    assert [part.name for part in entry.info.parts] == ["m", "w"]
    assert (arrays_of(entry)["w"] == parts["w"]).all()
    with pytest.raises(PartNotFound) as missing:
        await either.get_part(namespace, "key", "none")
    assert missing.value.fields["parts"] == ["w", "m", "large"]
    assert isinstance((await either.mget(namespace, ["key"], parts=["none"]))[0], PartNotFound)
    assert await either.get_part(namespace, "none", "w") is None
    assert [part.name for part in (await either.head(namespace, "key")).parts] == list(parts)


async def test_a_schema_is_strict(either: Any, namespace: str) -> None:
    schema: list[dict[str, Any]] = [
        {"name": "w", "dtype": "float32", "shape": [4]},
        {"name": "m", "dtype": "float32", "shape": [4], "default": 0.5},
    ]
    await either.set_namespace(namespace, parts=schema, schema_version=1, on_missing="default")
    found = await either.namespace(namespace)
    assert (found["parts"][1]["default"], found["schema_version"], found["on_missing"]) == (0.5, 1, "default")
    w = np.arange(4, dtype=np.float32)
    await either.put_parts(namespace, "key", {"w": w})
    arrays = arrays_of(await either.get_entry(namespace, "key"))
    assert arrays["m"].tolist() == [0.5] * 4
    cases: list[tuple[dict[str, Any], str]] = [
        ({"m": w}, "w"),
        ({"w": w.astype(np.float64)}, "w"),
        ({"w": w[:3]}, "w"),
        ({"w": w, "x": w}, "x"),
    ]
    for parts, named in cases:
        with pytest.raises(PartsInvalid) as refused:
            await either.put_parts(namespace, "key", parts)
        assert refused.value.fields["part"] == named
        (result,) = await either.mput(
            namespace,
            [PutItem("key", list(parts.values()), parts=[Part(n, str(a.dtype), a.shape) for n, a in parts.items()])],
        )
        assert isinstance(result, PartsInvalid)
    with pytest.raises(SchemaConflict) as conflict:
        await either.set_namespace(namespace, parts=schema[:1], schema_version=1)
    assert conflict.value.fields["schema_version"] == 1
    changes: list[dict[str, Any]] = [{"shape": [-4]}, {"dtype": "f4"}, {"default": float(1 << 200)}, {"name": "a b"}]
    for change in changes:
        with pytest.raises(PartsInvalid) as refused:
            await either.set_namespace(namespace, parts=[{**schema[1], **change}], schema_version=2)
        assert refused.value.fields["part"] == change.get("name", "m")
    with pytest.raises(ParametersInvalid):
        await either.set_namespace(namespace, parts=[{**schema[1], "shape": [4.0]}], schema_version=2)


async def test_parts_that_are_not_their_bytes_are_not_sent(either: Any, namespace: str) -> None:
    with pytest.raises(ValueError, match="32 bytes, 5 are given"):
        await either.put_parts(namespace, "key", {"w": PartData(Part("w", "float32", (8,)), b"12345")})
    with pytest.raises(TypeError):
        await either.put_parts(namespace, "key", {"w": "text"})
    with pytest.raises(TypeError):
        await either.put_parts(namespace, "key", {"w": np.zeros(3, dtype=">f4")})


async def test_namespaces_are_made_and_wiped(either: Any, namespace: str) -> None:
    assert await either.namespace(namespace) is None
    made = await either.set_namespace(namespace, quota_entries=5)
    assert made["quota_entries"] == 5
    assert namespace in {found["name"] for found in await either.namespaces()}
    with pytest.raises(ParametersInvalid):
        await either.set_namespace(namespace, quota_entries=0)
    await either.put(namespace, "key", b"x")
    assert (await either.wipe_namespace(namespace))["entries"] == 1
    assert await either.wipe_namespace(namespace) is None
    assert await either.get(namespace, "key") is None
    assert (await either.status())["state"] == "ready"
