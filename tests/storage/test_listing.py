"""Listing: complete for what is there throughout, in an order nothing else disturbs, bounded per call (L1, L2)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.engine import Engine
from storage.errors import NamespaceInvalid, NamespaceNotFound, ParameterInvalid
from storage.key_map import KeyMap
from storage.slot_table import SlotTable
from tests.support.engines import OPTIONS, Rig, geometry_of, payload_of, put, short_journal


async def list_all(engine: Engine, *, prefix: bytes = b"", limit: int = 100) -> list[bytes]:
    keys: list[bytes] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await engine.list_entries("n", prefix=prefix, cursor=cursor, limit=limit)
        assert len(page.entries) <= limit
        keys += [info.key for info in page.entries]
        cursor = page.cursor
    return keys


async def test_every_key_once_with_what_is_known_of_it(rig: Rig) -> None:
    engine = rig.engine
    for number in range(250):
        await put(engine, b"key %d" % number, payload_of(number, number), content_type="text/x")
        await put(engine, b"other %d" % number, b"v", namespace="m")
    page = await engine.list_entries("n", limit=1000)
    assert page.cursor is None
    assert sorted(info.key for info in page.entries) == sorted(b"key %d" % number for number in range(250))
    by_key = {info.key: info for info in page.entries}
    assert by_key[b"key 17"].payload_bytes == 17
    assert by_key[b"key 17"].content_type == "text/x"
    for limit in (1, 7, 249, 250, 251):
        assert await list_all(engine, limit=limit) == [info.key for info in page.entries]


async def test_prefix(rig: Rig) -> None:
    engine = rig.engine
    for number in range(120):
        await put(engine, b"a/%d" % number, b"v")
        await put(engine, b"b/%d" % number, b"v")
    assert sorted(await list_all(engine, prefix=b"a/1", limit=10)) == sorted(
        b"a/%d" % number for number in range(120) if str(number).startswith("1")
    )
    assert await list_all(engine, prefix=b"c") == []


async def test_complete_for_what_exists_throughout(rig: Rig) -> None:
    """Between the pages others are overwritten, deleted and put; the process even restarts."""
    engine = rig.engine
    for number in range(300):
        await put(engine, b"stays %d" % number, b"v")
    keys: list[bytes] = []
    cursor: str | None = ""
    round_ = 0
    while cursor is not None:
        page = await engine.list_entries("n", cursor=cursor, limit=20)
        keys += [info.key for info in page.entries]
        cursor = page.cursor
        for number in range(0, 300, 7):
            await put(engine, b"stays %d" % number, b"overwritten %d" % round_)
        await put(engine, b"new %d" % round_, b"v")
        if round_ > 1:
            await engine.delete("n", b"new %d" % (round_ - 1))
        if round_ % 5 == 4:
            engine = await rig.reopen()
        round_ += 1
    stayed = [key for key in keys if key.startswith(b"stays")]
    assert len(stayed) == len(set(stayed)) == 300


async def test_no_page_ends_the_loop_for_long_and_empty_pages_go_on(rig: Rig) -> None:
    """Bounded work per call: an empty page with a cursor, until the end."""
    for number in range(100):
        await put(rig.engine, b"key %d" % number, b"v")
    with mock.patch("storage.listing.BUCKETS_A_CALL", 64), mock.patch("storage.listing.BUCKETS_AT_ONCE", 64):
        keys, empty, cursor = [], 0, ""
        while True:
            page = await rig.engine.list_entries("n", cursor=cursor, limit=100)
            keys += [info.key for info in page.entries]
            empty += not page.entries
            if page.cursor is None:
                break
            cursor = page.cursor
    assert sorted(keys) == sorted(b"key %d" % number for number in range(100))
    with mock.patch("storage.listing.HEADERS_A_CALL", 5):
        assert sorted(await list_all(rig.engine, prefix=b"key 9", limit=3)) == sorted(
            b"key %d" % number for number in (9, *range(90, 100))
        )


async def test_keys_in_memory_make_a_listing_without_reads() -> None:
    """What is put is known; after a restart the first listing reads, the second does not; overwrites are seen."""
    with short_journal():
        rig = Rig(options=replace(OPTIONS, keys_in_memory=True))
        engine = await rig.start()
        for number in range(50):
            await put(engine, b"key %d" % number, b"v", content_type="text/x", expires_at=int(rig.clock()) + 100)
        reads = engine._device.counters.read.operations
        first = await engine.list_entries("n")
        assert engine._device.counters.read.operations == reads
        engine = await rig.reopen()
        second = await engine.list_entries("n")
        assert second == first
        await put(engine, b"key 3", b"larger")
        await engine.delete("n", b"key 4")
        reads = engine._device.counters.read.operations
        third = await engine.list_entries("n")
        assert engine._device.counters.read.operations == reads
        by_key = {entry.key: entry for entry in third.entries}
        assert by_key[b"key 3"].payload_bytes == 6
        assert by_key[b"key 3"].expires_at == 0
        assert by_key.keys() == {b"key %d" % number for number in range(50)} - {b"key 4"}
        await rig.stop()


async def test_expired_and_deleted_entries_are_not_listed(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"expires", b"v", expires_at=int(rig.clock()) + 5)
    await put(engine, b"stays", b"v")
    await put(engine, b"deleted", b"v")
    await engine.delete("n", b"deleted")
    rig.clock.advance(10)
    assert await list_all(engine) == [b"stays"]


async def test_lookups_are_not_counted_and_recency_is_not_touched(rig: Rig) -> None:
    await put(rig.engine, b"key", b"v")
    before = dict(rig.engine.counters.lookups)
    assert await list_all(rig.engine) == [b"key"]
    assert rig.engine.counters.lookups == before


async def test_what_is_no_cursor_is_refused(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    await put(engine, b"key 2", b"v")
    await put(engine, b"key", b"v", namespace="m")
    page = await engine.list_entries("n", limit=1)
    assert page.cursor is not None
    for cursor in ("x", "ä", page.cursor[:-2], page.cursor + "AAAA", "A" * 28):
        with pytest.raises(ParameterInvalid):
            await engine.list_entries("n", cursor=cursor)
    with pytest.raises(ParameterInvalid):
        await engine.list_entries("m", cursor=page.cursor)
    for limit in (0, -1, 1001):
        with pytest.raises(ParameterInvalid):
            await engine.list_entries("n", limit=limit)
    with pytest.raises(NamespaceNotFound):
        await engine.list_entries("absent")
    with pytest.raises(NamespaceInvalid):
        await engine.list_entries("no name")
    await engine.wipe_namespace("n")
    await put(engine, b"key", b"v")
    with pytest.raises(ParameterInvalid):
        await engine.list_entries("n", cursor=page.cursor)


async def test_l2_listings_leave_others_their_turn(rig: Rig) -> None:
    """Many listings at once: header reads under way stay few, and a put goes through meanwhile."""
    engine = rig.engine
    for number in range(200):
        await put(engine, b"key %d" % number, b"v")
    most = 0
    read = rig.device.read

    def counted(offset_bytes: int, buffer: memoryview) -> object:
        nonlocal most
        most = max(most, engine._arena.used_bytes // 4096)
        return read(offset_bytes, buffer)

    with mock.patch.object(rig.device, "read", counted):
        listings = [asyncio.create_task(list_all(engine)) for _ in range(10)]
        await asyncio.sleep(0)
        await put(engine, b"meanwhile", b"v")
        assert all(len(keys) in (200, 201) for keys in await asyncio.gather(*listings))
    assert most <= 17


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_walk_meets_every_row_of_the_map_once(data: st.DataObject) -> None:
    """Runs of displaced rows, also over the end of the map, in windows of any size."""
    with short_journal():
        table = SlotTable(geometry_of(4))
    keys = KeyMap(table, 1024)
    row_ids = table.row_ids() if (table.slab_class != 255).any() else table.give_slab(0, 0, 1, 1, 0)
    homes = data.draw(st.lists(st.integers(0, 40) | st.integers(keys.size - 8, keys.size - 1), max_size=120))
    for row_id, home in zip(row_ids.tolist(), homes, strict=False):
        start = -(-(home << 32) // keys.size) + data.draw(st.integers(0, 50))
        digest = start.to_bytes(4, "big") + row_id.to_bytes(12, "big")
        table.lines["digest"][row_id] = digest
        keys.insert(digest, row_id)
    met: list[int] = []
    position = 0
    while position < keys.size:
        stop = min(keys.size, position + data.draw(st.integers(1, keys.size)))
        met += sorted(keys.row_ids_of_homes(position, stop).tolist())
        position = stop
    assert sorted(met) == sorted(row_ids.tolist()[: len(homes)])
    for home in (0, 5, keys.size - 1):
        last = keys.last_of(home)
        assert keys.home_of(last) == home
        assert last == b"\xff" * 16 or keys.home_of((int.from_bytes(last, "big") + 1).to_bytes(16, "big")) == home + 1
