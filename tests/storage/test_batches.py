"""Batches: read ahead in order, joined in one step, an error of one key is its own (B1, A2, D1, D3, L1)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from storage.batch_reads import WINDOW_BYTES, WINDOW_READS, WINDOWS_MAX
from storage.buffers import HUGE_PAGE_BYTES
from storage.device.counters import OpKind
from storage.engine import Engine
from storage.entries import UNCONDITIONAL, Conditions, Durability, EntrySketch, PutResult
from storage.errors import (
    Busy,
    EntryCorrupt,
    EntryNotFound,
    KeyInvalid,
    LeaseNotFound,
    LengthMismatch,
    PreconditionFailed,
    RawblockdError,
    WriteFailed,
)
from storage.limits import CHUNK_BYTES
from storage.namespace_settings import NamespaceSettings
from storage.put_session import PutSession
from tests.support.engines import Rig, check_accounts, get, one_by_one, payload_of, peek, put, turns, until
from tests.support.simulated_device import Fault

Entry = tuple[bytes, bytes]


async def stage(
    engine: Engine,
    key: bytes,
    value: bytes,
    *,
    durability: Durability = Durability.JOURNAL,
    conditions: Conditions = UNCONDITIONAL,
) -> PutSession:
    session = await engine.begin_put("n", key, len(value), durability=durability, conditions=conditions)
    await session.write(value)
    session.stage()
    return session


async def put_many(
    engine: Engine, entries: Sequence[Entry], durability: Durability = Durability.JOURNAL
) -> list[PutResult | RawblockdError]:
    return await engine.commit_many([await stage(engine, *entry, durability=durability) for entry in entries])


async def get_many(engine: Engine, keys: Sequence[bytes], lease_id: str = "") -> list[bytes | str]:
    """The values, and the codes of errors."""
    found: list[bytes | str] = []
    async with aclosing(one_by_one(engine.open_many("n", keys, lease_id=lease_id))) as results:
        async for position, reader in results:
            assert position == len(found)
            if isinstance(reader, RawblockdError):
                found.append(reader.code)
            else:
                found.append(b"".join([bytes(piece) async for piece in reader.pieces()]))
                reader.close()
    return found


def idle(engine: Engine) -> bool:
    return not engine.status().capacity.slots.in_flight and not engine._arena.used_bytes


@pytest.mark.parametrize("durability", list(Durability))
async def test_d1_a_batch_at_each_level(rig: Rig, durability: Durability) -> None:
    engine = rig.engine
    sizes = [0, 1, 3500, 4096, 70_000]
    entries = [(b"key %d" % number, payload_of(number, size)) for number, size in enumerate(sizes)]
    results = await put_many(engine, entries, durability)
    assert all(isinstance(result, PutResult) and result.created for result in results)
    assert await get_many(engine, [key for key, _ in entries]) == [value for _, value in entries]
    await until(lambda: idle(engine))
    check_accounts(engine)
    await until(lambda: engine._journal.idle)
    if durability is not Durability.NONE:
        await rig.crash()
        assert await get_many(rig.engine, [key for key, _ in entries]) == [value for _, value in entries]


async def test_one_write_of_the_journal_carries_a_batch(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"first", b"v")
    entries = [(b"key %d" % number, b"v") for number in range(200)]
    sessions = [await stage(engine, *entry) for entry in entries]
    await until(lambda: all(session.is_written for session in sessions))
    before = engine.counters.journal_blocks
    await engine.commit_many(sessions)
    assert engine.counters.journal_blocks - before == -(-200 // engine._index.geometry.rows_per_journal_block)


async def test_nothing_is_visible_before_the_whole_batch_joins(rig: Rig) -> None:
    """B1: a batch that breaks while it is uploaded leaves nothing, neither entries nor slots nor buffers."""
    engine = rig.engine
    sessions = [await stage(engine, b"key %d" % number, payload_of(number, 5000)) for number in range(20)]
    half = await engine.begin_put("n", b"half", 100)
    await half.write(b"x" * 50)
    assert await get_many(engine, [b"key 0", b"key 19", b"half"]) == ["not_found"] * 3
    for session in [*sessions, half]:
        session.abort()
    await until(lambda: idle(engine))
    assert engine.status().capacity.slots.live == 0
    check_accounts(engine)


async def test_a_later_put_of_a_batch_does_not_let_an_earlier_one_of_its_key_pass(engine: Engine) -> None:
    """The earlier one wants the key to be there; it is not until the later one has joined, which then stands."""
    await put(engine, b"key", b"old")
    wants = Conditions(must_be_present=True)
    earlier = await stage(engine, b"key", b"earlier", conditions=wants)
    later = await stage(engine, b"key", b"later")
    await engine.delete("n", b"key")
    results = await engine.commit_many([earlier, later])
    assert isinstance(results[0], PreconditionFailed)
    assert isinstance(results[1], PutResult)
    assert await get_many(engine, [b"key"]) == [b"later"]


async def test_an_error_of_one_is_its_own(rig: Rig) -> None:
    """A condition, a failing write, a duplicate, between puts that succeed."""
    engine = rig.engine
    good = await stage(engine, b"good", b"1")
    refused = await stage(engine, b"there", b"2", conditions=Conditions(must_be_absent=True))
    await put(engine, b"there", b"old")
    failing = await engine.begin_put("n", b"failing", 10)
    await failing.write(b"0123456789")
    offset = failing._place[4]
    rig.device.faults.append(Fault(OpKind.WRITE, errno.EIO, offset, offset + 4096))
    failing.stage()
    first = await stage(engine, b"twice", b"a")
    second = await stage(engine, b"twice", b"b")
    last = await stage(engine, b"last", b"3")
    results = await engine.commit_many([good, refused, failing, first, second, last])
    assert isinstance(results[0], PutResult)
    assert isinstance(results[1], PreconditionFailed)
    assert results[1].present_write_id == (await engine.head("n", b"there")).write_id
    assert isinstance(results[2], WriteFailed)
    assert isinstance(results[3], PutResult)
    assert results[3].created
    assert isinstance(results[4], PutResult)
    assert not results[4].created
    assert isinstance(results[5], PutResult)
    assert await get_many(engine, [b"good", b"there", b"failing", b"twice", b"last"]) == [
        b"1",
        b"old",
        "not_found",
        b"b",
        b"3",
    ]
    assert engine.namespace("n").entries == 4
    await until(lambda: idle(engine))
    check_accounts(engine)


async def test_a_staged_put_that_is_short_is_refused(rig: Rig) -> None:
    session = await rig.engine.begin_put("n", b"key", 10)
    await session.write(b"short")
    with pytest.raises(LengthMismatch):
        session.stage()
    session.abort()
    await until(lambda: idle(rig.engine))


async def test_d2_a_batch_killed_after_it_joined_or_before(rig: Rig) -> None:
    """Each of its keys holds the old or the new value, whole."""
    engine = rig.engine
    for number in range(50):
        await put(engine, b"key %d" % number, b"old %d" % number)
    sessions = [await stage(engine, b"key %d" % number, b"new %d" % number) for number in range(50)]
    image = rig.device.crash_image()
    commit = asyncio.create_task(engine.commit_many(sessions))
    await commit
    after = rig.device.crash_image()
    await rig.crash(image)
    assert await get_many(rig.engine, [b"key %d" % n for n in range(50)]) == [b"old %d" % n for n in range(50)]
    check_accounts(rig.engine)
    await rig.crash(after)
    assert await get_many(rig.engine, [b"key %d" % n for n in range(50)]) == [b"new %d" % n for n in range(50)]
    check_accounts(rig.engine)


@pytest.mark.parametrize("turns_before", range(1, 8))
async def test_a_cancelled_batch_is_whole_or_leaves_nothing(rig: Rig, turns_before: int) -> None:
    engine = rig.engine
    sessions = [await stage(engine, b"key %d" % number, b"v") for number in range(5)]
    commit = asyncio.create_task(engine.commit_many(sessions))
    await turns(turns_before)
    commit.cancel()
    await asyncio.wait([commit])
    await until(lambda: idle(engine) and engine._journal.idle)
    assert engine.status().capacity.slots.live in (0, 5)
    assert await engine.commit_many([]) == []
    check_accounts(engine)


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_misses_bad_keys_and_large_values_in_their_places(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"small", b"s")
    await put(engine, b"large", payload_of(1, 1_040_000))
    await put(engine, b"expired", b"e", expires_at=int(rig.clock()) + 5)
    rig.clock.advance(10)
    keys = [b"small", b"absent", b"", b"large", b"expired", b"small", b"k" * 1025]
    assert await get_many(engine, keys) == [
        b"s",
        "not_found",
        "key_invalid",
        payload_of(1, 1_040_000),
        "not_found",
        b"s",
        "key_invalid",
    ]
    assert engine.counters.lookups == {"hit": 3, "miss": 1, "expired": 1, "corrupt": 0, "error": 0}
    await until(lambda: idle(engine))


async def test_b1_a_damaged_record_is_an_error_of_its_own(rig: Rig) -> None:
    engine = rig.engine
    for number in range(10):
        await put(engine, b"key %d" % number, payload_of(number, 3000))
    row_id, _ = engine._commit.published(engine._identity.digest(1, b"key 4")) or (0, None)
    offset = engine._index.table.slot_offset(row_id)
    rig.device.image.write(offset + 200, b"\xff")
    found = await get_many(engine, [b"key %d" % number for number in range(10)])
    assert found[4] == EntryCorrupt.code
    assert [found[n] for n in range(10) if n != 4] == [payload_of(n, 3000) for n in range(10) if n != 4]
    assert engine.status().capacity.slots.quarantined == 1
    check_accounts(engine)


async def test_r7_failures_within_a_window_are_of_their_keys(rig: Rig) -> None:
    """A read that fails and one that does not verify, once each: both are made again, alone, and nothing is lost."""
    engine = rig.engine
    for number in range(80):
        await put(engine, b"key %d" % number, payload_of(number, 3000))
    offsets = []
    for number in (3, 70):
        row_id, _ = engine._commit.published(engine._identity.digest(1, b"key %d" % number)) or (0, None)
        offsets.append(engine._index.table.slot_offset(row_id))
    rig.device.faults.append(Fault(OpKind.READ, errno.EIO, offsets[0], offsets[0] + 4096, times=1))
    rig.device.flips[offsets[1] + 300] = 1
    reads = rig.device.operations(OpKind.READ)
    async with aclosing(one_by_one(engine.open_many("n", [b"key %d" % number for number in range(80)]))) as results:
        async for position, reader in results:
            assert not isinstance(reader, RawblockdError)
            assert bytes(reader.whole(0, 3000) or b"") == payload_of(position, 3000)
            reader.close()
            if position == 60:
                rig.device.flips.clear()
    assert rig.device.operations(OpKind.READ) - reads == 82
    assert engine.status().capacity.slots.quarantined == 0
    assert engine.counters.lookups["hit"] == 80


async def test_results_come_in_windows_and_what_is_large_alone(rig: Rig) -> None:
    """L1: what one list holds in memory is bounded, and an error costs no window."""
    engine = rig.engine
    large = engine._read_path.whole_max_bytes
    if large > engine.status().capacity.max_value_bytes:
        large = engine.status().capacity.max_value_bytes
    for number in range(150):
        await put(engine, b"key %d" % number, b"%d" % number)
    await put(engine, b"large", payload_of(1, large))
    keys = [b"key %d" % number for number in range(150)]
    keys[10], keys[100] = b"absent", b"large"
    sizes = []
    async with aclosing(engine.open_many("n", keys)) as lists:
        async for some in lists:
            sizes.append(len(some))
            assert engine._arena.used_bytes <= WINDOWS_MAX * WINDOW_BYTES
    assert sum(sizes) == 150
    assert sizes[0] == WINDOW_READS
    assert max(sizes) == WINDOW_READS
    assert idle(engine)
    assert not engine._index.slots.holds_count


async def test_b1_a_batch_cancelled_in_the_middle_of_its_reads(rig: Rig) -> None:
    """Memory and slots stay taken until the device is done with them."""
    engine = rig.engine
    for number in range(100):
        await put(engine, b"key %d" % number, payload_of(number, 3000))
    rig.device.hold = lambda kind, *_: kind is OpKind.READ

    async def read() -> None:
        async with aclosing(engine.open_many("n", [b"key %d" % number for number in range(100)])) as lists:
            async for _ in lists:
                raise AssertionError("nothing has been read")

    task = asyncio.create_task(read())
    await turns()
    task.cancel()
    await turns()
    assert not task.done()
    assert len(rig.device.held) == 100
    used_bytes = engine._arena.used_bytes
    assert used_bytes >= 100 * 4096
    assert engine._index.slots.holds_count == 100
    for _ in range(64):  # the first window has ended, the second has not
        rig.device.release(rig.device.held[0])
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine._index.slots.holds_count == 36
    assert 0 < engine._arena.used_bytes < used_bytes
    rig.device.release_all()
    await until(lambda: idle(engine) and not engine._index.slots.holds_count)
    assert await get(engine, b"key 5") == payload_of(5, 3000)


async def test_b1_a_read_that_is_thrown_out_keeps_its_memory_until_it_has_ended(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"value")
    rig.device.hold = lambda kind, *_: kind is OpKind.READ
    reading = engine.open_read("n", b"key")
    reading.send(None)
    reading.close()
    assert engine._arena.used_bytes == 4096
    assert engine._index.slots.holds_count == 1
    rig.device.release_all()
    await until(lambda: idle(engine) and not engine._index.slots.holds_count)


async def test_l1_a_batch_larger_than_the_arena_is_read_in_order(rig: Rig) -> None:
    engine = rig.engine
    values = {b"key %d" % number: payload_of(number, 60_000) for number in range(16)}
    for key, value in values.items():
        await put(engine, key, value)
    keys = list(values) * 12
    assert await get_many(engine, keys) == [values[key] for key in keys]
    await until(lambda: idle(engine))


async def test_a_batch_left_half_way_lets_go_of_what_it_read_ahead(rig: Rig) -> None:
    engine = rig.engine
    for number in range(64):
        await put(engine, b"key %d" % number, b"v")
    async with aclosing(one_by_one(engine.open_many("n", [b"key %d" % number for number in range(64)]))) as results:
        async for _, reader in results:
            assert not isinstance(reader, RawblockdError)
            reader.close()
            break
    await until(lambda: idle(engine) and not engine._index.slots.holds_count)


async def test_l1_a_window_of_misses_takes_no_memory(rig: Rig) -> None:
    """Where there is too little memory for a record, what stands before it in the window has none either."""
    engine = rig.engine
    await put(engine, b"key", payload_of(1, 900_000))
    buffers = []
    while engine._arena.used_bytes < engine._arena.total_bytes - HUGE_PAGE_BYTES:
        buffers.append(await engine._arena.acquire(HUGE_PAGE_BYTES, 1.0))
    for size_bytes in (HUGE_PAGE_BYTES // 2, HUGE_PAGE_BYTES // 4):
        buffers.append(await engine._arena.acquire(size_bytes, 1.0))
    used_bytes = engine._arena.used_bytes
    async with aclosing(engine.open_many("n", [b"absent", b"key"])) as lists:
        results = await anext(lists)
        assert [type(result) for result in results] == [EntryNotFound]
    assert engine._arena.used_bytes == used_bytes
    for buffer in buffers:
        buffer.release()


async def test_l1_batches_do_not_wait_for_each_others_memory(rig: Rig) -> None:
    """Small values and large ones in turn, and more batches than there is memory for: each gets all of its values."""
    engine = rig.engine
    path = engine._read_path
    path.whole_max_bytes, path._piece_chunks = 4 * CHUNK_BYTES, 3
    values = {b"small %d" % number: payload_of(number, 60_000) for number in range(12)}
    large = payload_of(100, 300_000)
    await put(engine, b"large", large)
    for key, value in values.items():
        await put(engine, key, value)
    keys = [key for number in range(0, 12, 3) for key in (*list(values)[number : number + 3], b"large")] * 4
    wanted = [values.get(key, large) for key in keys]
    for found in await asyncio.gather(*[get_many(engine, keys) for _ in range(24)]):
        assert found == wanted
    await until(lambda: idle(engine))
    assert not engine._index.slots.holds_count


async def test_a_device_that_takes_no_batch_is_asked_one_by_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine
    keys = [b"key %d" % number for number in range(100)]
    for key in keys:
        await put(engine, key, key)

    def refuse(_: object) -> None:
        raise Busy("many operations are in flight")

    monkeypatch.setattr(rig.device, "read_many", refuse)
    assert await get_many(engine, keys) == keys
    async with aclosing(engine.open_many("n", keys)) as lists:
        await anext(lists)
    assert idle(engine)
    assert not engine._index.slots.holds_count


@pytest.mark.parametrize("size", [3000, 700_000])
async def test_b1_a_reader_that_is_kept_outlives_its_batch(rig: Rig, size: int) -> None:
    """L1: it holds the slot, whatever becomes of the key, and no memory."""
    engine = rig.engine
    path = engine._read_path
    path.whole_max_bytes, path._piece_chunks = 4 * CHUNK_BYTES, 3
    await put(engine, b"key", payload_of(1, size))
    async with aclosing(engine.open_many("n", [b"key", b"key"])) as lists:
        reader = (await anext(lists))[0]
        assert not isinstance(reader, RawblockdError)
        reader.keep()
    assert engine._arena.used_bytes == 0
    assert engine._index.slots.holds_count == 1
    for number in range(2, 5):
        await put(engine, b"key", payload_of(number, size))
        await engine.flush()
    assert b"".join([bytes(piece) async for piece in reader.pieces()]) == payload_of(1, size)
    reader.close()
    assert idle(engine)
    assert not engine._index.slots.holds_count


async def test_b1_overwritten_while_it_is_read_ahead(rig: Rig) -> None:
    engine = rig.engine
    for number in range(64):
        await put(engine, b"key %d" % number, b"old %d" % number)
    found: list[bytes] = []
    async with aclosing(one_by_one(engine.open_many("n", [b"key %d" % number for number in range(64)]))) as results:
        async for position, reader in results:
            assert not isinstance(reader, RawblockdError)
            found += [bytes(piece) async for piece in reader.pieces()]
            reader.close()
            if position == 0:
                for number in range(64):
                    await put(engine, b"key %d" % number, b"new %d" % number)
                await engine.flush()
    for number, value in enumerate(found):
        assert value in (b"old %d" % number, b"new %d" % number)
    check_accounts(engine)


async def test_l3_a_batch_under_a_lease(rig: Rig) -> None:
    engine = rig.engine
    for number in range(5):
        await put(engine, b"key %d" % number, b"old")
    lease = engine.lease("n", [b"key 1", b"key 3"], ttl_seconds=60).lease
    for number in range(5):
        await put(engine, b"key %d" % number, b"new")
    keys = [b"key %d" % number for number in range(5)]
    assert await get_many(engine, keys, lease.lease_id) == [b"new", b"old", b"new", b"old", b"new"]
    with pytest.raises(LeaseNotFound):
        engine.open_many("n", keys, lease_id="other")


async def test_exists_many_reads_nothing(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"value", expires_at=int(rig.clock()) + 100)
    reads = engine._device.counters.read.operations
    sketches = engine.exists_many("n", [b"key", b"absent", b""])
    assert isinstance(sketches[0], EntrySketch)
    assert (sketches[0].payload_bytes, sketches[0].expires_at) == (5, int(rig.clock()) + 100)
    assert sketches[1] is None
    assert isinstance(sketches[2], KeyInvalid)
    assert engine.exists_many("absent", [b"key"]) == [None]
    assert engine._device.counters.read.operations == reads


async def test_many_keys_are_looked_up_as_one_is(rig: Rig) -> None:
    """As arrays, also those that others have pushed out of their home buckets; a put not durable yet is seen or not as
    one that is looked for alone."""
    engine = rig.engine
    for number in range(300):
        await put(engine, b"key %d" % number, bytes(number % 50))
    rig.device.hold = lambda kind, *_: kind is OpKind.WRITE
    sessions = [await stage(engine, b"key %d" % number, b"x" * 60) for number in (7, 8)]
    queued = asyncio.gather(*(engine.commit_many([session]) for session in sessions))
    await turns()
    keys = [b"key %d" % number for number in range(400)]
    digests = engine._identity.digests(1, keys)
    assert digests == [engine._identity.digest(1, key) for key in keys]
    assert engine._index.keys.find_many(digests) == [engine._index.keys.find(digest) for digest in digests]
    assert engine._commit.published_many(digests) == [engine._commit.published(digest) for digest in digests]
    found = engine.exists_many("n", keys)
    assert [sketch.payload_bytes if isinstance(sketch, EntrySketch) else None for sketch in found] == [
        number % 50 if number < 300 else None for number in range(400)
    ]
    rig.device.release_all()
    await queued


# -- deletion --------------------------------------------------------------------------------------------------------


async def test_delete_many(rig: Rig) -> None:
    engine = rig.engine
    written = [(await put(engine, b"key %d" % number, b"v")).write_id for number in range(3)]
    outcomes = await engine.delete_many("n", [b"key 0", b"absent", b"key 2", b"key 2", b""])
    assert outcomes[0] == written[0]
    assert isinstance(outcomes[1], EntryNotFound)
    assert outcomes[2] == written[2]
    assert isinstance(outcomes[3], EntryNotFound)
    assert isinstance(outcomes[4], KeyInvalid)
    assert engine.namespace("n").entries == 1
    assert isinstance((await engine.delete_many("absent", [b"key"]))[0], EntryNotFound)
    await rig.crash()
    assert [await peek(rig.engine, b"key %d" % number) for number in range(3)] == [None, b"v", None]
    check_accounts(rig.engine)


# -- expiry and metadata ---------------------------------------------------------------------------------------------


async def test_a_touch_changes_the_expiry_and_nothing_else(rig: Rig) -> None:
    engine = rig.engine
    result = await put(engine, b"key", b"v", expires_at=int(rig.clock()) + 10)
    sketch = await engine.touch("n", b"key", expires_at=int(rig.clock()) + 100)
    assert (sketch.write_id, sketch.expires_at) == (result.write_id, int(rig.clock()) + 100)
    rig.clock.advance(50)
    await rig.crash()
    engine = rig.engine
    assert await peek(engine, b"key") == b"v"
    info = await engine.head("n", b"key")
    assert (info.write_id, info.expires_at) == (result.write_id, int(rig.clock()) + 50)
    await engine.touch("n", b"key", expires_at=0, conditions=Conditions(write_ids=frozenset({result.write_id})))
    rig.clock.advance(1000)
    await engine.expire()
    assert await peek(engine, b"key") == b"v"
    with pytest.raises(PreconditionFailed):
        await engine.touch("n", b"key", expires_at=5, conditions=Conditions(write_ids=frozenset({1})))
    with pytest.raises(EntryNotFound):
        await engine.touch("n", b"absent", expires_at=5)
    await engine.touch("n", b"key", expires_at=int(rig.clock()) - 1)
    assert await peek(engine, b"key") is None
    await engine.expire()
    await until(lambda: engine._journal.idle)
    assert engine.status().capacity.slots.live == 0
    check_accounts(engine)


async def test_a_read_slides_the_expiry(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(default_ttl_seconds=100, sliding_ttl=True))
    await put(engine, b"read", b"v", expires_at=engine.expires_at("n", None))
    await put(engine, b"not read", b"v", expires_at=engine.expires_at("n", None))
    await put(engine, b"for ever", b"v")
    for _ in range(20):
        rig.clock.advance(60)
        assert await peek(engine, b"read") == b"v"
        await engine.expire()
        await until(lambda: engine._journal.idle)
    assert await peek(engine, b"not read") is None
    assert await peek(engine, b"for ever") == b"v"
    await rig.crash()
    rig.clock.advance(60)
    assert await peek(rig.engine, b"read") == b"v"
    check_accounts(rig.engine)


async def test_a_read_of_a_batch_or_of_a_part_slides_the_expiry_and_a_look_does_not(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(default_ttl_seconds=100, sliding_ttl=True))
    for key in (b"batch", b"part", b"looked at"):
        await put(engine, key, b"v", expires_at=engine.expires_at("n", None))
    rig.clock.advance(50)
    async for _, reader in one_by_one(engine.open_many("n", [b"batch"])):
        assert not isinstance(reader, RawblockdError)
        reader.close()
    (await engine.open_read("n", b"part", sparse=True)).close()
    await engine.head("n", b"looked at")
    await until(lambda: engine._journal.idle)
    left = [(await engine.head("n", key)).expires_at - rig.clock() for key in (b"batch", b"part", b"looked at")]
    assert left == [100, 100, 50]


@pytest.mark.parametrize("size", [0, 3000, 900_000])
async def test_an_update_copies_the_record(rig: Rig, size: int) -> None:
    engine = rig.engine
    value = payload_of(1, size)
    before = await put(engine, b"key", value, content_type="text/old", metadata=(("a", "1"),), expires_at=0)
    after = await engine.update("n", b"key", metadata=(("b", "2"),))
    assert after.write_id > before.write_id
    assert not after.created
    info = await engine.head("n", b"key")
    assert (info.content_type, info.metadata, info.expires_at) == ("text/old", (("b", "2"),), 0)
    assert await get(engine, b"key") == value
    with pytest.raises(PreconditionFailed) as caught:
        await engine.update("n", b"key", content_type="x/y", conditions=Conditions(write_ids=frozenset({1})))
    assert caught.value.present_write_id == after.write_id
    await engine.update("n", b"key", content_type="x/y", expires_at=int(rig.clock()) + 9)
    info = await engine.head("n", b"key")
    assert (info.content_type, info.metadata, info.expires_at) == ("x/y", (("b", "2"),), int(rig.clock()) + 9)
    with pytest.raises(EntryNotFound):
        await engine.update("n", b"absent", content_type="x/y")
    assert engine.namespace("n").entries == 1
    await until(lambda: idle(engine))
    check_accounts(engine)


async def test_d2_an_update_never_undoes_a_put(rig: Rig) -> None:
    """Puts of the key meanwhile: the copy is made of the newest value, or the put comes behind it."""
    engine = rig.engine
    await put(engine, b"key", b"value 0")

    async def puts() -> None:
        for number in range(1, 30):
            await put(engine, b"key", b"value %d" % number)

    async def updates() -> None:
        for number in range(10):
            try:
                await engine.update("n", b"key", metadata=(("round", str(number)),))
            except PreconditionFailed:
                continue

    await asyncio.gather(puts(), updates())
    assert await peek(engine, b"key") == b"value 29"
    check_accounts(engine)
