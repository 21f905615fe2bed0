"""Any mixture of damaged pages and headers between close and reopen: the report is known beforehand (R1, R2, R9)."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recovery.checks import check_start, check_values, end_all, restart, start
from tests.recovery.expectations import PageDamage
from tests.recovery.test_damage_matrix_pages import COPIES, KINDS, POSITIONS, settled_before
from tests.recovery.world import World
from tests.support.victim import Victim

Hit = tuple[int, int, str, str, bool]
"""Which of the pages, which kind, copies and rows, and whether the rows' record headers are damaged too."""

hits = st.tuples(
    st.integers(0, 20),
    st.integers(0, len(KINDS) - 1),
    st.sampled_from(sorted(COPIES)),
    st.sampled_from(sorted(POSITIONS)),
    st.booleans(),
)


def test_r1_r2_whatever_is_damaged_together_is_reported_exactly(world: World) -> None:
    @settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(plan=st.lists(hits, min_size=1, max_size=4, unique_by=lambda hit: hit[0]))
    def check(plan: list[Hit]) -> None:
        victim = world.victim()
        asyncio.run(_check(world, _damage(world, victim, plan), victim))

    check()


def _damage(world: World, victim: Victim, plan: list[Hit]) -> PageDamage:
    pages = [page for page in sorted(world.pages) if settled_before(world, page)]
    found = PageDamage()
    for page, (_, kind, copies, position, headers) in {pages[hit[0] % len(pages)]: hit for hit in plan}.items():
        rows = POSITIONS[position](settled_before(world, page))
        for copy in COPIES[copies](world):
            found.reasons[copy, page] = KINDS[kind](victim, world, copy, page, rows)
        # A damaged header of an entry that a copy still lists is met by its reader, not by the start.
        if copies == "all" and headers:
            for row_id in rows:
                victim.flip(world.offsets[row_id] + 30)
                found.broken_headers.add(row_id)
    return found


async def _check(world: World, found: PageDamage, victim: Victim) -> None:
    expected = found.expected(world, victim)
    try:
        rig = await start(world, victim)
        await check_start(rig, world, expected)
        await restart(rig)
        await check_values(rig.engine, world, expected)
        await rig.stop()
    finally:
        await end_all()
