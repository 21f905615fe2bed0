"""Reads begun without a coroutine (``Engine.begin_read``): B1 under reuse, failures, a reader whose owner left, want of
memory; on a simulated device and on both I/O engines."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from storage.device.counters import OpKind
from storage.device.opening import open_device
from storage.engine import Engine
from storage.entry_reader import EntryReader
from storage.errors import Busy, Draining, EntryCorrupt, EntryNotFound, EntryUnreadable, KeyInvalid, NamespaceInvalid
from storage.formatting import format_device
from storage.namespace_settings import NamespaceSettings
from tests.support.engines import MIB, OPTIONS, Rig, check_accounts, get, payload_of, peek, put, turns, until
from tests.support.simulated_device import fail


class Asker:
    """Who begins reads; ``results`` are what was told, in order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.results: list[EntryReader | None] = []

    def begin(self, key: bytes, **options: frozenset[int]) -> bool:
        return self.engine.begin_read("n", key, self.results.append, **options)

    async def read(self, key: bytes) -> EntryReader | None:
        """Of a read that is begun: what is told."""
        count = len(self.results)
        assert self.begin(key)
        assert len(self.results) == count, "told by the one who was asked"
        await until(lambda: len(self.results) > count)
        return self.results[-1]

    async def value(self, key: bytes) -> bytes:
        """Of a read that ends well."""
        reader = await self.read(key)
        assert reader is not None
        return take(reader)


def take(reader: EntryReader) -> bytes:
    """All that a reader has; it is closed."""
    whole = reader.whole(0, reader.info.payload_bytes)
    assert whole is not None
    value = bytes(whole)
    reader.close()
    return value


@pytest.fixture
def asker(rig: Rig) -> Asker:
    return Asker(rig.engine)


def place_of(rig: Rig, key: bytes) -> tuple[int, int]:
    """Row id and offset of a key's slot."""
    found = rig.engine._commit.published(rig.engine._identity.digest(1, key))
    assert found is not None
    return found[0], rig.engine._index.table.slot_offset(found[0])


def lookups(engine: Engine) -> dict[str, int]:
    return {name: count for name, count in engine.counters.lookups.items() if count}


@pytest.mark.parametrize("size", [0, 1, 3900, 4096, 65536, 65537, 300_000])
async def test_b1_what_was_put_is_told(rig: Rig, asker: Asker, size: int) -> None:
    metadata = (("colour", "red"),)
    result = await put(rig.engine, b"key", payload_of(1, size), content_type="text/plain", metadata=metadata)
    reader = await asker.read(b"key")
    assert reader is not None
    with_reader = await rig.engine.open_read("n", b"key")
    assert reader.info == with_reader.info
    with_reader.close()
    assert (reader.info.write_id, reader.info.content_type, reader.info.metadata) == (
        result.write_id,
        "text/plain",
        metadata,
    )
    assert b"".join([bytes(piece) async for piece in reader.pieces()]) == payload_of(1, size)
    assert take(reader) == payload_of(1, size)
    reader.close()
    assert lookups(rig.engine) == {"hit": 2}
    assert rig.engine._arena.used_bytes == 0
    assert not rig.engine._index.slots.holds_count


async def test_a_miss_and_what_is_no_key_are_raised_at_once(rig: Rig, asker: Asker) -> None:
    await put(rig.engine, b"key", b"value", expires_at=int(rig.clock()) + 5)
    with pytest.raises(EntryNotFound):
        asker.begin(b"other")
    with pytest.raises(EntryNotFound):
        rig.engine.begin_read("elsewhere", b"key", asker.results.append)
    with pytest.raises(KeyInvalid):
        asker.begin(b"")
    with pytest.raises(NamespaceInvalid):
        rig.engine.begin_read("no/name", b"key", asker.results.append)
    rig.clock.advance(6)
    with pytest.raises(EntryNotFound):
        asker.begin(b"key")
    assert lookups(rig.engine) == {"miss": 2, "expired": 1}
    await rig.engine.stop()
    with pytest.raises(Draining):
        asker.begin(b"key")
    assert not asker.results


async def test_what_is_not_to_be_read_plainly_is_left_to_open_read(rig: Rig, asker: Asker) -> None:
    known = await put(rig.engine, b"key", b"value")
    large = payload_of(3, rig.engine._read_path.whole_max_bytes)
    await put(rig.engine, b"large", large)
    assert not asker.begin(b"large")
    assert not asker.begin(b"key", known_ids=frozenset({known.write_id}))
    assert asker.begin(b"key", known_ids=frozenset({known.write_id + 1}))
    await until(lambda: bool(asker.results))
    assert asker.results[0] is not None
    asker.results[0].close()
    assert lookups(rig.engine) == {"hit": 1}
    assert await get(rig.engine, b"large") == large


