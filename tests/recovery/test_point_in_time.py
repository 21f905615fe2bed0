"""Any copy and the journal since it are one point in time: the end of the journal (the second founding failure)."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.recovery.checks import KEEP_ALL, start
from tests.recovery.world import Builder
from tests.support.engines import check_accounts, payload_of, peek, put
from tests.support.victim import Victim

KEYS = 60


async def write_load(made: Builder, truth: dict[bytes, bytes | None], stop: asyncio.Event, seed: int) -> int:
    """Puts, overwrites and deletes of keys of its own, until told to stop; returns how many."""
    rng, count = random.Random(seed), 0
    while not stop.is_set():
        count += 1
        key = b"%d:%d" % (seed, rng.randrange(KEYS))
        if rng.random() < 0.25 and truth.get(key) is not None:
            await made.engine.delete("n", key)
            truth[key] = None
        else:
            value = payload_of(seed * 100_000 + count, rng.choice((0, 80, 3000, 5000, 15_000)))
            await put(made.engine, key, value)
            truth[key] = value
        await asyncio.sleep(0)
    return count


async def loaded(seed: int) -> tuple[Builder, dict[bytes, bytes | None]]:
    """Six checkpoints while three clients write without a pause, then some more writes; everything flushed."""
    made = Builder(KEEP_ALL)
    made.rig.device.order = random.Random(seed)
    await made.rig.start()
    truth: dict[bytes, bytes | None] = {}
    stop = asyncio.Event()
    clients = [asyncio.create_task(write_load(made, truth, stop, seed * 10 + n)) for n in range(3)]
    for _ in range(6):
        while made.engine.status().journal.used_ratio < 0.02:
            await asyncio.sleep(0)
        for _ in range(60):
            await asyncio.sleep(0)
        await made.checkpoint()
    for _ in range(200):
        await asyncio.sleep(0)
    stop.set()
    assert min(await asyncio.gather(*clients)) > 5
    await made.engine.flush()
    return made, truth


@pytest.mark.parametrize("seed", range(6))
async def test_r1_each_copy_with_the_journal_since_it_is_the_end_of_the_journal(seed: int) -> None:
    """R1, D2: whichever copy is the base, and without any, the same entries with the same bytes; none from between."""
    made, truth = await loaded(seed)
    await made.rig.stop(checkpoint=False)
    world = made.world
    assert len(world.copies) == 3
    for kept in [*([copy] for copy in world.copies), world.copies[1:], []]:
        victim = Victim(made.rig.device.image, world.superblock)
        victim.destroy_copies([copy for copy in world.copies if copy not in kept])
        rig = await start(world, victim)
        assert not rig.engine.status().partial_recovery
        for key, value in truth.items():
            assert await peek(rig.engine, key) == value, (key, kept)
        assert rig.engine.status().recovery.recovered_entries == sum(v is not None for v in truth.values())
        check_accounts(rig.engine)
        await rig.stop(checkpoint=False)


@pytest.mark.parametrize("seed", range(3))
async def test_r9_recovered_twice_without_a_mutation_is_the_same_state(seed: int) -> None:
    """R9: recover, stop, recover."""
    made, truth = await loaded(seed)
    image = made.rig.device.crash_image()
    await made.rig.stop(checkpoint=False)
    states = []
    victim = Victim(image, made.world.superblock)
    for _ in range(3):
        rig = await start(made.world, victim)
        table = rig.engine._index.table
        states.append([table.raw(r)[8:] for r in table.row_ids().tolist() if table.state(r) == 1])
        for key, value in truth.items():
            assert await peek(rig.engine, key) == value
        await rig.stop(checkpoint=False)
        victim.image = rig.device.image
    assert states[0] == states[1] == states[2]
