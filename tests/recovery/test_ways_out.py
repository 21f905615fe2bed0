"""Refusals and ways out: what is refused changes nothing, what is accepted is whole again (R4 to R7)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest

from storage.device.counters import OpKind
from storage.errors import AcknowledgeNothing, DeviceFailed, DeviceGone, ReadOnly, WriteFailed
from storage.format.row import SlotState
from storage.health import FAILURES_MAX
from storage.recovery.errors import InvalidRowsFound, TooMuchSkipped
from storage.recovery.report import SkipReason
from storage.status import EngineState, Reason
from tests.recovery.checks import (
    KEEP_ALL,
    STARTED,
    check_acknowledged,
    check_partial_state,
    check_start,
    fill,
    quarantined_slots,
    restart,
    start,
)
from tests.recovery.expectations import Expected, PageDamage
from tests.recovery.test_damage_matrix_pages import settled_before
from tests.recovery.test_retry import unreadable_slots
from tests.recovery.world import World
from tests.support.engines import Rig, check_accounts, free_slots, peek, put
from tests.support.simulated_device import Fault, fail
from tests.support.victim import Victim

# -- R6: refusals --------------------------------------------------------------------------------------------------


def many_skipped(world: World, count: int) -> tuple[Victim, Expected]:
    """``count`` entries that nothing knows any more, on pages 0 and 1."""
    victim = world.victim()
    rows = (settled_before(world, 1) + settled_before(world, 0))[:count]
    found = PageDamage(broken_headers=set(rows))
    for copy in world.copies:
        for page in (0, 1):
            victim.flip(victim.page_offset(copy, page) + 40)
            found.reasons[copy, page] = SkipReason.CHECKSUM
    for row_id in rows:
        victim.flip(world.offsets[row_id] + 30)
    return victim, found.expected(world, victim)


async def refused(world: World, victim: Victim, error: type[Exception], **options: float | bool) -> Exception:
    """The start is refused; the device is byte-identical and not even flushed."""
    rig = Rig(victim.image.copy(), options=replace(KEEP_ALL, **options), clock=world.clock)  # type: ignore[arg-type]
    rig.device.faults = list(victim.faults)
    with pytest.raises(error) as caught:
        await rig.start()
    assert rig.engine.status().state is EngineState.FAILED
    assert rig.device.image == victim.image
    assert rig.device.events == []
    await rig.engine.stop()
    return caught.value


@pytest.mark.parametrize("count", [64, 65])
async def test_r6_both_the_ratio_and_the_floor_must_be_exceeded(world: World, count: int) -> None:
    """R6: 65 of 161 entries are refused, 64 are not, however high their share."""
    victim, expected = many_skipped(world, count)
    assert len(expected.skipped) == count
    if count == 65:
        error = await refused(world, victim, TooMuchSkipped)
        assert isinstance(error, TooMuchSkipped)
        assert error.fields["counts"] == {r: c for r, c in expected.by_reason().items() if c}
        return
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await rig.stop()


async def test_r6_a_low_share_is_never_refused(world: World) -> None:
    """R6: above the floor alone is not enough."""
    victim, expected = many_skipped(world, 65)
    rig = await start(world, victim, replace(KEEP_ALL, max_skipped_ratio=0.5))
    await check_start(rig, world, expected)
    await rig.stop()


async def test_r6_accept_loss_overrides_and_everything_is_counted(world: World) -> None:
    """R6, R2: the operator's word; the report is as exact as ever."""
    victim, expected = many_skipped(world, 80)
    await refused(world, victim, TooMuchSkipped)
    rig = await start(world, victim, replace(KEEP_ALL, accept_loss=True))
    await check_start(rig, world, expected)
    await check_acknowledged(rig)
    await rig.stop()


@pytest.mark.parametrize("accept_loss", [False, True])
async def test_r6_rows_written_wrong_are_refused_whatever_the_operator_says(world: World, accept_loss: bool) -> None:
    """R6, B4: a bug that fails every row must not pass for bit rot."""
    victim = world.victim()
    rows = (settled_before(world, 1) + settled_before(world, 0))[:65]
    for row_id in rows:
        victim.write_row_wrong(world.newest, row_id, victim.row_with(world.raws[row_id], reason=5))
    await refused(world, victim, InvalidRowsFound, accept_loss=accept_loss)


