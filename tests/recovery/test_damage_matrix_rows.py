"""Rows that were written wrong, under right checksums: each costs its own entry and says that it was a bug (B4, R2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.format.row import SlotState
from storage.format.superblock import Superblock
from storage.recovery.report import RepairSource, SkipReason
from tests.recovery.checks import STARTED, check_acknowledged, check_frozen, check_start, restart, start
from tests.recovery.expectations import Expected
from tests.recovery.test_damage_matrix_pages import POSITIONS, settled_before
from tests.recovery.world import JOURNAL_BLOCKS, Mutation, World
from tests.support.engines import (
    SECRET,
    UUID,
    Rig,
    check_accounts,
    formatted_image,
    geometry_of,
    payload_of,
    peek,
    put,
)
from tests.support.victim import Victim

ODD_FIELDS: dict[str, dict[str, int]] = {
    "state unknown": {"state": 9},
    "state free, but named": {"state": SlotState.FREE},
    "reason of a live row": {"reason": 3},
    "quarantined for no reason": {"state": SlotState.QUARANTINED, "reason": 0},
    "quarantined for an unknown reason": {"state": SlotState.QUARANTINED, "reason": 200},
    "no namespace": {"namespace_id": 0},
    "namespace unknown": {"namespace_id": 0xFFFFFFFF},
    "no write id": {"write_id": 0},
    "payload larger than the slot": {"payload_bytes": 0xFFFFFFFF},
    "no header": {"header_units": 0},
    "header larger than the slot": {"header_units": 0xFFFF},
    "seq 0": {"seq": 0},
    "seq later than its page": {"seq": 1 << 40},
    "seq beyond the last": {"seq": 1 << 63},
    "seq at the end of its field": {"seq": (1 << 64) - 1},
    "another class": {"slot_class": 1},
    "class unknown": {"slot_class": 255},
    "another slot": {"slot": 0},
    "slot beyond the slab": {"slot": 0xFFFF},
    "another slab": {"slab": 1},
    "slab beyond the end": {"slab": 0xFFFFFFFF},
}
ELSEWHERE = ("seq later than its page", "seq 0", "another slot", "another slab")
"""Of a row in the journal these say another thing: they make it a row of another slot, or one that is no news."""
WRITTEN_TO: dict[str, Callable[[World], list[int]]] = {
    "newest": lambda world: world.copies[:1],
    "older": lambda world: world.copies[1:],
    "all": lambda world: world.copies,
}


def wrong_lines(world: World, victim: Victim, copies: list[int], rows: list[int], odd: dict[str, int]) -> Expected:
    for row_id in rows:
        for copy in copies:
            victim.write_row_wrong(copy, row_id, victim.row_with(world.raws[row_id], **odd))
    expected = Expected()
    if world.newest in copies:
        for row_id in rows:
            if world.spoken_of(row_id, world.copies[-1]):
                expected.repaired[RepairSource.JOURNAL] += world.rows[row_id].state == SlotState.LIVE
            else:
                expected.skipped[row_id] = SkipReason.INVALID_ROW
    return expected


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("copies", WRITTEN_TO)
@pytest.mark.parametrize("odd", ODD_FIELDS)
async def test_b4_r2_a_row_written_wrong_is_its_own_reason(
    world: World, odd: str, copies: str, position: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B4: neither rounded nor guessed nor taken from an older copy, which would hide the bug."""
    victim = world.victim()
    rows = POSITIONS[position](settled_before(world, 1)[1:])
    expected = wrong_lines(world, victim, WRITTEN_TO[copies](world), rows, ODD_FIELDS[odd])
    rig = await start(world, victim)
    await check_start(rig, world, expected, caplog)
    await rig.stop()


@pytest.mark.parametrize("odd", ["state unknown", "slot beyond the slab"])
async def test_r1_a_row_written_wrong_that_the_journal_knows_better_is_repaired(world: World, odd: str) -> None:
    """R1: the journal has the newest row of each slot that changed since the oldest copy."""
    victim = world.victim()
    rows = [r for r in world.live_in(0) if world.spoken_of(r, world.copies[-1])]
    assert rows
    expected = wrong_lines(world, victim, world.copies, rows, ODD_FIELDS[odd])
    assert not expected.partial
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await rig.stop()


