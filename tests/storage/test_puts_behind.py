"""Puts that are acknowledged before they have joined: what comes later of their key waits for all of them (D2)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from storage.device.counters import OpKind
from storage.entries import Conditions, Durability
from storage.errors import PreconditionFailed
from tests.support.engines import Rig, check_accounts, get, payload_of, peek, put, turns, until
from tests.support.simulated_device import fail


@pytest.mark.parametrize("later", ["delete", "put"])
async def test_d2_a_put_at_level_none_that_fails_lets_nothing_overtake_the_one_before_it(rig: Rig, later: str) -> None:
    """Two puts of a key are acknowledged, the second one's write fails while the first one's is still under way: a
    deletion that is acknowledged then must not be undone by the first, nor a newer value replaced by it."""
    engine, device = rig.engine, rig.device
    await put(engine, b"first", b"v")
    slabs = engine._index.geometry.slabs_offset
    device.hold = lambda kind, offset, _size: kind is OpKind.WRITE and offset >= slabs
    results = [await put(engine, b"key", payload_of(n, 900), durability=Durability.NONE) for n in (1, 2)]
    assert [result.created for result in results] == [True, False], "the second one replaces what was acknowledged"
    first, second = device.held
    device.hold = None
    device.release(second, 5)
    await turns()
    change = asyncio.ensure_future(
        engine.delete("n", b"key") if later == "delete" else put(engine, b"key", payload_of(3, 900))
    )
    await turns()
    assert not change.done()
    device.release(first)
    await change
    await turns()
    if later == "delete":
        assert await peek(engine, b"key") is None
    else:
        assert await get(engine, b"key") == payload_of(3, 900)
    assert engine.counters.puts["lost"] == 1


async def test_l1_a_batch_waits_for_what_was_acknowledged_before_it_and_not_for_what_goes_on_coming(rig: Rig) -> None:
    """L1: puts at level ``none`` that come as fast as they are written do not keep a batch of their key waiting."""
    engine, device = rig.engine, rig.device
    await put(engine, b"first", b"v")
    slabs = engine._index.geometry.slabs_offset
    session = await engine.begin_put("n", b"key", 5)
    await session.write(b"batch")
    session.stage()
    await turns()
    device.hold = lambda kind, offset, _size: kind is OpKind.WRITE and offset >= slabs
    before = payload_of(1, 900)
    await put(engine, b"key", before, durability=Durability.NONE)
    batch = asyncio.ensure_future(engine.commit_many([session]))
    await turns()
    assert not batch.done(), "D2: what was acknowledged before it joins before it"
    for number in range(2, 20):
        await put(engine, b"key", payload_of(number, 900), durability=Durability.NONE)
        device.release(device.held[0])
        await turns()
    assert batch.done()
    device.release_all()
    await until(lambda: not engine.status().capacity.slots.in_flight)
    assert await get(engine, b"key") == payload_of(19, 900), "acknowledged later than the batch began, it may be later"


@pytest.mark.parametrize("what", ["put", "delete"])
async def test_l1_a_condition_is_refused_although_its_key_goes_on_changing(rig: Rig, what: str) -> None:
    """L1, D3: once what it was decided against is durable, whatever was queued behind that meanwhile."""
    engine, device = rig.engine, rig.device
    written = await put(engine, b"key", b"v")
    geometry = engine._index.geometry
    device.hold = lambda kind, offset, _size: (
        kind is OpKind.WRITE and geometry.journal_offset <= offset < geometry.slabs_offset
    )
    puts = [asyncio.ensure_future(put(engine, b"key", b"0"))]
    await until(lambda: bool(device.held))
    stale = Conditions(write_ids=frozenset({written.write_id}))
    change = asyncio.ensure_future(
        put(engine, b"key", b"mine", conditions=stale)
        if what == "put"
        else engine.delete("n", b"key", conditions=stale)
    )
    await turns()
    assert not change.done(), "D3: what it was decided against may yet be undone"
    for number in range(1, 20):
        puts.append(asyncio.ensure_future(put(engine, b"key", b"%d" % number)))
        await turns()
        device.release(device.held[0])
        await turns()
    assert change.done()
    assert isinstance(change.exception(), PreconditionFailed)
    device.release_all()
    await asyncio.gather(*puts)
    assert await get(engine, b"key") == b"19"


@pytest.mark.parametrize("in_batch", [False, True])
async def test_d1_a_put_at_level_none_that_waits_for_the_journal_is_not_counted_as_lost(
    rig: Rig, in_batch: bool
) -> None:
    """Its row was queued when the journal failed: it is neither lost nor failed, and becomes durable later."""
    engine, device = rig.engine, rig.device
    await put(engine, b"first", b"v")
    geometry = engine._index.geometry
    fault = fail(OpKind.WRITE, start_byte=geometry.journal_offset, stop_byte=geometry.slabs_offset)
    device.faults.append(fault)
    if in_batch:
        session = await engine.begin_put("n", b"key", 5, durability=Durability.NONE)
        await session.write(b"value")
        session.stage()
        await engine.commit_many([session])
    else:
        await put(engine, b"key", b"value", durability=Durability.NONE)
    while not engine._journal.unavailable:
        await asyncio.sleep(0.01)
    await turns()
    assert await get(engine, b"key") == b"value"
    device.faults.remove(fault)
    while engine._journal.unavailable:
        await asyncio.sleep(0.01)
    await until(lambda: not engine.status().capacity.slots.in_flight)
    assert engine.counters.puts == {"created": 2, "replaced": 0, "refused": 0, "failed": 0, "lost": 0}


async def test_a2_a_journal_that_fails_forgets_what_was_queued_of_a_wiped_namespace_too(rig: Rig) -> None:
    engine, device = rig.engine, rig.device
    for number in range(5):
        await put(engine, b"key %d" % number, b"v", namespace="wiped")
    geometry = engine._index.geometry
    await engine.wipe_namespace("wiped")
    fault = fail(OpKind.WRITE, start_byte=geometry.journal_offset, stop_byte=geometry.slabs_offset)
    device.faults.append(fault)  # the wipe is durable; the rows it frees in the background are not
    await until(lambda: bool(engine._index.namespaces.dying))
    while not engine._journal.unavailable:
        await asyncio.sleep(0.01)
    check_accounts(engine)
    device.faults.remove(fault)
    while engine._journal.unavailable:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", ["slab", "flush"])
async def test_what_fails_after_every_client_that_waited_for_it_left_is_no_unheard_error(rig: Rig, what: str) -> None:
    engine, device = rig.engine, rig.device
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    await put(engine, b"first", b"v")
    kind = OpKind.WRITE if what == "slab" else OpKind.FLUSH
    device.hold = lambda is_kind, _offset, _size: is_kind is kind
    client: Coroutine[Any, Any, object] = put(engine, b"key", b"value", durability=Durability.FLUSH)
    if what == "slab":
        client.close()
        client = engine.begin_put("n", b"key", 200_000)
    leaving = asyncio.ensure_future(client)
    await until(lambda: bool(device.held))
    leaving.cancel()
    await asyncio.wait([leaving])
    device.hold = None
    device.release(device.held[0], 5)
    del leaving
    await turns()
    gc.collect()
    assert not complaints
