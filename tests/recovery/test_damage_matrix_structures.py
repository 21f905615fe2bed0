"""Damaged superblocks, copies and journal blocks: kind × place × how many of them (R1, R2, R3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.errors import LayoutMismatch
from storage.format.row import SlotState
from storage.recovery.report import RepairSource, SkipReason
from tests.recovery.checks import (
    check_frozen,
    check_start,
    check_status,
    check_values,
    fill,
    quarantined_slots,
    restart,
    start,
)
from tests.recovery.expectations import Expected, PageDamage
from tests.recovery.test_damage_matrix_pages import COPIES, POSITIONS, settled_before
from tests.recovery.world import Builder, Mutation, World
from tests.support.engines import peek
from tests.support.victim import OTHER_UUID, Victim

BlockKind = Callable[[Victim, int], None]


def flip(victim: Victim, offset_bytes: int) -> None:
    victim.flip(offset_bytes + 60)


def zero(victim: Victim, offset_bytes: int) -> None:
    victim.zero(offset_bytes)


def unreadable(victim: Victim, offset_bytes: int) -> None:
    victim.unreadable(offset_bytes)


def garbage(victim: Victim, offset_bytes: int) -> None:
    victim.image.write(offset_bytes, b"\xa5" * 4096)


def displaced(victim: Victim, offset_bytes: int) -> None:
    """The block before it landed here."""
    victim.move_block(offset_bytes - 4096 if offset_bytes else 8192, offset_bytes)


def of_another_device(victim: Victim, offset_bytes: int) -> None:
    """What a device with another identity has at this place; only the uuid differs, and with it the checksum."""
    block = victim.image.read(offset_bytes, 4096)
    victim.image.write(offset_bytes, block.replace(victim.superblock.uuid, OTHER_UUID, 1))


BLOCK_KINDS = [flip, zero, unreadable, garbage, displaced, of_another_device]


# -- superblocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_b3_each_superblock_is_repaired_from_the_other(world: World, kind: BlockKind, place: int) -> None:
    """B3: one that verifies is enough; a start writes both anew, so that the next damage finds two again."""
    victim = world.victim()
    kind(victim, world.geometry.superblock_offsets[place])
    rig = await start(world, victim)
    await check_start(rig, world, Expected())
    assert [v == "valid" for v in rig.engine._partial._report.superblocks] == [place != 0, place != 1]  # type: ignore[union-attr]
    victim.faults.clear()
    await rig.stop(checkpoint=False)
    second = world.victim()
    second.image = rig.device.image
    second.flip(world.geometry.superblock_offsets[1 - place] + 60)
    again = await start(world, second)
    check_status(again.engine, world, Expected())
    await check_values(again.engine, world, Expected())
    await again.stop(checkpoint=False)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_d5_without_any_superblock_the_start_is_refused_and_nothing_is_written(
    world: World, kind: BlockKind
) -> None:
    """D5, R6: nobody guesses which device this is."""
    victim = world.victim()
    for offset_bytes in world.geometry.superblock_offsets:
        victim.flip(offset_bytes + 70)
    with pytest.raises(LayoutMismatch):
        await start(world, victim)


# -- copies --------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[World, int], int]] = {
    "header": lambda world, copy: world.geometry.copy_offset(copy),
    "directory": lambda world, copy: world.geometry.directory_offset(copy),
    "catalogue": lambda world, copy: world.geometry.catalogue_offset(copy),
}


def from_headers(world: World) -> int:
    """Live entries that only their record headers know once all copies are gone."""
    live = [r for r in world.rows if world.rows[r].state == SlotState.LIVE]
    return sum(not world.spoken_of(r, world.copies[-1]) for r in live)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_r1_a_copy_that_can_not_be_used_costs_nothing(
    world: World, kind: BlockKind, copies: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R1: an older copy and the journal since it are exact; without any copy, headers and the journal are."""
    victim, hit = world.victim(), COPIES[copies](world)
    for copy in hit:
        kind(victim, PARTS[part](world, copy))
    expected = Expected()
    if hit == world.copies:
        expected.repaired[RepairSource.RECORD_HEADER] = from_headers(world)
    rig = await start(world, victim)
    verdicts = {c.copy: c.verdict for c in rig.engine.status().recovery.copies}
    for copy in world.copies:
        assert (verdicts[copy] == "valid") is (copy not in hit), verdicts
    assert rig.engine.status().recovery.rebuilt is (hit == world.copies)
    await check_start(rig, world, expected, caplog)
    rig.device.faults.clear()
    await rig.engine.checkpoint()
    await restart(rig)
    assert rig.engine.status().recovery.repaired_entries == 0
    await rig.stop()


# -- the journal ---------------------------------------------------------------------------------------------------


