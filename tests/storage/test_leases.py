"""Leases: what is held stays readable whatever becomes of its key, and costs at most its time (L1, L3, B1)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import EntryNotFound, LeaseNotFound, LeasesFull, ParameterInvalid, SpaceHeld
from storage.namespace_settings import NamespaceSettings
from tests.support.engines import Rig, check_accounts, get, payload_of, peek, put, until
from tests.support.simulated_device import Fault


async def get_leased(engine: Engine, key: bytes, lease_id: str) -> bytes:
    reader = await engine.open_read("n", key, lease_id=lease_id)
    try:
        return b"".join([bytes(piece) async for piece in reader.pieces()])
    finally:
        reader.close()


@pytest.fixture
def seconds() -> Iterator[list[float]]:
    """The clock of leases made by engines that start under it."""
    now = [1000.0]
    with mock.patch("storage.assembly.time.monotonic", side_effect=lambda: now[0]):
        yield now


async def test_l3_a_leased_entry_is_readable_whatever_happens_to_its_key(rig: Rig) -> None:
    engine = rig.engine
    for key in (b"overwritten", b"deleted", b"expired", b"kept"):
        expires_at = int(rig.clock()) + 5 if key == b"expired" else 0
        await put(engine, key, b"value of " + key, expires_at=expires_at)
    result = engine.lease("n", [b"overwritten", b"deleted", b"expired", b"kept", b"absent"], ttl_seconds=60, owner="me")
    assert [sketch is not None for sketch in result.held] == [True, True, True, True, False]
    await put(engine, b"overwritten", b"another")
    await engine.delete("n", b"deleted")
    rig.clock.advance(10)
    await engine.expire()
    await engine.flush()
    for round_ in range(3):
        for number in range(600):  # more than the device holds: every slot that can be is used again
            await put(engine, b"filler %d" % number, payload_of(number, 3500), namespace="m")
        await engine.checkpoint()
        for key in (b"overwritten", b"deleted", b"expired", b"kept"):
            assert await get_leased(engine, key, result.lease.lease_id) == b"value of " + key, (key, round_)
    assert await peek(engine, b"kept") == b"value of kept", "not evicted"
    assert await peek(engine, b"deleted") is None, "for others it is gone"
    held = engine.status().holds
    assert [(hold.kind, hold.holder, hold.slots, hold.held_bytes) for hold in held] == [("lease", "me", 4, 4 * 4096)]
    engine.release(result.lease.lease_id)
    with pytest.raises(LeaseNotFound):
        await engine.open_read("n", b"kept", lease_id=result.lease.lease_id)
    await engine.flush()
    assert not engine.status().holds
    check_accounts(engine)


async def test_l3_a_lease_outlives_a_wipe_of_its_namespace(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"value")
    lease = engine.lease("n", [b"key"], ttl_seconds=60).lease
    await engine.wipe_namespace("n")
    await put(engine, b"key", b"of the new namespace")
    await until(lambda: not engine._index.namespaces.dying)
    assert await get_leased(engine, b"key", lease.lease_id) == b"value"
    assert await get(engine, b"key") == b"of the new namespace"


@pytest.mark.parametrize("was_there", [False, True], ids=["made later", "wiped"])
async def test_l3_a_lease_extended_under_another_id_of_the_name_holds_there_too(rig: Rig, was_there: bool) -> None:
    engine = rig.engine
    if was_there:
        await put(engine, b"key", b"old")
    lease = engine.lease("n", [b"key"], ttl_seconds=60).lease
    if was_there:
        await engine.wipe_namespace("n")
    await put(engine, b"other", b"value")
    engine.lease("n", [b"other"], ttl_seconds=60, lease_id=lease.lease_id)
    await put(engine, b"other", b"newer")
    assert await get_leased(engine, b"other", lease.lease_id) == b"value"
    if was_there:
        assert await get_leased(engine, b"key", lease.lease_id) == b"old"


async def test_b1_the_slot_of_a_lost_put_is_not_used_again_beneath_a_reader(rig: Rig) -> None:
    """A put at level ``none`` that readers saw, and that the journal never took."""
    engine = rig.engine
    await put(engine, b"other", b"o")
    journal = engine._index.geometry.journal_block_offset(0)
    end = journal + engine._index.geometry.journal_blocks * 4096
    with mock.patch("storage.commit.VOLATILE_MAX", 0):
        rig.device.faults.append(Fault(OpKind.WRITE, errno.EIO, journal, end))
        await put(engine, b"key", payload_of(1, 3000), durability=Durability.NONE)
        digest = engine._identity.digest(1, b"key")
        await until(lambda: engine._commit.published(digest) is not None)
        reader = await engine.open_read("n", b"key")
        await asyncio.wait_for(_until(lambda: bool(engine._journal.unavailable)), 10)
        rig.device.faults.clear()
        await asyncio.wait_for(_until(lambda: not engine._journal.unavailable), 10)
    assert not engine._index.slots.is_idle(reader._row_id)
    assert engine.status().capacity.slots.limbo == 1
    reader.close()
    assert engine._index.slots.is_idle(reader._row_id)
    check_accounts(engine)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_l3_held_entries_are_not_victims_of_a_quota(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=4))
    for number in range(4):
        await put(engine, b"key %d" % number, b"v")
    lease = engine.lease("n", [b"key 0", b"key 1", b"key 2"], ttl_seconds=60, owner="trainer").lease
    for number in range(4, 12):
        await put(engine, b"key %d" % number, b"v")
    assert [await peek(engine, b"key %d" % number) for number in range(3)] == [b"v"] * 3
    engine.lease("n", [b"key 11"], ttl_seconds=60, lease_id=lease.lease_id)
    with pytest.raises(SpaceHeld) as caught:
        await put(engine, b"one more", b"v")
    assert caught.value.fields["holder"] == "lease of trainer"
    engine.release(lease.lease_id)
    await put(engine, b"one more", b"v")
    assert engine.namespace("n").entries == 4
    check_accounts(engine)


async def test_l3_when_only_held_entries_remain_the_answer_names_the_holder(rig: Rig) -> None:
    engine = rig.engine
    with mock.patch("storage.leases.LEASED_SHARE_MAX", 2.0):
        engine = await rig.reopen()
    number = 0
    while engine.status().capacity.free_slabs or engine.status().classes[0].slots.free:
        await put(engine, b"key %d" % number, payload_of(number, 3500))
        number += 1
    keys = [b"key %d" % n for n in range(number)]
    lease = engine.lease("n", keys, ttl_seconds=60, owner="hoarder").lease
    with pytest.raises(SpaceHeld) as caught:
        await put(engine, b"one more", b"v")
    assert caught.value.fields["holder"] == "lease of hoarder"
    assert all([await peek(engine, key) is not None for key in keys])
    engine.release(lease.lease_id)
    await put(engine, b"one more", b"v")
    check_accounts(engine)


async def test_a_lease_ends_with_its_time(seconds: list[float], rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    first = engine.lease("n", [b"key"], ttl_seconds=10).lease
    second = engine.lease("n", [b"key"], ttl_seconds=30).lease
    assert engine.status().holds[0].expires_in_seconds == 10
    seconds[0] += 9
    extended = engine.lease("n", [], ttl_seconds=10, lease_id=first.lease_id)
    assert extended.lease.entries == 1
    seconds[0] += 9
    assert await get_leased(engine, b"key", first.lease_id) == b"v"
    seconds[0] += 2
    with pytest.raises(LeaseNotFound):
        await engine.open_read("n", b"key", lease_id=first.lease_id)
    await engine.expire()
    assert [view.lease_id for view in engine.leases()] == [second.lease_id]
    seconds[0] += 20
    await engine.expire()
    assert not engine.leases()
    assert engine._index.slots.holds_count == 0


async def test_l1_leases_are_bounded_and_all_or_nothing(rig: Rig) -> None:
    engine = rig.engine
    for number in range(300):
        await put(engine, b"key %d" % number, payload_of(number, 3500))
    keys = [b"key %d" % number for number in range(300)]
    with pytest.raises(SpaceHeld):
        engine.lease("n", keys, ttl_seconds=60)
    assert engine._index.slots.holds_count == 0
    with mock.patch("storage.leases.LEASED_ENTRIES_MAX", 10), pytest.raises(LeasesFull):
        engine.lease("n", keys[:11], ttl_seconds=60)
    with mock.patch("storage.leases.LEASES_MAX", 1):
        engine.lease("n", keys[:1], ttl_seconds=60)
        with pytest.raises(LeasesFull):
            engine.lease("n", keys[:1], ttl_seconds=60)
    for ttl_seconds in (0, -1, 1e9, float("nan")):
        with pytest.raises(ParameterInvalid):
            engine.lease("n", keys[:1], ttl_seconds=ttl_seconds)
    with pytest.raises(ParameterInvalid):
        engine.lease("n", keys[:1], ttl_seconds=1, owner="x" * 129)
    with pytest.raises(LeaseNotFound):
        engine.lease("n", keys[:1], ttl_seconds=1, lease_id="no such lease")
    with pytest.raises(LeaseNotFound):
        engine.release("no such lease")


async def test_a_read_under_a_lease_of_a_key_it_does_not_hold_is_an_ordinary_one(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    lease = engine.lease("n", [b"key"], ttl_seconds=60).lease
    await put(engine, b"other", b"w")
    assert await get_leased(engine, b"other", lease.lease_id) == b"w"
    with pytest.raises(EntryNotFound):
        await engine.open_read("n", b"absent", lease_id=lease.lease_id)


async def test_two_leases_of_one_slot_end_one_after_the_other(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    leases = [engine.lease("n", [b"key", b"key"], ttl_seconds=60).lease for _ in range(2)]
    await engine.delete("n", b"key")
    await engine.flush()
    assert engine.status().capacity.slots.limbo == 1
    engine.release(leases[0].lease_id)
    assert await get_leased(engine, b"key", leases[1].lease_id) == b"v"
    engine.release(leases[1].lease_id)
    assert engine.status().capacity.slots.limbo == 0
    check_accounts(engine)


async def test_a_slab_with_a_leased_slot_keeps_its_class(rig: Rig) -> None:
    """Values of another size come: slabs change their class, but for the one that is held."""
    engine = rig.engine
    number = 0
    while engine.status().capacity.free_slabs or engine.status().classes[0].slots.free:
        await put(engine, b"small %d" % number, payload_of(number, 3500))
        number += 1
    lease = engine.lease("n", [b"small 0"], ttl_seconds=60).lease
    for large in range(12):
        await put(engine, b"large %d" % large, payload_of(large, 200_000))
    assert await get_leased(engine, b"small 0", lease.lease_id) == payload_of(0, 3500)
    assert await peek(engine, b"small 0") == payload_of(0, 3500)
    check_accounts(engine)


async def test_leases_are_gone_after_a_restart_and_nothing_is_held(rig: Rig) -> None:
    await put(rig.engine, b"key", b"v")
    rig.engine.lease("n", [b"key"], ttl_seconds=60)
    await rig.engine.delete("n", b"key")
    engine = await rig.reopen()
    assert not engine.leases()
    assert engine.status().capacity.slots.live == 0
    check_accounts(engine)