async def test_b4_a_row_whose_own_checksum_is_wrong_in_a_page_whose_checksum_is_right(world: World) -> None:
    """B4: a page is sealed over its rows, so a wrong row under a right page was wrong in memory."""
    victim = world.victim()
    [row_id] = POSITIONS["middle"](settled_before(world, 1))
    raw = bytearray(world.raws[row_id])
    raw[30] ^= 1
    victim.write_row_wrong(world.newest, row_id, bytes(raw))
    rig = await start(world, victim)
    await check_start(rig, world, Expected({row_id: SkipReason.INVALID_ROW}))
    await check_frozen(rig, 200)
    await check_acknowledged(rig)
    await rig.stop()


async def test_b4_a_live_row_where_nothing_lies_is_a_skipped_one_and_no_entry(world: World) -> None:
    """B1: a free slot claimed by a row of another key's digest never becomes an entry with somebody's bytes."""
    victim = world.victim()
    source = settled_before(world, 1)[0]
    target = next(r for r in world.pages[3] if world.rows[r].state == SlotState.FREE)
    row = world.rows[target]
    claimed = victim.row_with(world.raws[source], slot=row.slot, seq=row.seq)
    for copy in world.copies:
        victim.write_row_wrong(copy, target, claimed)
    expected = Expected({target: SkipReason.DUPLICATE_KEY})
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await rig.stop()


@pytest.mark.parametrize("order", ["later", "earlier"])
async def test_r2_of_a_key_that_stands_twice_the_row_its_record_proves_is_kept(world: World, order: str) -> None:
    """R2: the other one is a duplicate, and costs the entry whose row it was; the key itself is served."""
    victim = world.victim()
    rows = sorted(settled_before(world, 1), key=lambda r: world.rows[r].seq)
    honest, liar = (rows[3], rows[9]) if order == "later" else (rows[9], rows[3])
    for copy in world.copies:
        victim.write_row_wrong(copy, liar, victim.row_with(world.raws[liar], digest=world.rows[honest].digest))
    rig = await start(world, victim)
    await check_start(rig, world, Expected({liar: SkipReason.DUPLICATE_KEY}))
    await check_frozen(rig, 200)
    await check_acknowledged(rig)
    await rig.stop()


# -- rows of the journal -------------------------------------------------------------------------------------------


def journal_put(world: World) -> Mutation:
    """The last overwrite that only the journal has, of an entry that still is as it left it."""
    return next(m for m in reversed(world.tail_mutations()) if m.value is not None and m.key.startswith(b"small"))


def rows_in(victim: Victim, block: int) -> list[bytes]:
    count = victim.journal_header(block).rows
    content = bytes(victim.journal_block(block))
    return [content[128 + 64 * n : 192 + 64 * n] for n in range(count)]


@pytest.mark.parametrize("odd", [n for n in ODD_FIELDS if n not in ELSEWHERE])
async def test_b4_r2_a_row_of_the_journal_written_wrong(world: World, odd: str) -> None:
    """R2: the slot's newest row is wrong, so nothing older of the slot is true; the version before is not brought back.

    A row that names a place the device does not have is counted without a place.
    """
    victim, put = world.victim(), journal_put(world)
    row_id = world.row_of(put.key)
    rows = rows_in(victim, put.block)
    rows[-1] = victim.row_with(rows[-1], **ODD_FIELDS[odd])
    victim.write_journal_wrong(put.block, world.last_block, rows=rows)
    expected = Expected()
    if odd in ("slab beyond the end", "slot beyond the slab"):
        expected.unplaced[SkipReason.OUT_OF_RANGE] = 1
        expected.older[put.key] = None
        rig = await start(world, victim)
        table = rig.engine._index.table
        assert table.row(row_id).state == SlotState.FREE
    else:
        expected.skipped[row_id] = SkipReason.INVALID_ROW
        rig = await start(world, victim)
    await check_start(rig, world, expected)
    for _ in range(10):
        await restart(rig)
        assert rig.engine.status().skipped_by_reason == expected.by_reason()
    await check_frozen(rig, 200)
    await check_acknowledged(rig)
    await rig.stop()


