"""The suite's device is made once; each test damages a copy of it, which shares its pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.recovery.checks import end_all
from tests.recovery.world import JOURNAL_BLOCKS, World, build_world
from tests.support.engines import short_journal


@pytest.fixture(autouse=True)
def _short_journal() -> Iterator[None]:
    with short_journal(JOURNAL_BLOCKS):
        yield


@pytest.fixture(scope="session")
def world() -> World:
    with short_journal(JOURNAL_BLOCKS):
        return asyncio.run(build_world())


@pytest.fixture(autouse=True)
async def _engines_end() -> AsyncIterator[None]:
    yield
    await end_all()
