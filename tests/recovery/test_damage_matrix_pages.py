"""Damaged pages: every kind × places × copies × headers × journal, against counts known beforehand (R1, R2, R4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.recovery.report import SkipReason
from tests.recovery.checks import check_acknowledged, check_frozen, check_start, start
from tests.recovery.expectations import Expected, PageDamage
from tests.recovery.world import Mutation, World
from tests.support.victim import OTHER_UUID, Victim

Rows = list[int]


def flip_rows(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    for row_id in rows:
        victim.flip(victim.line_offset(copy, row_id) + 20)
    return SkipReason.CHECKSUM


def flip_header(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    victim.flip(victim.page_offset(copy, page) + 40)
    return SkipReason.CHECKSUM


def zero(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    victim.zero(victim.page_offset(copy, page))
    return SkipReason.CHECKSUM


def unreadable(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    victim.unreadable(victim.page_offset(copy, page))
    return SkipReason.UNREADABLE


def of_another_copy(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    other = world.copies[(world.copies.index(copy) + 1) % len(world.copies)]
    victim.image.write(victim.page_offset(copy, page), world.image.read(victim.page_offset(other, page), 4096))
    return SkipReason.WRONG_PLACE


def of_another_page(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    other = next(p for p in world.pages if p != page)
    victim.image.write(victim.page_offset(copy, page), world.image.read(victim.page_offset(copy, other), 4096))
    return SkipReason.WRONG_PLACE


def of_an_older_checkpoint(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    victim.write_page_of(copy, page, seq=world.seqs[world.copies[-1]] - 1)
    return SkipReason.STALE_PAGE


def of_another_device(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    victim.write_page_of(copy, page, uuid=OTHER_UUID)
    return SkipReason.WRONG_DEVICE


def of_a_later_generation(victim: Victim, world: World, copy: int, page: int, rows: Rows) -> SkipReason:
    """It verifies, and its directory names it: a page of a slab's life that nobody else knows of."""
    victim.write_page_wrong(copy, page, lambda block: None, generation=(1 << 63) - 1)
    return SkipReason.WRONG_PLACE


KINDS = [
    flip_rows,
    flip_header,
    zero,
    unreadable,
    of_another_copy,
    of_another_page,
    of_an_older_checkpoint,
    of_another_device,
    of_a_later_generation,
]
Kind = Callable[[Victim, World, int, int, Rows], SkipReason]

POSITIONS: dict[str, Callable[[Rows], Rows]] = {
    "first": lambda rows: rows[:1],
    "middle": lambda rows: rows[len(rows) // 2 : len(rows) // 2 + 1],
    "last": lambda rows: rows[-1:],
    "interleaved": lambda rows: rows[::2],
}
COPIES: dict[str, Callable[[World], list[int]]] = {
    "newest": lambda world: world.copies[:1],
    "newest two": lambda world: world.copies[:2],
    "oldest": lambda world: world.copies[-1:],
    "all": lambda world: world.copies,
}


def settled_before(world: World, page: int) -> Rows:
    """Live rows of a page that only pages know of: the journal does not reach them."""
    return [r for r in world.live_in(page) if not world.spoken_of(r, world.copies[-1])]


def lose_block(victim: Victim, world: World, expected: Expected) -> Mutation:
    """A flushed journal block is damaged: one overwrite is lost with it, of an entry in a slab of its own."""
    lost = next(m for m in world.tail_mutations() if m.key.startswith(b"medium") and m.value is not None)
    victim.flip(victim.journal_offset(lost.block) + 200)
    expected.unknown_loss = True
    expected.older[lost.key] = world.before(lost)
    return lost


def damage(
    world: World,
    victim: Victim,
    kind: Kind,
    page: int,
    copies: list[int],
    rows: Rows,
    *,
    break_headers: bool,
) -> Expected:
    found = PageDamage()
    for copy in copies:
        found.reasons[copy, page] = kind(victim, world, copy, page, rows)
    if break_headers:
        for row_id in rows:
            victim.flip(world.offsets[row_id] + 30)
            found.broken_headers.add(row_id)
    return found.expected(world, victim)


@pytest.mark.parametrize("headers", ["headers intact", "headers damaged"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("kind", KINDS)
async def test_r1_r2_a_damaged_page_costs_exactly_what_nothing_else_knows(
    world: World, kind: Kind, copies: str, position: str, headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R1, R2: settled by older copy, journal, row or header; only what none of them knows is skipped, and counted."""
    page, hit = 1, COPIES[copies](world)
    rows = POSITIONS[position](settled_before(world, page))
    # An entry whose header is damaged is lost anyway; unless its row is lost too, only a read finds it.
    break_headers = headers == "headers damaged" and hit == world.copies
    victim = world.victim()
    expected = damage(world, victim, kind, page, hit, rows, break_headers=break_headers)
    assert expected.partial is (break_headers and bool(expected.skipped))
    rig = await start(world, victim)
    await check_start(rig, world, expected, caplog)
    await rig.stop()


@pytest.mark.parametrize("copies", ["newest", "all"])
@pytest.mark.parametrize("kind", KINDS)
async def test_r1_r3_a_damaged_page_and_a_lost_journal_block(
    world: World, kind: Kind, copies: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R3: the lost block is a loss of unknown extent; what the rest of the journal proves still stands."""
    page, hit = 1, COPIES[copies](world)
    rows = POSITIONS["interleaved"](settled_before(world, page))
    victim = world.victim()
    expected = damage(world, victim, kind, page, hit, rows, break_headers=hit == world.copies)
    lose_block(victim, world, expected)
    rig = await start(world, victim)
    await check_start(rig, world, expected, caplog)
    await check_frozen(rig, 100)
    await rig.stop()


@pytest.mark.parametrize("page", [0, 5, 10])
@pytest.mark.parametrize("kind", KINDS)
async def test_r4_r5_frozen_while_partial_and_whole_again_once_acknowledged(
    world: World, kind: Kind, page: int
) -> None:
    """R4, R5, A1: a thousand mutations, refused checkpoints, a restart touch no evidence; then all slots are free."""
    rows = POSITIONS["interleaved"](settled_before(world, page))
    victim = world.victim()
    expected = damage(world, victim, kind, page, world.copies, rows, break_headers=True)
    assert expected.skipped
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await check_frozen(rig)
    await check_acknowledged(rig)
    await rig.stop()
