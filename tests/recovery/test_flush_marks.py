"""What a quiet journal says of how far it is flushed: damage at or below that is a loss, never a torn tail (R3)."""

from __future__ import annotations

import asyncio

import pytest

from storage.device.counters import OpKind
from storage.journal import Unit
from tests.recovery.checks import STARTED
from tests.recovery.world import JOURNAL_BLOCKS
from tests.support.engines import Rig, formatted_image, put, turns, until


@pytest.fixture
async def rig() -> Rig:
    rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS))
    STARTED.append(rig)
    await rig.start()
    return rig


async def test_r3_a_block_marks_what_was_flushed_when_it_was_made(
    rig: Rig,
) -> None:
    """A flush that ends while a block is being written is not in that block: it still has to be marked."""
    journal, device = rig.engine._journal, rig.device
    await put(rig.engine, b"key", b"value")
    number = journal.last_block
    assert journal.flushed_through < number
    device.hold = lambda kind, _offset, _size: kind in (OpKind.FLUSH, OpKind.WRITE)
    flushing = asyncio.ensure_future(journal.flush())
    await until(lambda: len(device.held) == 1)
    # Made before the flush has ended, and without rows: there is nothing in it that would have to be marked later.
    journal.join(Unit(privileged=True))
    await until(lambda: len(device.held) == 2)
    flush, write = device.held
    device.hold = None
    device.release(flush)
    await flushing
    device.release(write)
    await turns()
    await journal.mark_flushed()
    image = device.crash_image()
    image.write(journal._geometry.journal_block_offset(number), bytes(4096))
    engine = await rig.crash(image)
    assert engine.status().recovery.unknown_loss, "the block was known to be flushed"
    assert engine.status().partial_recovery
    await rig.stop()
