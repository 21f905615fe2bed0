"""Small devices for tests of crashes that ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.engines import short_journal
from tests.support.simulated_device import cut_all


@pytest.fixture
async def small_devices() -> AsyncIterator[None]:
    """Journals of 64 blocks; whatever a test leaves waiting is ended."""
    with short_journal(64, reserve=8):
        yield
        cut_all()