async def test_b4_a_decoder_that_fails_in_another_way_aborts_the_start(world: World) -> None:
    """B4: an AttributeError is a bug; it must not make every row a skipped one."""
    for target in ("storage.recovery.pages.pages_as_named", "storage.recovery.row_rules.RowRules.wrong"):
        victim = world.victim()
        rig = Rig(victim.image.copy(), options=KEEP_ALL, clock=world.clock)
        with mock.patch(target, side_effect=AttributeError("no such field")), pytest.raises(AttributeError):
            await rig.start()
        assert rig.device.events == []


# -- R7: a failing device is not damage ----------------------------------------------------------------------------


def gone(victim: Victim, offset: int) -> None:
    victim.unreadable(offset, error=errno.ENODEV)


def timing_out(victim: Victim, offset: int) -> None:
    victim.unreadable(offset, error=errno.ETIMEDOUT)


def failing_everywhere(victim: Victim, offset: int) -> None:
    victim.unreadable(8192, victim.geometry.device_bytes - 16384)


@pytest.mark.parametrize("failure", [gone, timing_out, failing_everywhere])
@pytest.mark.parametrize("where", ["copy header", "page", "journal", "superblock"])
async def test_r7_a_device_that_fails_fails_the_start_and_nothing_is_dropped(
    world: World, failure: Callable[[Victim, int], None], where: str
) -> None:
    """R7: ENODEV, timeouts, errors everywhere: once the device is back, everything is there."""
    victim = world.victim()
    offset = {
        "copy header": world.geometry.copy_offset(world.newest),
        "page": victim.page_offset(world.newest, 1),
        "journal": world.geometry.journal_offset,
        "superblock": 0,
    }[where]
    failure(victim, offset)
    await refused(world, victim, DeviceGone)
    victim.faults.clear()
    rig = await start(world, victim)
    await check_start(rig, world, Expected())
    await rig.stop()


@pytest.mark.parametrize("kind", [OpKind.WRITE, OpKind.FLUSH])
async def test_r7_a_start_that_can_not_write_fails(world: World, kind: OpKind) -> None:
    """R7: what a start must write it must be able to write; the entries stay."""
    victim = world.victim()
    victim.faults.append(fail(kind))
    with pytest.raises(DeviceFailed):
        await start(world, victim)
    rig = STARTED[-1]
    rig.device.faults = []
    await rig.engine.stop()
    victim.faults.clear()
    victim.image = rig.device.image
    again = await start(world, victim)
    await check_start(again, world, Expected())
    await again.stop()


async def test_r7_a_rate_of_write_errors_turns_read_only_and_back(world: World) -> None:
    """R7: many failed writes within the window; reads go on; when the window has passed, puts do too."""
    rig = await start(world, world.victim())
    geometry = rig.engine._index.geometry
    slabs = Fault(OpKind.WRITE, errno.EIO, start_byte=geometry.slabs_offset, stop_byte=geometry.end_bytes - 8192)
    rig.device.faults.append(slabs)
    now = time.monotonic()
    with mock.patch("storage.health.time.monotonic", return_value=now):
        for number in range(FAILURES_MAX + 1):
            assert rig.engine.status().state is EngineState.READY
            with pytest.raises(WriteFailed):
                await put(rig.engine, b"failing %d" % number, b"value")
        assert rig.engine.status().state is EngineState.READ_ONLY
        assert rig.engine.reasons == [Reason.DEVICE_ERRORS]
        with pytest.raises(ReadOnly):
            await put(rig.engine, b"refused", b"value")
        for key, value in world.values.items():
            assert await peek(rig.engine, key) == value
    rig.device.faults.clear()
    with mock.patch("storage.health.time.monotonic", return_value=now + 3600):
        assert rig.engine.status().state is EngineState.READY
        await put(rig.engine, b"accepted", b"value")
    check_accounts(rig.engine)
    await rig.stop()


async def self_test(rig: Rig) -> None:
    engine = rig.engine
    await engine._health.self_test(rig.device, engine._index.geometry, engine._internal)


async def test_r7_a_self_test_that_fails_turns_read_only_until_one_passes(world: World) -> None:
    """R7: a device that takes writes and loses them is found out by reading back what was written."""
    rig = await start(world, world.victim())
    scratch = rig.engine._index.geometry.scratch_offset
    rig.device.flips[scratch + 99] = 1
    await self_test(rig)
    assert rig.engine.status().state is EngineState.READ_ONLY
    with pytest.raises(ReadOnly):
        await put(rig.engine, b"refused", b"value")
    rig.device.flips.clear()
    await self_test(rig)
    assert rig.engine.status().state is EngineState.READY
    tests = rig.engine.status().self_test
    assert (tests.passed, tests.failed, tests.failure) == (2, 1, None)
    await put(rig.engine, b"accepted", b"value")
    await rig.stop()


