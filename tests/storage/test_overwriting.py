"""Overwriting without pause: old slots wait for a flush, and the class makes one instead of taking what others need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import pytest

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.space import FLUSH_WAIT_SECONDS
from tests.support.engines import (
    OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    payload_of,
    peek,
    put,
    short_journal,
    turns,
    until,
)
from tests.support.simulated_device import cut_all, fail
from tests.support.virtual_loop import run_virtually

SLABS = 20
OVERWRITES = 20
"""How often each key of a working set is put again."""

Flushing = Callable[[Rig], AbstractAsyncContextManager[object]]


def class_of(engine: Engine, size_bytes: int) -> int:
    return engine._index.geometry.class_for(size_bytes + 256)


@dataclass(frozen=True)
class Working:
    """A working set: ``keys`` values of ``size_bytes``, put by ``writers`` at a time.

    Others' values are of another class: a larger one whose slots may be borrowed, if there is one.
    """

    size_bytes: int
    keys: int
    writers: int
    other_bytes: int

    def slot_class(self, engine: Engine) -> int:
        return class_of(engine, self.size_bytes)

    def slots_wanted(self, engine: Engine) -> int:
        """Twice what is held and written, in whole slabs, and one slab more."""
        per_slab = engine._index.geometry.slots_per_slab(self.slot_class(engine))
        slabs = -(-2 * (self.keys + self.writers) // per_slab) + 1
        return slabs * per_slab

    async def overwrite(self, engine: Engine, times: int = OVERWRITES) -> None:
        for round_ in range(times):
            for begin in range(0, self.keys, self.writers):
                numbers = range(begin, min(begin + self.writers, self.keys))
                await asyncio.gather(*(self._put(engine, number, round_) for number in numbers))

    async def _put(self, engine: Engine, number: int, round_: int) -> None:
        await put(engine, b"working %d" % number, payload_of(number + round_, self.size_bytes))


MANY_SLOTS = Working(700, 120, 16, 10_000)
FEW_SLOTS = Working(35_000, 30, 6, 130_000)
ONE_SLOT = Working(1_000_000, 2, 1, 130_000)
"""A slab has one slot."""
EACH = pytest.mark.parametrize("working", [MANY_SLOTS, FEW_SLOTS, ONE_SLOT], ids=["many", "few", "one"])


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A device of some slabs; nothing flushes unless it is asked."""
    with short_journal():
        rig = Rig(formatted_image(SLABS), options=OPTIONS)
        try:
            await rig.start()
            yield rig
            rig.device.faults.clear()
            await rig.engine.flush()
            check_accounts(rig.engine)
            assert rig.engine.status().capacity.slots.in_flight == 0
            await rig.stop()
        finally:
            cut_all()


@asynccontextmanager
async def slow_flushes(rig: Rig) -> AsyncIterator[None]:
    """Flushes take so many turns of the loop that a class runs dry meanwhile."""

    async def release() -> None:
        while True:
            await turns(300)
            for pending in list(rig.device.held):
                rig.device.release(pending)

    rig.device.hold = lambda kind, offset, size: kind is OpKind.FLUSH
    releasing = asyncio.create_task(release())
    yield
    releasing.cancel()
    rig.device.release_all()


