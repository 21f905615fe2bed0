"""The scrubber finds what nobody reads, repairs what may be repaired, and keeps to its rate (R1, R4, R8)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest import mock

import pytest

from storage.errors import JournalUnavailable
from storage.format.row import SlotState
from storage.scrubber import Scrubber
from storage.status import EngineState, Reason
from tests.recovery.checks import KEEP_ALL, check_status, evidence, quarantined_slots, restart, start
from tests.recovery.test_damage_matrix_pages import settled_before
from tests.recovery.test_retry import unreadable_slots
from tests.recovery.world import World
from tests.support.engines import Rig, check_accounts, payload_of, peek


async def one_pass(rig: Rig) -> list[float]:
    """One pass on a clock of its own; returns the pauses it made, in seconds."""
    pauses: list[float] = []

    async def pause(_scrubber: Scrubber, seconds: float) -> None:
        pauses.append(seconds)
        rig.clock.advance(seconds)
        await asyncio.sleep(0)

    with mock.patch.object(Scrubber, "_pause", pause):
        await rig.engine.scrubber.one_pass()
    return pauses


def found(rig: Rig) -> dict[str, int]:
    return {kind: count for kind, count in rig.engine.status().scrub.damaged.items() if count}


async def test_a_pass_over_a_sound_device_finds_nothing_and_tells_its_age(world: World) -> None:
    """Progress, passes, verified bytes and the age of the last pass are in the status."""
    rig = await start(world, world.victim())
    before = rig.engine.status().scrub
    assert (before.passes, before.progress_ratio, before.last_pass_age_seconds) == (0, 0.0, None)
    await one_pass(rig)
    rig.clock.advance(50)
    scrub = rig.engine.status().scrub
    assert (scrub.passes, scrub.progress_ratio) == (1, 1.0)
    assert scrub.last_pass_age_seconds == pytest.approx(50)
    live_bytes = sum(row.record_bytes for row in world.rows.values() if row.state == SlotState.LIVE)
    assert live_bytes < scrub.verified_bytes <= world.geometry.device_bytes
    assert found(rig) == {}
    await rig.stop()


@pytest.mark.parametrize("rate", [1 << 20, 4 << 20])
async def test_l1_a_pass_takes_as_long_as_its_bytes_at_the_rate_but_a_second_at_least(world: World, rate: int) -> None:
    """The pauses add up to what was read at the rate, on a clock of the test; none is longer than a second."""
    rig = await start(world, world.victim(), replace(KEEP_ALL, scrub_bytes_per_second=rate))
    pauses = await one_pass(rig)
    verified = rig.engine.status().scrub.verified_bytes
    assert sum(pauses) >= max(1.0, verified / rate) - 0.2
    assert sum(pauses) <= verified / rate + 1.1
    assert max(pauses) <= 1.1
    await rig.stop()


@pytest.mark.parametrize("position", [0, 30, -1])
async def test_r8_a_flipped_payload_is_found_without_a_reader(world: World, position: int) -> None:
    """R8: as if a reader had met it: a miss, its slot evidence, counted as found by the scrubber."""
    victim = world.victim()
    row_id = settled_before(world, 1)[position]
    victim.flip(world.offsets[row_id] + world.rows[row_id].header_bytes + 10)
    rig = await start(world, victim)
    await one_pass(rig)
    assert found(rig) == {"record": 1}
    assert rig.engine.counters.corruptions["scrub"] == 1
    assert rig.engine.counters.lookups["corrupt"] == 0
    assert quarantined_slots(rig.engine) == {row_id}
    assert rig.engine.reasons == [Reason.CORRUPTION]
    assert rig.engine.state is EngineState.DEGRADED
    assert await peek(rig.engine, world.keys[row_id]) is None
    await one_pass(rig)
    assert found(rig) == {"record": 1}
    check_accounts(rig.engine)
    await rig.stop()


async def test_r1_a_damaged_page_of_any_copy_is_written_again_by_the_next_checkpoints(world: World) -> None:
    """R1: also in copies that no start would have read, and also where no row of it changed."""
    rig = await start(world, world.victim())
    for copy in world.copies:
        rig.device.flip(world.geometry.page_offset(copy, 2) + 300)
    await one_pass(rig)
    assert found(rig) == {"page": 3}
    assert rig.engine.reasons == [Reason.COPY_DAMAGED]
    assert {copy.verdict for copy in rig.engine.status().recovery.copies} == {"pages: 1 damaged"}
    for number in range(3):
        await rig.engine.checkpoint()
        await _put(rig, number)
    await one_pass(rig)
    assert found(rig) == {"page": 3}
    assert rig.engine.state is EngineState.READY
    assert {copy.verdict for copy in rig.engine.status().recovery.copies} == {"valid"}
    await restart(rig)
    check_values = rig.engine.status().recovery
    assert (check_values.repaired_entries, check_values.journal) == (0, "clean")
    await rig.stop()


async def _put(rig: Rig, number: int) -> None:
    from tests.support.engines import put

    await put(rig.engine, b"scrubbed %d" % number, b"value")


async def test_r1_a_damaged_copy_header_makes_the_copy_the_next_target(world: World) -> None:
    """D4: better written soon than trusted; the copies that still are good stay."""
    rig = await start(world, world.victim())
    rig.device.flip(world.geometry.copy_offset(world.newest) + 40)
    await one_pass(rig)
    assert found(rig) == {"copy": 1}
    assert rig.engine.reasons == [Reason.COPY_DAMAGED]
    assert rig.engine.status().recovery.copies[world.newest].verdict == "header: damaged"
    await rig.engine.checkpoint()
    assert rig.engine.state is EngineState.READY
    newest = rig.engine._checkpointer.newest
    assert newest is not None
    assert newest.copy == world.newest
    await one_pass(rig)
    assert found(rig) == {"copy": 1}
    await rig.stop()


@pytest.mark.parametrize("place", [0, 1])
async def test_b3_a_damaged_superblock_is_written_again(world: World, place: int) -> None:
    """B3: both are there again, with the present start count."""
    rig = await start(world, world.victim())
    offset = world.geometry.superblock_offsets[place]
    good = rig.device.image.read(offset, 4096)
    rig.device.flip(offset + 40)
    await one_pass(rig)
    assert found(rig) == {"superblock": 1}
    assert rig.device.image.read(offset, 4096) == good
    assert rig.engine.state is EngineState.READY
    await rig.stop()


async def test_r3_a_damaged_journal_block_is_found_while_it_is_needed(world: World) -> None:
    """R3: counted; the engine knows what the block said, so a checkpoint makes it unnecessary."""
    rig = await start(world, world.victim())
    rig.device.flip(world.geometry.journal_block_offset(world.last_block - 3) + 200)
    for _ in range(2):
        await one_pass(rig)
        assert found(rig) == {"journal": 1}, "a block is counted once, however often it is met"
    assert rig.engine._maintenance.checkpoint_due(), "at once: a crash before it would be a loss"
    await rig.engine.checkpoint()
    assert not rig.engine._maintenance.checkpoint_due()
    await restart(rig)
    assert not rig.engine.status().partial_recovery
    await rig.stop()


async def test_r1_leftovers_of_puts_that_never_ended_are_made_void(world: World) -> None:
    """R1, D2: a header that verifies in a free slot is none that a rebuild may find."""
    rig = await start(world, world.victim())
    session = await rig.engine.begin_put("n", b"ghost", 900)
    await session.write(payload_of(1, 900))
    row_id = session.row_id
    rig.engine._journal.unavailable = "for this test"
    with pytest.raises(JournalUnavailable):
        await session.commit()
    session.abort()
    rig.engine._journal.unavailable = ""
    rig.engine._index.slots.freed_unvoided.discard(row_id)  # as after a crash: nobody remembers it
    offset = rig.engine._index.table.slot_offset(row_id)
    assert any(rig.device.image.read(offset, 4096))
    await one_pass(rig)
    assert found(rig) == {"leftover": 1}
    assert not any(rig.device.image.read(offset, 4096))
    check_accounts(rig.engine)
    await rig.stop()


async def test_r4_while_partial_the_scrubber_looks_and_touches_nothing(world: World) -> None:
    """R4: damaged pages, headers and superblocks are counted; copies, quarantined and free slots stay as they are."""
    victim, rows, expected = unreadable_slots(world, known=True)
    rig = await start(world, victim)
    check_status(rig.engine, world, expected)
    skipped = rig.engine.status().skipped_entries
    oldest = world.copies[-1]
    rig.device.flip(world.geometry.copy_offset(oldest) + 40)
    rig.device.flip(world.geometry.page_offset(world.copies[1], 2) + 40)
    rig.device.flip(world.geometry.superblock_offsets[1] + 40)
    before, image = evidence(rig), rig.device.image.copy()
    await one_pass(rig)
    assert evidence(rig) == before
    assert rig.device.image == image
    kinds = found(rig)
    assert (kinds["copy"], kinds["superblock"]) == (1, 1)
    assert kinds["page"] >= 1
    await one_pass(rig)
    assert found(rig) == kinds, "what is damaged is counted once"
    assert rig.engine.reasons == [Reason.PARTIAL_RECOVERY, Reason.COPY_DAMAGED, Reason.SUPERBLOCK_DAMAGED]
    assert rig.device.image == image
    assert quarantined_slots(rig.engine) == set(rows)
    assert rig.engine.status().skipped_entries == skipped
    await rig.stop()