async def test_b4_r2_a_row_of_the_journal_that_names_a_slot_its_slab_does_not_have(world: World) -> None:
    """R2: a slab of large slots has fewer of them than a slab of small ones; behind the last there is no row."""
    victim = world.victim()
    put = next(m for m in reversed(world.tail_mutations()) if m.value is not None and m.key.startswith(b"medium"))
    rows = rows_in(victim, put.block)
    rows[-1] = victim.row_with(rows[-1], slot=world.geometry.slots_per_slab_max - 1)
    victim.write_journal_wrong(put.block, world.last_block, rows=rows)
    expected = Expected()
    expected.unplaced[SkipReason.OUT_OF_RANGE] = 1
    expected.older[put.key] = None
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await restart(rig)
    await check_acknowledged(rig)
    await rig.stop()


@pytest.mark.parametrize("odd", [{"slab": 0xFFFF}, {"slot": 0xFFFF}, {"slot": 250}], ids=["slab", "slot", "its class"])
async def test_r2_an_unflushed_row_without_a_place_costs_no_other_slot(odd: dict[str, int]) -> None:
    """R2: no slot is quarantined for it, and what the first slot of the device holds stays."""
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS))
    STARTED.append(rig)
    await put(await rig.start(), b"first", payload_of(1, 30_000))
    await rig.engine.checkpoint()
    await put(rig.engine, b"lost", payload_of(2, 30_000))
    number = rig.engine._journal.last_block
    assert number > rig.engine._journal.flushed_through
    assert rig.engine._index.table.place_of(rig.engine._index.table.live_row_ids()[0]) == (0, 0)
    geometry = geometry_of(journal_blocks=JOURNAL_BLOCKS)
    victim = Victim(rig.device.crash_image(), Superblock(UUID, SECRET, 1_600_000_000_000, geometry))
    rows = rows_in(victim, number)
    victim.write_journal_wrong(number, number, rows=[*rows[:-1], victim.row_with(rows[-1], **odd)])
    engine = await rig.crash(victim.image)
    for _ in range(3):
        assert await peek(engine, b"first") == payload_of(1, 30_000)
        assert await peek(engine, b"lost") is None
        counts = {reason: count for reason, count in engine.status().skipped_by_reason.items() if count}
        assert counts == {SkipReason.OUT_OF_RANGE: 1}
        assert not engine.status().capacity.slots.quarantined
        check_accounts(engine)
        engine = await restart(rig)
    await rig.stop()


async def test_r5_an_acknowledged_row_without_a_place_is_not_reported_again(world: World) -> None:
    """R5: the row stands in the journal as long as an older copy needs it; what was acknowledged stays acknowledged."""
    victim, put = world.victim(), journal_put(world)
    rows = rows_in(victim, put.block)
    rows[-1] = victim.row_with(rows[-1], slab=0xFFFFFFFF)
    victim.write_journal_wrong(put.block, world.last_block, rows=rows)
    rig = await start(world, victim)
    await rig.engine.acknowledge()
    for _ in range(3):
        await restart(rig)
        assert not rig.engine.status().partial_recovery
    await rig.stop()


async def test_r2_a_row_wrong_both_in_the_page_and_in_the_journal_counts_once(world: World) -> None:
    """R2: one bad entry costs one entry."""
    victim, put = world.victim(), journal_put(world)
    row_id = world.row_of(put.key)
    rows = rows_in(victim, put.block)
    rows[-1] = victim.row_with(rows[-1], state=9)
    victim.write_journal_wrong(put.block, world.last_block, rows=rows)
    for copy in world.copies:
        victim.write_row_wrong(copy, row_id, victim.row_with(world.raws[row_id], state=9))
    rig = await start(world, victim)
    await check_start(rig, world, Expected({row_id: SkipReason.INVALID_ROW}))
    await rig.stop()


async def test_r2_a_row_wrong_in_the_journal_is_not_settled_by_what_a_lost_page_says(world: World) -> None:
    """R2: the journal's row is the newest; the older line of a damaged page or the header must not stand in for it."""
    victim, put = world.victim(), journal_put(world)
    row_id = world.row_of(put.key)
    rows = rows_in(victim, put.block)
    rows[-1] = victim.row_with(rows[-1], state=9)
    victim.write_journal_wrong(put.block, world.last_block, rows=rows)
    page = next(p for p, own in world.pages.items() if row_id in own)
    for copy in world.copies:
        victim.flip(victim.page_offset(copy, page) + 40)
    rig = await start(world, victim)
    status = rig.engine.status()
    assert status.skipped_entries == 1
    assert [e.reason for e in rig.engine.skipped(0, 10)] == ["invalid_row"]
    await rig.stop()
