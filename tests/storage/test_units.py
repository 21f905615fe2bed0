"""Units of the journal: whoever waits for one gets its outcome, whoever left takes nothing from the others (D1, D3)."""

from __future__ import annotations

import asyncio

import pytest

from storage.errors import JournalUnavailable
from storage.journal import Unit
from tests.support.engines import Rig, get, put, turns


async def test_who_leaves_takes_nothing_from_who_stays() -> None:
    unit = Unit()
    left, stays, shared = unit.reached(), unit.reached(), unit.done
    assert unit.done is shared
    left.cancel()
    unit.settle(7)
    assert (await stays, await shared, await unit.reached(), await unit.done) == (7, 7, 7, 7)
    assert unit.outcome == 7


async def test_a_task_that_is_cancelled_as_it_awaits_the_shared_outcome_ends_it_for_nobody() -> None:
    unit = Unit()

    async def waits() -> int:
        return await unit.done

    leaving = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    staying = unit.done
    assert not staying.done()
    unit.settle(7)
    assert (await staying, await unit.done) == (7, 7)


async def test_what_was_undone_is_told_to_all_who_ask_then_or_later() -> None:
    unit = Unit()
    early = unit.reached()
    unit.settle(JournalUnavailable("it burns"))
    for waiting in (early, unit.reached(), unit.done):
        with pytest.raises(JournalUnavailable, match="it burns"):
            await waiting


async def test_d1_a_put_whose_client_left_while_its_row_was_written_is_there(rig: Rig) -> None:
    """The row had joined: leaving takes nothing back."""
    engine, device = rig.engine, rig.device
    await put(engine, b"first", b"v")
    journal = engine._index.geometry.journal_offset
    device.hold = lambda kind, offset, size: journal <= offset < engine._index.geometry.slabs_offset
    leaving = asyncio.ensure_future(put(engine, b"key", b"value"))
    staying = asyncio.ensure_future(put(engine, b"key", b"value of another"))
    while not device.held:
        await asyncio.sleep(0)
    await turns()
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    device.hold = lambda kind, offset, size: False
    device.release_all()
    await staying
    assert await get(engine, b"key") in (b"value", b"value of another")
    await engine.flush()
