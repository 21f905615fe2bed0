"""What tests of the engine share. Other tests in this folder are not touched by it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from storage.engine import Engine
from tests.support.engines import SHORT_JOURNAL_BLOCKS, Rig, check_accounts, formatted_image, short_journal
from tests.support.simulated_device import cut_all


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A started engine on a small device. Afterwards nothing may have leaked: slots, buffers, counts (A1, A2)."""
    with short_journal(SHORT_JOURNAL_BLOCKS):
        rig = Rig(formatted_image())
        try:
            await rig.start()
            yield rig
            if rig.engine.state.value not in ("stopped", "failed"):
                await rig.engine.flush()
                check_accounts(rig.engine)
                assert rig.engine._arena.used_bytes == 0
                assert rig.engine.status().capacity.slots.in_flight == 0
                await rig.stop()
        finally:
            cut_all()


@pytest.fixture
def engine(rig: Rig) -> Engine:
    return rig.engine
