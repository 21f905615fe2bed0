"""Space: eviction, full devices, holds, accounting (A1, A2, B1, D4, L3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from storage.device.counters import OpKind
from storage.errors import Busy, Full
from storage.options import EvictionPolicy
from tests.support.damage import put_many
from tests.support.engines import (
    OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    peek,
    put,
    short_journal,
    until,
)
from tests.support.simulated_device import cut_all
from tests.support.virtual_loop import run_virtually


def room_of(rig: Rig) -> int:
    geometry = rig.engine._index.geometry
    return geometry.slabs * geometry.slots_per_slab(0)


async def fill(rig: Rig, first: int, count: int) -> None:
    for begin in range(first, first + count, 32):
        numbers = range(begin, min(begin + 32, first + count))
        await asyncio.gather(*(put(rig.engine, b"fill %d" % n, payload_of(n, 700)) for n in numbers))


async def test_eviction_makes_room_for_three_times_the_capacity(rig: Rig) -> None:
    await rig.reopen(options=replace(OPTIONS, eviction=EvictionPolicy.CLOCK))
    room = room_of(rig)
    await fill(rig, 0, 3 * room)
    engine = rig.engine
    assert engine.counters.evictions["evicted"] >= 2 * room
    for number in range(3 * room - room // 4, 3 * room):
        assert await get(engine, b"fill %d" % number) == payload_of(number, 700)
    present = [n for n in range(3 * room) if await peek(engine, b"fill %d" % n) is not None]
    assert len(present) == engine.status().capacity.slots.live
    check_accounts(engine)
    engine = await rig.reopen()
    again = [n for n in range(3 * room) if await peek(engine, b"fill %d" % n) is not None]
    assert again == present


async def test_what_is_read_outlives_what_is_not(rig: Rig) -> None:
    room = room_of(rig)
    await fill(rig, 0, room)
    for _ in range(3):
        for number in range(40):
            await get(rig.engine, b"fill %d" % number)
    await fill(rig, room, room // 2)
    kept = [n for n in range(40) if await peek(rig.engine, b"fill %d" % n) is not None]
    assert len(kept) == 40


async def test_a1_delete_everything_and_the_device_can_be_filled_to_the_last_slot(rig: Rig) -> None:
    engine, room = rig.engine, room_of(rig)
    for number in range(20):
        await put(engine, b"mixed %d" % number, payload_of(number, 100_000 if number % 3 else 5000))
    await fill(rig, 0, 100)
    for number in range(20):
        await engine.delete("n", b"mixed %d" % number)
    for number in range(100):
        await engine.delete("n", b"fill %d" % number)
    await engine.flush()
    status = engine.status()
    assert (status.capacity.used_bytes, status.capacity.payload_bytes, status.capacity.slots.live) == (0, 0, 0)
    assert status.namespaces["n"].entries == status.namespaces["n"].used_bytes == 0
    assert status.capacity.slots.limbo == 0
    await fill(rig, 1000, room)
    assert engine.status().capacity.slots.live == room
    assert engine.counters.evictions["evicted"] == 0


async def test_without_eviction_a_full_device_says_so(rig: Rig) -> None:
    engine = await rig.reopen(options=replace(OPTIONS, eviction=EvictionPolicy.NONE))
    room = room_of(rig)
    await fill(rig, 0, room)
    for _ in range(3):
        with pytest.raises(Full):
            await put(engine, b"one more", b"x")
    with pytest.raises(Full):
        await put(engine, b"fill 0", payload_of(1, 700))
    assert await get(engine, b"fill 0") == payload_of(0, 700)
    await engine.delete("n", b"fill 7")
    await put(engine, b"one more", b"x")
    assert await get(engine, b"one more") == b"x"
    assert engine.counters.evictions["evicted"] == 0


async def test_b1_d4_a_slot_is_not_reused_beneath_a_slow_reader(rig: Rig) -> None:
    """The reader gets the old value whole, however often its key was replaced and the device filled."""
    engine = rig.engine
    small, large = payload_of(1, 3000), payload_of(2, 1_050_000)
    await put(engine, b"small", small)
    await put(engine, b"large", large)
    readers = [await engine.open_read("n", key) for key in (b"small", b"large")]
    pieces = readers[1].pieces()
    got = bytes(await anext(pieces))
    await engine.delete("n", b"small")
    await put(engine, b"large", payload_of(3, 500_000))
    await engine.flush()
    assert engine.status().capacity.slots.limbo == 2
    await fill(rig, 0, 2 * room_of(rig))
    assert engine._index.slots.limbo_count >= 2
    assert b"".join([bytes(piece) async for piece in readers[0].pieces()]) == small
    async for piece in pieces:
        got += bytes(piece)
    assert got == large
    for reader in readers:
        reader.close()
        reader.close()
    await engine.flush()
    assert engine.status().capacity.slots.limbo == 0
    assert engine._index.slots.holds_count == 0


def test_l1_a_put_that_waits_for_a_reader_lets_time_pass() -> None:
    """No flush frees what a reader holds. A put that waits for it must not keep the loop busy: in virtual time, which
    goes on only when nothing else can, it would never end."""

    async def wait() -> None:
        rig = Rig(formatted_image(), options=replace(OPTIONS, eviction=EvictionPolicy.NONE))
        engine = await rig.start()
        await fill(rig, 0, room_of(rig))
        reader = await engine.open_read("n", b"fill 7")
        await engine.delete("n", b"fill 7")
        await engine.flush()
        with pytest.raises(Busy):
            await put(engine, b"one more", b"x")
        waiting = asyncio.ensure_future(put(engine, b"one more", b"x"))
        await asyncio.sleep(OPTIONS.wait_timeout_seconds / 2)
        reader.close()
        assert (await waiting).created
        await rig.stop()

    with short_journal():
        try:
            run_virtually(wait())
        finally:
            cut_all()


async def test_a_reader_that_leaves_in_the_middle_holds_nothing(rig: Rig) -> None:
    engine, device = rig.engine, rig.device
    await put(engine, b"large", payload_of(2, 1_050_000))
    reader = await engine.open_read("n", b"large")
    pieces = reader.pieces()
    device.hold = lambda kind, offset, size: kind is OpKind.READ
    waiting = asyncio.ensure_future(anext(pieces))
    await until(lambda: bool(device.held))
    reader.close()
    assert engine._index.slots.holds_count == 1, "the device still reads the slot"
    device.release_all()
    await asyncio.wait([waiting])
    await until(lambda: engine._index.slots.holds_count == 0)
    await pieces.aclose()
    waiting.exception()
    await until(lambda: engine._arena.used_bytes == 0)


async def test_d4_a_freed_slot_waits_for_a_flush(rig: Rig) -> None:
    """No slot is written again before a flush that followed its freeing row."""
    engine, device = rig.engine, rig.device
    await put(engine, b"key", b"1")
    table = engine._index.table
    old = engine._commit.published(engine._identity.digest(1, b"key"))[0]  # type: ignore[index]
    await put(engine, b"key", b"2")
    begin = device.now
    await put_many(engine, range(1, 400))
    again = [w for w in device.writes if w.offset_bytes == table.slot_offset(old) and w.issued >= begin]
    assert not again
    await engine.flush()
    flushed = max(f.done for f in device.flushes)
    await put_many(engine, range(1000, 1000 + 400))
    again = [w for w in device.writes if w.offset_bytes == table.slot_offset(old) and w.issued >= begin]
    assert all(w.issued > flushed for w in again)


async def test_a_reserve_is_a_part_of_what_the_class_has_now(rig: Rig) -> None:
    """A class that had to wait when it had more slabs does not evict all that it has left."""
    room = room_of(rig)
    await fill(rig, 0, room)
    rig.engine._space.evicting.ahead[0] = room
    evicted = await rig.engine._space.evicting.evict(0)
    assert 0 < evicted <= room // 8
    newest = range(room - room // 2, room)
    assert [n for n in newest if await peek(rig.engine, b"fill %d" % n) is None] == []