# -- R4, R5 --------------------------------------------------------------------------------------------------------


async def test_r4_ten_restarts_while_partial_change_nothing(world: World) -> None:
    """R4, R9: counts, listing, quarantined and free slots, values."""
    victim, expected = many_skipped(world, 30)
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await rig.engine.flush()
    listing, free, quarantined = rig.engine.skipped(0, 100), free_slots(rig.engine), quarantined_slots(rig.engine)
    before = rig.engine.status()
    for _ in range(10):
        await restart(rig)
        now = rig.engine.status()
        assert now.skipped_by_reason == before.skipped_by_reason
        assert now.recovery.repaired_by_source == before.recovery.repaired_by_source
        assert now.recovery.lost_unflushed == before.recovery.lost_unflushed
        assert now.capacity.slots.quarantined == before.capacity.slots.quarantined
        assert rig.engine.skipped(0, 100) == listing
        assert free_slots(rig.engine) == free
        assert quarantined_slots(rig.engine) == quarantined
        check_partial_state(now, True)
    await check_acknowledged(rig)
    await rig.stop()


async def test_r5_acknowledge_frees_what_failed_while_running_too(world: World) -> None:
    """R5, R8: a corrupt entry is a miss, its slot evidence; acknowledged, the slot is used again."""
    rig = await start(world, world.victim())
    row_id = settled_before(world, 1)[3]
    rig.device.flip(world.offsets[row_id] + 300)
    assert await peek(rig.engine, world.keys[row_id]) is None
    assert rig.engine.reasons == [Reason.CORRUPTION]
    assert rig.engine.status().state is EngineState.DEGRADED
    assert not rig.engine.status().partial_recovery
    await restart(rig)
    assert rig.engine.status().capacity.slots.quarantined == 1
    await rig.engine.acknowledge()
    assert rig.engine.status().state is EngineState.READY
    with pytest.raises(AcknowledgeNothing):
        await rig.engine.acknowledge()
    await fill(rig.engine)
    assert rig.engine.status().capacity.slots.retired == 0
    await rig.stop()


async def test_r5_a_slot_that_fails_twice_is_retired(world: World) -> None:
    """R5: not a third chance, across restarts and checkpoints; everything else can be used."""
    rig = await start(world, world.victim())
    row_id = settled_before(world, 1)[3]
    await _fail_and_acknowledge(rig, world.offsets[row_id], world.keys[row_id])
    await restart(rig)
    table = rig.engine._index.table
    number = 0
    while table.state(row_id) != SlotState.LIVE:  # somebody gets the slot again
        number += 1
        await put(rig.engine, b"again %d" % number, bytes(900))
        await rig.engine.flush()
        table = rig.engine._index.table
    await _fail_and_acknowledge(rig, world.offsets[row_id], b"again %d" % number)
    for _ in range(3):
        assert rig.engine._index.table.state(row_id) == SlotState.RETIRED
        slots = rig.engine.status().capacity.slots
        assert (slots.retired, slots.quarantined) == (1, 0)
        check_accounts(rig.engine)
        await restart(rig)
    await fill(rig.engine)
    await rig.stop()


async def _fail_and_acknowledge(rig: Rig, offset_bytes: int, key: bytes) -> None:
    rig.device.flip(offset_bytes + 300)
    assert await peek(rig.engine, key) is None
    await rig.engine.acknowledge()


async def test_r5_acknowledge_survives_a_crash_at_any_of_its_writes(world: World) -> None:
    """R5, R9: the loss is accepted as a whole or not at all; a slot the crash left set aside can be acknowledged."""
    victim, _, _ = unreadable_slots(world, known=True)
    rig = await start(world, victim)
    await rig.engine.flush()
    rig.device.forget()
    await rig.engine.acknowledge()
    values = {key: await peek(rig.engine, key) for key in world.values}
    for moment in range(rig.device.now + 1):
        again = await start(world, Victim(rig.device.crash_image(moment, power_loss=True), world.superblock))
        status = again.engine.status()
        if not status.partial_recovery:
            assert status.skipped_entries == 0
        for key, value in values.items():
            assert await peek(again.engine, key) == value
        check_accounts(again.engine)
        if status.partial_recovery or status.capacity.slots.quarantined:
            await again.engine.acknowledge()
        assert again.engine.state is EngineState.READY
        assert again.engine.status().capacity.slots.quarantined == 0
        await again.stop(checkpoint=False)
    await rig.stop()
