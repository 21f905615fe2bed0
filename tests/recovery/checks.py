"""Starting damaged devices, and what must hold of every start whatever the damage was."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote_to_bytes

import pytest

from storage.engine import Engine
from storage.errors import CheckpointFrozen, Full
from storage.format.row import SlotState
from storage.options import EngineOptions, EvictionPolicy
from storage.status import EngineState, EngineStatus, Reason
from tests.recovery.expectations import Expected
from tests.recovery.world import World
from tests.support.engines import OPTIONS, FakeClock, Rig, check_accounts, free_slots, payload_of, peek, put
from tests.support.simulated_device import Image, SimulatedDevice
from tests.support.victim import Victim

KEEP_ALL = replace(OPTIONS, buffer_bytes=4 << 20, eviction=EvictionPolicy.NONE)
"""Nothing is evicted: a device that is full says so."""
STARTED: list[Rig] = []
PARTIAL_LINE = "partial recovery: checkpoints are frozen until it is acknowledged"


async def start(world: World, victim: Victim, options: EngineOptions = KEEP_ALL) -> Rig:
    """An engine on the damaged device, whose faults are there from the first read on."""
    rig = Rig(victim.image.copy(), options=options, clock=FakeClock(world.clock.seconds))
    rig.device.faults = list(victim.faults)
    STARTED.append(rig)
    await rig.start()
    return rig


async def end_all() -> None:
    """End engines that a failed test left running: one that still runs would keep the loop from closing."""
    while STARTED:
        rig = STARTED.pop()
        if rig.engine.state is not EngineState.STOPPED and rig.engine._machine is not None:
            rig.device.cut()
            rig.engine._maintenance._stopped.set()
            rig.engine._maintenance._wake.set()


async def restart(rig: Rig) -> Engine:
    """Stop in order and start again on the same content with the same faults."""
    faults, image = rig.device.faults, rig.device.image
    await rig.stop()
    return await start_again(rig, image, faults)


async def start_again(rig: Rig, image: Image, faults: Iterable[object] = ()) -> Engine:
    rig.device = SimulatedDevice(image.copy())
    rig.device.faults = list(faults)  # type: ignore[arg-type]
    rig.engine = Engine(rig.device, rig.options, rig.clock)
    return await rig.start()


async def check_start(
    rig: Rig, world: World, expected: Expected, caplog: pytest.LogCaptureFixture | None = None
) -> None:
    """R2, R4, A1, A2, B1: the report is exact, status and log agree with it, what was not lost is served whole."""
    check_status(rig.engine, world, expected)
    if caplog is not None:
        lines = [r for r in caplog.records if r.getMessage() == PARTIAL_LINE]
        assert [r.levelno for r in lines] == [logging.WARNING] * expected.partial
    check_slots(rig.engine, world, expected)
    check_listing(rig.engine, world, expected)
    await check_values(rig.engine, world, expected)  # last: a read of an expired entry frees it


def check_status(engine: Engine, world: World, expected: Expected) -> None:
    status = engine.status()
    assert status.skipped_by_reason == expected.by_reason()
    assert status.skipped_entries == sum(expected.by_reason().values())
    assert status.recovery.repaired_by_source == expected.by_source(), status.recovery.repaired_by_source
    assert status.recovery.repaired_entries == sum(expected.by_source().values())
    assert status.recovery.recovered_entries == expected.recovered(world)
    assert status.recovery.unknown_loss is expected.unknown_loss
    assert status.partial_recovery is expected.partial
    check_partial_state(status, expected.partial)


def check_partial_state(status: EngineStatus, partial: bool) -> None:
    """Everything that tells of partial recovery tells the same."""
    assert status.partial_recovery is partial
    assert status.auto_checkpoint.enabled is not partial
    assert status.auto_checkpoint.paused_reason == ("partial_recovery" if partial else None)
    assert status.reasons == ([Reason.PARTIAL_RECOVERY] if partial else [])
    assert status.state is (EngineState.DEGRADED if partial else EngineState.READY)


async def check_values(engine: Engine, world: World, expected: Expected) -> None:
    for key, value in expected.values(world).items():
        assert await peek(engine, key) == value, key


def check_slots(engine: Engine, world: World, expected: Expected) -> None:
    """Slots are neither lost nor free too early: all free ones but the withheld are free, and no other."""
    check_accounts(engine)
    quarantined = quarantined_slots(engine)
    assert quarantined == set(expected.skipped)
    if not expected.older:
        free = {c: row_ids - quarantined for c, row_ids in world.free.items()}
        assert free_slots(engine) == free


def quarantined_slots(engine: Engine) -> set[int]:
    table = engine._index.table
    return {r for r in table.row_ids().tolist() if table.row(r).state == SlotState.QUARANTINED}


def check_listing(engine: Engine, world: World, expected: Expected) -> None:
    """Every skipped entry is listed once, with its place, its reason and what is known of its key."""
    table = engine._index.table
    listed = engine.skipped(0, 10_000)
    placed = {table.row_id(e.slab, e.slot): e for e in listed if e.slab is not None and e.slot is not None}
    assert {row_id: entry.reason for row_id, entry in placed.items()} == {
        row_id: reason.value for row_id, reason in expected.skipped.items()
    }
    assert len(listed) - len(placed) == expected.unplaced.total()
    for row_id, entry in placed.items():
        assert entry.page == table.page_of(row_id)
        assert len(entry.raw) == 128
        if entry.key is not None and row_id in world.keys:
            assert unquote_to_bytes(entry.key) == world.keys[row_id]
            assert entry.digest == world.rows[row_id].digest.hex()


# -- while partial, and after it -----------------------------------------------------------------------------------


def evidence(rig: Rig) -> dict[int, bytes | None]:
    """All blocks of all copies and of quarantined slots, by number."""
    geometry = rig.engine._index.geometry
    table = rig.engine._index.table
    blocks: list[int] = []
    for copy in range(geometry.copies):
        first = geometry.copy_offset(copy) // 4096
        blocks += range(first, first + geometry.copy_bytes // 4096)
    for row_id in quarantined_slots(rig.engine):
        first = table.slot_offset(row_id) // 4096
        blocks += range(first, first + table.slot_bytes(row_id) // 4096)
    return {block: rig.device.image.pages.get(block) for block in blocks}


async def check_frozen(rig: Rig, mutations: int = 1000) -> None:
    """R4: no checkpoint of any kind; copies and quarantined slots stay byte-identical; a restart changes nothing."""
    before, status = evidence(rig), rig.engine.status()
    for number in range(mutations):
        key = b"meanwhile %d" % (number % 10)
        if number % 10 == 9:
            await rig.engine.delete("n", b"meanwhile %d" % (number % 7))
        else:
            await put(rig.engine, key, payload_of(number, 50 + number))
        if number % 100 == 0:
            with pytest.raises(CheckpointFrozen):
                await rig.engine.checkpoint()
            await rig.engine.flush()
    assert evidence(rig) == before
    await restart(rig)
    assert evidence(rig) == before
    again = rig.engine.status()
    assert again.skipped_by_reason == status.skipped_by_reason
    assert again.recovery.repaired_by_source == status.recovery.repaired_by_source
    assert again.recovery.unknown_loss is status.recovery.unknown_loss
    check_partial_state(again, True)
    check_accounts(rig.engine)


async def check_acknowledged(rig: Rig) -> None:
    """R5: acknowledged, the slots are free again, checkpoints go on, a restart finds nothing, every slot is used."""
    await rig.engine.acknowledge()
    for _ in range(2):
        status = rig.engine.status()
        check_partial_state(status, False)
        assert status.skipped_entries == 0
        assert status.capacity.slots.quarantined == 0
        check_accounts(rig.engine)
        await rig.engine.checkpoint()
        await restart(rig)
    await fill(rig.engine)


async def fill(engine: Engine) -> None:
    """Every slot of every slab can be taken by a put (A1)."""
    for slot_bytes in sorted(engine._index.geometry.class_bytes, reverse=True):
        number = 0
        while True:
            try:
                await put(engine, b"fill %d %d" % (slot_bytes, number), bytes(slot_bytes - 1024))
            except Full:
                break
            number += 1
        await engine.flush()
    slots = engine.status().capacity.slots
    assert slots.free == 0
    assert slots.live + slots.retired + slots.quarantined == slots.total
    assert engine.status().capacity.free_slabs == 0
    check_accounts(engine)
