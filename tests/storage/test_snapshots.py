"""Snapshots: one moment of a namespace, however long it is read, whatever writers do meanwhile (B1, L3)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from unittest import mock

import pytest

from storage.engine import Engine
from storage.errors import (
    LeasesFull,
    NamespaceNotFound,
    ParameterInvalid,
    RawblockdError,
    SnapshotNotFound,
    SpaceHeld,
)
from storage.format.parts import Part
from storage.options import EvictionPolicy
from tests.support.engines import (
    OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    payload_of,
    peek,
    put,
    short_journal,
    until,
)

PARTS = tuple(Part(name, "float32", (8,)) for name in "wmv")


async def export(engine: Engine, snapshot_id: str, *, start: int = 0, since: int = 0) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    async with aclosing(engine.export(snapshot_id, start=start, since=since)) as entries:
        async for _, row, reader in entries:
            assert not isinstance(reader, RawblockdError), reader
            assert reader.info.write_id == row.write_id
            found[reader.info.key] = b"".join([bytes(piece) async for piece in reader.pieces()])
            reader.close()
    return found


async def digests_of(engine: Engine, snapshot_id: str) -> bytes:
    return b"".join([part async for part in engine.snapshot_digests(snapshot_id)])


@pytest.fixture
def seconds() -> Iterator[list[float]]:
    now = [1000.0]
    with mock.patch("storage.assembly.time.monotonic", side_effect=lambda: now[0]):
        yield now


async def test_l3_a_snapshot_is_one_moment_whatever_comes_after(rig: Rig) -> None:
    engine = rig.engine
    values = {b"key %d" % number: payload_of(number, 100 * number) for number in range(60)}
    for key, value in values.items():
        await put(engine, key, value)
    await put(engine, b"neighbour", b"v", namespace="m")
    view = await engine.take_snapshot("n", ttl_seconds=60, owner="trainer")
    assert (view.entries, view.owner, view.namespace) == (60, "trainer", "n")
    assert view.seq == engine.status().journal.seq
    for round_ in range(3):
        for number in range(0, 60, 2):
            await put(engine, b"key %d" % number, b"overwritten %d" % round_)
        for number in range(1, 60, 6):
            await engine.delete_many("n", [b"key %d" % number])
        await put(engine, b"new %d" % round_, b"v")
        await engine.flush()
        for number in range(500):
            await put(engine, b"filler %d" % number, payload_of(number, 3500), namespace="m")
        await engine.checkpoint()
        assert await export(engine, view.snapshot_id) == values
    if engine.namespace("n").entries:
        await engine.wipe_namespace("n")
    await until(lambda: not engine._index.namespaces.dying)
    assert await export(engine, view.snapshot_id) == values
    held = engine.status().holds[0]
    assert (held.kind, held.holder, held.slots) == ("snapshot", "trainer", 60)
    assert held.freed_bytes == held.held_bytes == view.held_bytes
    engine.end_snapshot(view.snapshot_id)
    await engine.flush()
    assert engine.status().capacity.slots.limbo == 0
    with pytest.raises(SnapshotNotFound):
        engine.snapshot(view.snapshot_id)
    check_accounts(engine)


async def test_an_export_goes_on_where_it_broke_off(rig: Rig) -> None:
    engine = rig.engine
    values = {b"key %d" % number: payload_of(number, 2000) for number in range(100)}
    for key, value in values.items():
        await put(engine, key, value)
    view = await engine.take_snapshot("n", ttl_seconds=60)
    first: dict[bytes, bytes] = {}
    async with aclosing(engine.export(view.snapshot_id)) as entries:
        async for position, _, reader in entries:
            assert not isinstance(reader, RawblockdError)
            first[reader.info.key] = b"".join([bytes(piece) async for piece in reader.pieces()])
            reader.close()
            if position == 40:
                break
    await until(lambda: not engine._arena.used_bytes)
    rest = await export(engine, view.snapshot_id, start=41)
    assert len(first) == 41
    assert not first.keys() & rest.keys()
    assert first | rest == values


async def test_what_changed_since_and_what_is_gone(rig: Rig) -> None:
    """An incremental export, and the digests from which a holder of the earlier one sees what was deleted."""
    engine = rig.engine
    for number in range(50):
        await put(engine, b"key %d" % number, b"old")
    base = await engine.take_snapshot("n", ttl_seconds=60)
    digests = await digests_of(engine, base.snapshot_id)
    known = {engine._identity.digest(1, key): key for key in await export(engine, base.snapshot_id)}
    engine.end_snapshot(base.snapshot_id)
    await put(engine, b"key 7", b"new")
    await put(engine, b"key 50", b"new")
    await engine.delete("n", b"key 8")
    await engine.touch("n", b"key 9", expires_at=int(rig.clock()) + 1000)
    engine = await rig.crash()
    later = await engine.take_snapshot("n", ttl_seconds=60)
    assert await export(engine, later.snapshot_id, since=base.seq) == {
        b"key 7": b"new",
        b"key 50": b"new",
        b"key 9": b"old",
    }
    present = await digests_of(engine, later.snapshot_id)
    parts = {present[at : at + 16] for at in range(0, len(present), 16)}
    assert len(parts) == 50
    assert len(digests) == 16 * 50
    assert [known[digest] for digest in known if digest not in parts] == [b"key 8"]
    assert later.checksum != base.checksum
    assert (await engine.take_snapshot("n", ttl_seconds=60)).checksum == later.checksum


async def test_a_snapshot_ends_with_its_time_which_reads_start_anew(seconds: list[float], rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    view = await engine.take_snapshot("n", ttl_seconds=10)
    for _ in range(3):
        seconds[0] += 9
        assert await export(engine, view.snapshot_id) == {b"key": b"v"}
    await engine.delete("n", b"key")
    seconds[0] += 11
    with pytest.raises(SnapshotNotFound):
        await export(engine, view.snapshot_id)
    await engine.expire()
    await engine.flush()
    assert not engine.status().holds
    assert engine.status().capacity.slots.limbo == 0
    check_accounts(engine)


async def test_l1_snapshots_are_bounded(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    with pytest.raises(NamespaceNotFound):
        await engine.take_snapshot("absent", ttl_seconds=1)
    for ttl_seconds in (0, -1, 1e9, float("nan")):
        with pytest.raises(ParameterInvalid):
            await engine.take_snapshot("n", ttl_seconds=ttl_seconds)
    views = [await engine.take_snapshot("n", ttl_seconds=60) for _ in range(8)]
    with pytest.raises(LeasesFull):
        await engine.take_snapshot("n", ttl_seconds=60)
    for view in views:
        engine.end_snapshot(view.snapshot_id)
    assert not engine.snapshots()


async def test_l3_a_snapshot_under_full_load_costs_space_and_nothing_else() -> None:
    """When only held entries could make room, the answer names the holder; with the snapshot its space comes back."""
    for policy in (EvictionPolicy.CLOCK, EvictionPolicy.S3FIFO):
        with short_journal():
            rig = Rig(options=replace(OPTIONS, eviction=policy))
            engine = await rig.start()
            number = 0
            while engine.status().capacity.free_slabs or engine.status().classes[0].slots.free:
                await put(engine, b"key %d" % number, payload_of(number, 3500))
                number += 1
            view = await engine.take_snapshot("n", ttl_seconds=60, owner="saver")
            with pytest.raises(SpaceHeld) as caught:
                await put(engine, b"one more", payload_of(1, 3500))
            assert caught.value.fields["holder"] == "snapshot of n by saver"
            assert len(await export(engine, view.snapshot_id)) == view.entries
            assert await peek(engine, b"key 0") == payload_of(0, 3500)
            engine.end_snapshot(view.snapshot_id)
            await put(engine, b"one more", payload_of(1, 3500))
            check_accounts(engine)
            await rig.stop()


async def test_l2_slots_that_a_snapshot_holds_do_not_fill_the_journal() -> None:
    """L2, L3: nearly half of all slots are freed and held; checkpoint follows checkpoint, and puts go on."""
    with short_journal(72, reserve=4):
        rig = Rig(formatted_image(8, journal_blocks=72))
        engine = await rig.start()
        for version in range(2):
            if version:
                view = await engine.take_snapshot("n", ttl_seconds=60)
            for number in range(950):
                await put(engine, b"key %d" % number, b"%d" % version)
        for number in range(8):
            await put(engine, b"other", b"%d" % number)
            await engine.checkpoint()
        assert engine._journal.used_ratio < 0.5
        view = engine.snapshot(view.snapshot_id)
        assert view.freed_bytes == view.held_bytes == 950 * 4096
        assert set((await export(engine, view.snapshot_id)).values()) == {b"0"}
        engine.end_snapshot(view.snapshot_id)
        await engine.flush()
        assert engine.status().capacity.slots.limbo == 0
        for number in range(4):
            await put(engine, b"other", b"%d" % number)
            await engine.checkpoint()
        assert len(engine._index.slots.freed_unvoided) < 10
        check_accounts(engine)
        await rig.stop()


async def test_l2_ending_a_large_snapshot_leaves_others_their_turn(rig: Rig) -> None:
    engine = rig.engine
    for number in range(60):
        await put(engine, b"key %d" % number, b"v")
    view = await engine.take_snapshot("n", ttl_seconds=60)
    await engine.wipe_namespace("n")
    await until(lambda: not engine._index.namespaces.dying)
    await engine.flush()
    with mock.patch("storage.settling.SETTLED_AT_ONCE", 16):
        engine.end_snapshot(view.snapshot_id)
        assert engine.status().capacity.slots.limbo == 44
        await until(lambda: engine.status().capacity.slots.limbo == 0)


async def test_b1_writers_insert_without_pause_while_a_snapshot_is_exported(rig: Rig) -> None:
    """The key sets of all parts are equal, and each row's parts are of one generation."""
    engine = rig.engine
    stop = asyncio.Event()
    written: dict[bytes, set[int]] = {}

    def value(key: int, version: int) -> bytes:
        return b"".join(struct.pack("<8f", *([key, version, part, *range(5)])) for part in range(3))

    async def writer(seed: int) -> None:
        version = 0
        while not stop.is_set():
            version += 1
            key = (version * 7 + seed * 131) % 200
            written.setdefault(b"%d" % key, set()).add(version)
            session = await engine.begin_put("n", b"%d" % key, 96, parts=PARTS)
            await session.write(value(key, version))
            await session.commit()
            await asyncio.sleep(0)

    writers = [asyncio.create_task(writer(seed)) for seed in range(3)]
    await until(lambda: len(written) > 150)
    exported = []
    for _ in range(3):
        view = await engine.take_snapshot("n", ttl_seconds=60)
        before = {key: set(versions) for key, versions in written.items()}
        found = await export(engine, view.snapshot_id)
        assert len(found) == view.entries
        for key, payload in found.items():
            rows = [struct.unpack_from("<8f", payload, 32 * part) for part in range(3)]
            assert [row[2] for row in rows] == [0, 1, 2]
            assert len({row[:2] for row in rows}) == 1, "parts of one generation"
            assert rows[0][0] == int(key)
            assert int(rows[0][1]) in before[key]
        engine.end_snapshot(view.snapshot_id)
        exported.append(found)
    stop.set()
    await asyncio.gather(*writers)
    assert exported[0] != exported[-1]
    await engine.flush()
    check_accounts(engine)
