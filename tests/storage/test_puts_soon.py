"""Puts without coroutines (``begin_put_now``, ``commit_soon``): what has to wait is left to ``begin_put``, each put is
told of once, one that is given up leaves nothing; on a simulated device and on both I/O engines."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

import pytest

from storage.device.counters import OpKind
from storage.device.opening import open_device
from storage.engine import Engine
from storage.entries import Conditions, Durability, PutResult
from storage.errors import (
    Draining,
    JournalUnavailable,
    KeyInvalid,
    LengthMismatch,
    PreconditionFailed,
    RawblockdError,
    ValueTooLarge,
    WriteFailed,
)
from storage.format.parts import Part
from storage.formatting import format_device
from storage.namespace_settings import NamespaceSettings
from storage.put_session import PutSession
from storage.schema import OnMissing, PartSpec
from tests.support.engines import MIB, OPTIONS, Rig, check_accounts, get, payload_of, peek, put, turns, until
from tests.support.simulated_device import Fault

Outcome = PutResult | RawblockdError


def begun(engine: Engine, key: bytes, payload: bytes, **options: Any) -> PutSession:
    """A put that has all of its payload."""
    session = engine.begin_put_now("n", key, len(payload), **options)
    assert session is not None
    assert session.write_now(payload)
    return session


class Told:
    """Who is told of puts; ``outcomes`` in order."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    async def wait(self, count: int = 1) -> list[Outcome]:
        await until(lambda: len(self.outcomes) >= count)
        await turns()
        assert len(self.outcomes) == count, "a put is told of once"
        return self.outcomes


@pytest.fixture
async def told(rig: Rig) -> Told:
    await put(rig.engine, b"first", b"v")  # the namespace and a slab are there
    return Told()


async def finish(session: PutSession) -> Outcome:
    told = Told()
    session.commit_soon(told.outcomes.append)
    assert not told.outcomes, "told before the call returned"
    return (await told.wait())[0]


def hold_records(rig: Rig) -> None:
    """Writes of records wait until they are released."""
    slabs = rig.engine._index.geometry.slabs_offset
    rig.device.hold = lambda kind, offset, _size: kind is OpKind.WRITE and offset >= slabs


@pytest.mark.parametrize("size", [0, 1, 3900, 4096, 65536, 65537, 100_000])
async def test_d3_what_is_told_can_be_read(rig: Rig, told: Told, size: int) -> None:
    payload = payload_of(1, size)
    metadata = (("colour", "red"),)
    await put(rig.engine, b"another", payload, content_type="text/plain", metadata=metadata)  # the class has a slab
    session = begun(rig.engine, b"key", payload, content_type="text/plain", metadata=metadata, expires_at=4_000_000_000)
    outcome = await finish(session)
    assert isinstance(outcome, PutResult)
    assert (outcome.created, outcome.durability, outcome.write_id) == (True, Durability.JOURNAL, session.write_id)
    session.abort()
    assert await get(rig.engine, b"key") == payload
    info = await rig.engine.head("n", b"key")
    assert (info.content_type, info.metadata, info.expires_at) == ("text/plain", metadata, 4_000_000_000)
    again = await finish(begun(rig.engine, b"key", payload_of(2, 17)))
    assert isinstance(again, PutResult)
    assert not again.created
    assert await get(rig.engine, b"key") == payload_of(2, 17)
    assert rig.engine.counters.puts["created"] == 3
    assert rig.engine.counters.puts["replaced"] == 1


async def test_what_has_to_be_waited_for_is_not_begun(rig: Rig, told: Told) -> None:
    """Each is left to ``begin_put``, and holds nothing: the rig sees to that. Refusals are raised and counted."""
    engine = rig.engine
    await engine.set_namespace("quota", NamespaceSettings(quota_entries=5))
    assert engine.begin_put_now("new", b"key", 5) is None
    assert engine.begin_put_now("quota", b"key", 5) is None
    assert engine.begin_put_now("n", b"key", 5, conditions=Conditions(must_be_absent=True)) is None
    assert engine.begin_put_now("n", b"key", 5, parts=(Part("a", "uint8", (5,)),)) is None
    assert engine.begin_put_now("n", b"key", 300_000) is None, "no slab of that class is there yet"
    assert engine.counters.puts["refused"] == 0
    with pytest.raises(KeyInvalid):
        engine.begin_put_now("n", b"", 5)
    with pytest.raises(ValueTooLarge):
        engine.begin_put_now("n", b"key", 1 << 31)
    assert engine.counters.puts["refused"] == 2