def lose(world: World, victim: Victim, kind: BlockKind, mutations: list[Mutation]) -> Expected:
    """Damage the blocks of mutations behind the newest copy; each key then holds what it held before."""
    expected = Expected(unknown_loss=True)
    for mutation in mutations:
        kind(victim, victim.journal_offset(mutation.block))
        expected.older[mutation.key] = world.before(mutation)
    return expected


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_r3_damage_below_the_last_flush_is_a_loss_of_unknown_extent(
    world: World, kind: BlockKind, position: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R3, R4: what the lost blocks said is lost, nothing else; never is anything served that nobody put."""
    victim = world.victim()
    tail = world.tail_mutations()
    lost = [tail[n] for n in POSITIONS[position](list(range(len(tail))))]
    expected = lose(world, victim, kind, lost)
    rig = await start(world, victim)
    assert rig.engine.status().recovery.journal == "gap"
    await check_start(rig, world, expected, caplog)
    await restart(rig)
    check_status(rig.engine, world, expected)
    await check_values(rig.engine, world, expected)
    await rig.engine.acknowledge()
    await restart(rig)
    assert not rig.engine.status().partial_recovery
    await rig.stop()


@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_r3_damage_behind_the_last_flush_is_a_torn_tail(world: World, kind: BlockKind) -> None:
    """R3: the last block only says how far the journal was flushed; that it is torn is normal."""
    victim = world.victim()
    kind(victim, victim.journal_offset(world.last_block))
    rig = await start(world, victim)
    await check_start(rig, world, Expected())
    await rig.stop()


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_r1_damage_to_blocks_only_older_copies_need_costs_nothing(
    world: World, kind: BlockKind, position: str
) -> None:
    """R1: the newest copy stands above it."""
    victim = world.victim()
    blocks = list(range(world.first_blocks[world.copies[-1]], world.first_blocks[world.newest]))
    for block in POSITIONS[position](blocks):
        kind(victim, victim.journal_offset(block))
    rig = await start(world, victim)
    await check_start(rig, world, Expected())
    await rig.stop()


@pytest.mark.parametrize("kind", BLOCK_KINDS)
async def test_r1_an_older_copy_without_all_of_the_journal_since_it_is_no_second_source(
    world: World, kind: BlockKind
) -> None:
    """R1: a damaged page of the newest copy then is settled line by line, not from what would be out of date."""
    victim = world.victim()
    first, second = world.first_blocks[world.copies[-1]], world.first_blocks[world.copies[1]]
    lost = [m for m in world.mutations if second <= m.block < world.first_blocks[world.newest]]
    assert first < second and len(lost) > 5
    for mutation in lost:
        kind(victim, victim.journal_offset(mutation.block))
    found = PageDamage()
    # Of the history only what joins the chain counts: before the hole a row may not be its slot's newest any more.
    found.lost_rows = {r for r, row in world.rows.items() if row.seq <= world.seqs[world.newest]}
    victim.flip(victim.line_offset(world.newest, settled_before(world, 0)[0]) + 20)
    found.reasons[world.newest, 0] = SkipReason.CHECKSUM
    expected = found.expected(world, victim, usable=[world.newest])
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await rig.stop()


async def test_r4_after_a_gap_a_slot_that_may_hold_a_lost_entry_is_set_aside_not_used(world: World) -> None:
    """R4: the lost put's record is found when its slot would be taken; it is listed with its key, and stays."""
    victim = world.victim()
    lost = next(m for m in world.tail_mutations() if m.key.startswith(b"new"))
    row_id = world.row_of(lost.key)
    expected = lose(world, victim, flip, [lost])
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    before = rig.device.image.read(world.offsets[row_id], 4096)
    await fill(rig.engine)
    assert quarantined_slots(rig.engine) == {row_id}
    for _ in range(3):
        assert rig.device.image.read(world.offsets[row_id], 4096) == before
        assert rig.engine.status().skipped_by_reason["journal_gap"] == 1
        [entry] = rig.engine.skipped(0, 10)
        assert entry.key == lost.key.decode().replace(" ", "%20")
        await restart(rig)
    await rig.stop()


async def test_r3_what_was_removed_later_does_not_come_back_because_an_overwrite_was_lost(world: World) -> None:
    """R3, D2: put, overwrite (lost with its block), delete: the delete speaks of the key, whichever slot held it."""
    made = Builder()
    await made.rig.start()
    await made.put(b"key", 500)
    await made.put(b"other", 500)
    for _ in range(3):
        await made.checkpoint()
    await made.put(b"key", 600)
    lost = made.world.mutations[-1]
    await made.delete(b"key")
    await made.put(b"third", 500)
    await made.engine.flush()
    victim = Victim(made.rig.device.image, made.world.superblock)
    await made.rig.stop(checkpoint=False)
    victim.flip(victim.journal_offset(lost.block) + 200)
    rig = await start(made.world, victim)
    assert rig.engine.status().recovery.unknown_loss
    assert await peek(rig.engine, b"key") is None
    assert await peek(rig.engine, b"third") is not None
    await check_frozen(rig, 100)
    await rig.stop()