async def test_l1_without_memory_or_room_in_the_devices_queue_nothing_is_begun(
    rig: Rig, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig.engine
    await put(engine, b"key", b"value")
    pieces = []
    while (piece := engine._arena.try_acquire(2 * MIB)) is not None:
        pieces.append(piece)
    assert not asker.begin(b"key")
    reading = asyncio.create_task(get(engine, b"key"))  # waits for memory, and is not overtaken
    await turns()
    pieces.pop().release()
    assert not engine._arena.waiting
    assert await reading == b"value"
    for piece in pieces:
        piece.release()

    def refuse(_: object) -> None:
        raise Busy("too much in flight")

    monkeypatch.setattr(rig.device, "begin_read", refuse)
    assert not asker.begin(b"key")
    assert engine._arena.used_bytes == 0
    assert not engine._index.slots.holds_count
    assert not asker.results


async def test_b1_a_slot_is_not_reused_beneath_a_read(rig: Rig, asker: Asker) -> None:
    """Its entry is replaced and deleted, freed and flushed; its slot is given to nobody before the reader closes."""
    engine, device = rig.engine, rig.device
    await put(engine, b"key", payload_of(1, 3000))
    row_id, offset = place_of(rig, b"key")
    device.hold = lambda kind, at, size: kind is OpKind.READ and at == offset
    assert asker.begin(b"key")
    await put(engine, b"key", payload_of(2, 3000))
    await engine.delete("n", b"key")
    await engine.flush()

    async def others(first: int) -> set[int]:
        places = set()
        for number in range(first, first + 30):
            await put(engine, b"other %d" % number, payload_of(number, 3000))
            places.add(place_of(rig, b"other %d" % number)[0])
        return places

    assert row_id not in await others(0)
    device.release_all()
    await until(lambda: bool(asker.results))
    reader = asker.results[0]
    assert reader is not None
    assert row_id not in await others(100)
    assert take(reader) == payload_of(1, 3000)
    assert row_id in await others(200), "the slot is free again"
    assert await peek(engine, b"key") is None


async def test_b1_a_reader_whose_owner_has_left(rig: Rig) -> None:
    """Memory and slot stay taken until the device is done; who is told then, and has left, closes the reader."""
    engine, device = rig.engine, rig.device
    await put(engine, b"key", payload_of(1, 3000))
    device.hold = lambda kind, *_: kind is OpKind.READ
    told: list[bool] = []

    def left(reader: EntryReader | None) -> None:
        assert reader is not None
        reader.close()
        told.append(True)

    assert engine.begin_read("n", b"key", left)
    await engine.delete("n", b"key")
    await turns()
    assert engine._arena.used_bytes == 4096
    assert engine._index.slots.holds_count == 1
    device.release_all()
    await until(lambda: bool(told))
    assert engine._arena.used_bytes == 0
    assert not engine._index.slots.holds_count


async def test_r7_a_read_that_fails_is_opened_again(rig: Rig, asker: Asker) -> None:
    """One failure is no damage: nothing is counted, nothing is held, and ``open_read`` finds the value."""
    engine = rig.engine
    await put(engine, b"key", payload_of(1, 3000))
    _, offset = place_of(rig, b"key")
    rig.device.faults.append(fail(OpKind.READ, start_byte=offset, stop_byte=offset + 4096, times=1))
    assert await asker.read(b"key") is None
    assert not lookups(engine)
    assert not engine._index.slots.holds_count
    assert engine._arena.used_bytes == 0
    assert await get(engine, b"key") == payload_of(1, 3000)
    assert lookups(engine) == {"hit": 1}
    rig.device.faults.append(fail(OpKind.READ, start_byte=offset, stop_byte=offset + 4096))
    assert await asker.read(b"key") is None
    with pytest.raises(EntryUnreadable):
        await get(engine, b"key")
    assert engine.status().capacity.slots.quarantined == 1


@pytest.mark.parametrize("where", [10, 50, 1500])
async def test_r8_damage_is_told_by_open_read(rig: Rig, asker: Asker, where: int) -> None:
    engine = rig.engine
    await put(engine, b"key", payload_of(1, 3000))
    _, offset = place_of(rig, b"key")
    rig.device.flip(offset + where)
    assert await asker.read(b"key") is None
    assert not lookups(engine)
    assert not sum(engine.counters.corruptions.values())
    with pytest.raises(EntryCorrupt):
        await get(engine, b"key")
    assert engine.counters.corruptions["read"] == 1
    with pytest.raises(EntryNotFound):
        asker.begin(b"key")


async def test_a_read_that_is_begun_counts_for_recency_and_slides_an_expiry(rig: Rig, asker: Asker) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(default_ttl_seconds=160, sliding_ttl=True))
    expires_at = engine.expires_at("n", None)
    await put(engine, b"key", b"value", expires_at=expires_at)
    row_id, _ = place_of(rig, b"key")
    before = engine._index.table.row(row_id).access
    assert await asker.value(b"key") == b"value"
    assert engine._index.table.row(row_id).access == before + 1
    rig.clock.advance(100)
    assert await asker.value(b"key") == b"value"
    await until(lambda: engine._index.table.row(row_id).expires_at == expires_at + 100)