async def test_l1_without_a_buffer_nothing_is_begun(rig: Rig, told: Told) -> None:
    arena = rig.engine._arena
    pieces = []
    while (piece := arena.try_acquire(2 * MIB)) is not None:
        pieces.append(piece)
    assert rig.engine.begin_put_now("n", b"key", 5) is None
    assert rig.engine.status().capacity.slots.in_flight == 0
    for piece in pieces:
        piece.release()
    assert isinstance(await finish(begun(rig.engine, b"key", b"value")), PutResult)


async def test_a_payload_that_is_not_all_there_is_refused_at_once(rig: Rig, told: Told) -> None:
    session = rig.engine.begin_put_now("n", b"key", 5)
    assert session is not None
    assert session.write_now(b"1234")
    with pytest.raises(LengthMismatch):
        session.write_now(b"56")
    with pytest.raises(LengthMismatch):
        session.commit_soon(told.outcomes.append)
    session.abort()
    await turns()
    assert not told.outcomes


async def test_a_write_that_fails_is_told_and_gives_everything_back(rig: Rig, told: Told) -> None:
    """The rig sees to slots and memory; nobody has to abort."""
    session = begun(rig.engine, b"key", b"value")
    rig.device.faults.append(Fault(OpKind.WRITE, errno.EIO, times=1))
    outcome = await finish(session)
    assert isinstance(outcome, WriteFailed)
    assert rig.engine.status().capacity.slots.in_flight == 0
    assert await peek(rig.engine, b"key") is None


async def test_d3_a_journal_that_fails_is_told(rig: Rig, told: Told) -> None:
    """The slot is given back by the undoing, and only once."""
    engine, device = rig.engine, rig.device
    session = begun(engine, b"key", b"value")
    first, size = engine._index.geometry.journal_offset, engine._index.geometry.journal_bytes
    device.faults.append(Fault(OpKind.WRITE, errno.EIO, first, first + size))
    session.commit_soon(told.outcomes.append)
    while not told.outcomes:
        await asyncio.sleep(0.01)
    (outcome,) = await told.wait()
    assert isinstance(outcome, JournalUnavailable)
    assert engine.counters.puts["failed"] == 1
    session.abort()
    device.faults.clear()
    while engine._journal.unavailable:
        await asyncio.sleep(0.01)
    assert await peek(engine, b"key") is None


@pytest.mark.parametrize("level", [Durability.NONE, Durability.JOURNAL, Durability.FLUSH])
async def test_d1_a_level_is_told_when_it_is_reached(rig: Rig, told: Told, level: Durability) -> None:
    engine, device = rig.engine, rig.device
    session = begun(engine, b"key", b"value", durability=level)
    hold_records(rig)
    session.commit_soon(told.outcomes.append)
    await turns()
    assert len(told.outcomes) == (level is Durability.NONE), "told at once, or not before the record is written"
    flushes = len(device.flushes)
    device.release_all()
    await engine._write_path.close()
    (outcome,) = await told.wait()
    assert isinstance(outcome, PutResult)
    assert outcome.durability is level
    assert (len(device.flushes) > flushes) is (level is Durability.FLUSH)
    assert await get(engine, b"key") == b"value"
    assert engine.counters.puts["created"] == 2


async def test_b1_given_up_under_way_it_keeps_slot_and_memory_until_the_device_is_done(rig: Rig, told: Told) -> None:
    engine, device = rig.engine, rig.device
    session = begun(engine, b"key", b"value")
    hold_records(rig)
    session.commit_soon(told.outcomes.append)
    session.abort()
    session.abort()
    assert engine.status().capacity.slots.in_flight == 1
    assert engine._arena.used_bytes > 0
    device.release_all()
    await turns()
    assert engine.status().capacity.slots.in_flight == 0
    assert engine._arena.used_bytes == 0
    assert not told.outcomes
    assert await peek(engine, b"key") is None


async def test_d1_given_up_when_it_has_joined_it_goes_on(rig: Rig, told: Told) -> None:
    engine, device = rig.engine, rig.device
    session = begun(engine, b"key", b"value")
    slabs = engine._index.geometry.slabs_offset
    device.hold = lambda kind, offset, _size: kind is OpKind.WRITE and offset < slabs
    session.commit_soon(told.outcomes.append)
    await until(lambda: bool(device.held))
    session.abort()
    device.release_all()
    (outcome,) = await told.wait()
    assert isinstance(outcome, PutResult)
    assert await get(engine, b"key") == b"value"


async def test_d2_it_joins_behind_what_was_acknowledged_before_it(rig: Rig, told: Told) -> None:
    """A put of the key at level ``none`` whose record is written later must not win."""
    engine, device = rig.engine, rig.device
    hold_records(rig)
    begun(engine, b"key", b"old", durability=Durability.NONE).commit_soon(told.outcomes.append)
    old = device.held[0]
    begun(engine, b"key", b"newer").commit_soon(told.outcomes.append)
    (newer,) = [pending for pending in device.held if pending is not old]
    device.release(newer)
    await turns()
    assert len(told.outcomes) == 1
    device.release(old)
    await told.wait(2)
    assert await get(engine, b"key") == b"newer"