class Others:
    """Entries of another class."""

    def __init__(self, engine: Engine, working: Working) -> None:
        self.engine = engine
        self.size_bytes = working.other_bytes
        self.slot_class = class_of(engine, self.size_bytes)
        self.count = 0
        assert self.slot_class != working.slot_class(engine)

    async def add(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            await put(self.engine, b"other %d" % number, payload_of(number, self.size_bytes))
        self.count += count

    async def missing(self) -> list[int]:
        there = [await peek(self.engine, b"other %d" % number) for number in range(self.count)]
        return [number for number, value in enumerate(there) if value != payload_of(number, self.size_bytes)]


@EACH
@pytest.mark.parametrize("flushing", [nullcontext, slow_flushes])
async def test_a_working_set_keeps_to_twice_what_it_holds(rig: Rig, working: Working, flushing: Flushing) -> None:
    engine = rig.engine
    slots = engine._index.slots
    others = Others(engine, working)
    await others.add(20)
    async with flushing(rig):
        await working.overwrite(engine)
    assert slots.total(working.slot_class(engine)) <= working.slots_wanted(engine)
    assert slots.unowned
    assert engine.counters.evictions["evicted"] == 0
    assert await others.missing() == []
    # A flush brings back half of the class: it isn't made for each put.
    puts = working.keys * OVERWRITES
    assert engine.counters.flushes <= 2 + 4 * puts // slots.total(working.slot_class(engine))


@EACH
@pytest.mark.parametrize("flushing", [nullcontext, slow_flushes])
async def test_a_working_set_takes_nothing_of_others_where_no_slab_is_spare(
    rig: Rig, working: Working, flushing: Flushing
) -> None:
    engine = rig.engine
    slots = engine._index.slots
    async with flushing(rig):
        await working.overwrite(engine, 6)
    mine = slots.total(working.slot_class(engine))
    others = Others(engine, working)
    while slots.unowned:
        await others.add(1)
    await engine.flush()
    free = slots.free_count(others.slot_class)
    assert free, "the last slab of the others has room, which overwriting may not borrow"
    async with flushing(rig):
        await working.overwrite(engine)
    assert slots.total(working.slot_class(engine)) == mine
    assert engine.counters.evictions["evicted"] == 0
    assert await others.missing() == []
    assert slots.free_count(others.slot_class) == free


@EACH
async def test_where_no_flush_succeeds_a_spare_slab_is_taken(rig: Rig, working: Working) -> None:
    engine = rig.engine
    await working.overwrite(engine, 6)
    total = engine._index.slots.total(working.slot_class(engine))
    rig.device.faults.append(fail(OpKind.FLUSH, times=1_000_000))
    begun = len(rig.device.flushes)
    while engine._index.slots.total(working.slot_class(engine)) < 2 * total:
        await working.overwrite(engine, 1)
    assert len(rig.device.flushes) - begun <= 2, "who takes slabs doesn't try a flush each time"
    rig.device.faults.clear()
    await engine.flush()
    await working.overwrite(engine)
    assert engine._index.slots.total(working.slot_class(engine)) <= 3 * total


async def test_a_flush_is_under_way_before_the_class_runs_dry(rig: Rig) -> None:
    """Puts go on meanwhile: they find slots without waiting."""
    engine = rig.engine
    slots = engine._index.slots
    working = MANY_SLOTS
    slot_class = working.slot_class(engine)
    await working.overwrite(engine, 6)
    await engine.flush()
    rig.device.hold = lambda kind, offset, size: kind is OpKind.FLUSH
    while not rig.device.held:
        await working.overwrite(engine, 1)
    assert slots.free_count(slot_class) >= slots.total(slot_class) // 16
    rig.device.release_all()


async def test_where_readers_hold_what_waits_a_flush_is_no_reason_to_wait(rig: Rig) -> None:
    """A flush frees nothing then: a put takes a spare slab, each time after one flush at most."""
    engine = rig.engine
    slots = engine._index.slots
    working = FEW_SLOTS
    readers = []
    for _ in range(4):
        await working.overwrite(engine, 1)
        readers += [await engine.open_read("n", b"working %d" % number) for number in range(working.keys)]
    assert slots.total(working.slot_class(engine)) >= 4 * working.keys
    assert engine.counters.flushes <= 4
    for reader in readers:
        reader.close()


async def test_a_put_that_is_cancelled_while_it_waits_for_a_flush_has_nothing(rig: Rig) -> None:
    engine = rig.engine
    working = ONE_SLOT
    rig.device.hold = lambda kind, offset, size: kind is OpKind.FLUSH
    putting = asyncio.ensure_future(working.overwrite(engine))
    await until(lambda: bool(rig.device.held))
    await turns(200)
    assert not putting.done()
    putting.cancel()
    await asyncio.wait([putting])
    rig.device.release_all()
    await engine.flush()
    assert engine.status().capacity.slots.live <= working.keys


def test_a_flush_that_does_not_end_holds_no_put_for_long() -> None:
    """In virtual time: the put waits as long as it may, and then takes a spare slab."""

    async def run() -> None:
        rig = Rig(formatted_image(SLABS), options=OPTIONS)
        engine = await rig.start()
        loop = asyncio.get_running_loop()
        await ONE_SLOT.overwrite(engine, 2)
        rig.device.hold = lambda kind, offset, size: kind is OpKind.FLUSH
        began, took = loop.time(), []
        for _ in range(3):
            await ONE_SLOT.overwrite(engine, 1)
            took.append(loop.time() - began)
        assert took[-1] > 0, "it did wait"
        assert took[-1] <= 3 * ONE_SLOT.keys * FLUSH_WAIT_SECONDS
        assert engine.counters.evictions["evicted"] == 0
        rig.device.release_all()
        await rig.stop()

    with short_journal():
        try:
            run_virtually(run())
        finally:
            cut_all()