async def test_an_error_of_one_who_is_told_keeps_nobody_else_from_being_told(rig: Rig, asker: Asker) -> None:
    await put(rig.engine, b"key", b"value")
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def broken(reader: EntryReader | None) -> None:
        assert reader is not None
        reader.close()
        raise KeyError("a mistake of the one who is told")

    assert rig.engine.begin_read("n", b"key", broken)
    assert await asker.value(b"key") == b"value"
    assert len(errors) == 1


@pytest.mark.parametrize("io_engine", ["uring", "threads"])
async def test_b1_on_a_real_file_with_writers_beside(tmp_path: Path, io_engine: str) -> None:
    """Reads begun in dozens while their keys are overwritten and deleted: each is told a value of its key, whole."""
    path = str(tmp_path / "cache")
    format_device(path, size_bytes=64 * MIB, slab_bytes=MIB, allow_buffered=True)
    device = open_device(path, write=True, allow_buffered=True, io_engine=io_engine)
    engine = Engine(device, OPTIONS)
    await engine.start()
    try:
        assert device.io_engine == io_engine
        keys = [b"key %d" % number for number in range(12)]
        chance = random.Random(io_engine)
        versions = dict.fromkeys(keys, 0)
        under_way = told = 0
        ended = asyncio.Event()

        async def write(key: bytes) -> None:
            for version in range(1, 20):
                size = chance.choice([100, 3000, 20_000, 70_000])
                versions[key] = version
                await put(engine, key, b"%b %d|" % (key, version) + payload_of(version, size))
                if version % 7 == 0:
                    await engine.delete("n", key)

        def begin(key: bytes) -> None:
            def done(reader: EntryReader | None) -> None:
                nonlocal under_way, told
                under_way -= 1
                ended.set()
                assert reader is not None
                head, _, rest = take(reader).partition(b"|")
                name, _, version = head.rpartition(b" ")
                assert name == key
                assert 0 < int(version) <= versions[key]
                assert rest == payload_of(int(version), len(rest))
                told += 1

            nonlocal under_way
            try:
                under_way += engine.begin_read("n", key, done)
            except EntryNotFound:
                return

        writing = asyncio.gather(*map(write, keys))
        while not writing.done():
            for key in chance.choices(keys, k=24):
                begin(key)
            if under_way < 48:
                await asyncio.sleep(0)
            else:  # a loop that never waits leaves the threads no time
                ended.clear()
                await ended.wait()
        await writing
        for key in keys:
            begin(key)
        while under_way:
            await asyncio.sleep(0)
        assert told > 100
        check_accounts(engine)
        assert engine._arena.used_bytes == 0
    finally:
        await engine.stop()
        device.close()


@pytest.mark.parametrize("io_engine", ["uring", "threads"])
async def test_stop_waits_for_a_read_that_is_begun(tmp_path: Path, io_engine: str) -> None:
    path = str(tmp_path / "cache")
    format_device(path, size_bytes=64 * MIB, slab_bytes=MIB, allow_buffered=True)
    device = open_device(path, write=True, allow_buffered=True, io_engine=io_engine)
    engine = Engine(device, OPTIONS)
    await engine.start()
    await put(engine, b"key", b"value")
    values: list[bytes] = []

    def done(reader: EntryReader | None) -> None:
        assert reader is not None
        values.append(take(reader))

    for _ in range(10):
        assert engine.begin_read("n", b"key", done)
    await engine.stop()
    device.close()
    assert values == [b"value"] * 10