async def test_d3_a_condition_is_decided_when_it_joins(rig: Rig, told: Told) -> None:
    """Of two that must find nothing one wins; the other one is told once the winner is durable."""
    engine = rig.engine
    absent = Conditions(must_be_absent=True)
    sessions = [await engine.begin_put("n", b"key", 1, conditions=absent) for _ in range(2)]
    for number, session in enumerate(sessions):
        assert session.write_now(b"%d" % number)
        session.commit_soon(told.outcomes.append)
    outcomes = await told.wait(2)
    winners = [outcome for outcome in outcomes if isinstance(outcome, PutResult)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, PreconditionFailed)]
    assert [loser.present_write_id for loser in losers] == [winner.write_id for winner in winners]
    assert len(winners) == 1


async def test_who_raises_when_told_keeps_no_other_from_being_told(rig: Rig, told: Told) -> None:
    """Nor the journal from being written: it goes to the loop's exception handler."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))

    def burn(_outcome: Outcome) -> None:
        raise ZeroDivisionError

    for number in range(6):
        begun(rig.engine, b"key %d" % number, b"value").commit_soon(burn if number % 2 else told.outcomes.append)
    await told.wait(3)
    assert [type(context["exception"]) for context in raised] == [ZeroDivisionError] * 3
    assert rig.engine._journal.idle
    await put(rig.engine, b"after", b"value")
    assert [await peek(rig.engine, b"key %d" % number) for number in range(6)] == [b"value"] * 6


async def test_parts_that_the_schema_fills_in_follow(rig: Rig, told: Told) -> None:
    """What a connection reads straight into the buffer leaves the defaults to the end of the put."""
    engine = rig.engine
    specs = (PartSpec("a", "uint8", (4,)), PartSpec("b", "uint8", (3,), 7))
    await engine.set_namespace("s", NamespaceSettings(parts=specs, schema_version=1, on_missing=OnMissing.DEFAULT))
    session = await engine.begin_put("s", b"key", 4, parts=(specs[0].part,))
    session.room()[:4] = b"abcd"
    session.filled(4)
    session.commit_soon(told.outcomes.append)
    (outcome,) = await told.wait()
    assert isinstance(outcome, PutResult)
    assert await get(engine, b"key", namespace="s") == b"abcd" + bytes([7, 7, 7])


async def test_after_the_stop_nothing_is_begun(rig: Rig, told: Told) -> None:
    session = begun(rig.engine, b"key", b"value")
    session.abort()
    await rig.stop()
    with pytest.raises(Draining):
        rig.engine.begin_put_now("n", b"key", 5)


@pytest.mark.parametrize("io_engine", ["uring", "threads"])
async def test_many_at_once_on_a_real_device(tmp_path: Path, io_engine: str) -> None:
    """D1, D2: each of some keys ends with the value that was acknowledged last, whatever was given up between."""
    chance, path = random.Random(5), str(tmp_path / "cache")
    format_device(path, size_bytes=64 * MIB)
    device = open_device(path, write=True, allow_buffered=True, io_engine=io_engine)
    engine = Engine(device, OPTIONS)
    await engine.start()
    await asyncio.gather(*(put(engine, b"%d" % number, payload_of(0, 900)) for number in range(40)))
    last: dict[bytes, int] = dict.fromkeys((b"%d" % key for key in range(40)), 0)
    under_way: set[bytes] = set()
    ended = 0

    def note(key: bytes, version: int, outcome: Outcome) -> None:
        nonlocal ended
        assert isinstance(outcome, PutResult)
        last[key] = version
        under_way.discard(key)
        ended += 1

    given_up = 0
    for version in range(1, 400):
        key = b"%d" % chance.randrange(40)
        await until(lambda key=key: key not in under_way)  # type: ignore[misc]
        session = engine.begin_put_now("n", key, 900)
        if session is None:
            session = await engine.begin_put("n", key, 900)
        assert session.write_now(payload_of(version, 900))
        if chance.random() < 0.1:
            session.commit_soon(lambda _: None)
            session.abort()
            given_up += 1
            continue
        under_way.add(key)
        session.commit_soon(lambda outcome, key=key, version=version: note(key, version, outcome))  # type: ignore[misc]
    await until(lambda: not under_way, limit=2_000_000)
    assert ended + given_up == 399
    for key, version in last.items():
        assert await get(engine, key) == payload_of(version, 900)
    await until(lambda: engine.status().capacity.slots.in_flight == 0, limit=2_000_000)
    check_accounts(engine)
    assert engine._arena.used_bytes == 0
    await engine.stop()
    device.close()
