"""Engines and a daemon for the tests of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.http.daemon import Daemon
from tests.support.engines import Rig, formatted_image, short_journal
from tests.support.simulated_device import cut_all


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A started engine on a small device."""
    with short_journal(256, reserve=8):
        rig = Rig(formatted_image(journal_blocks=256))
        try:
            await rig.start()
            yield rig
            if rig.engine.state.value not in ("stopped", "failed"):
                await rig.stop()
        finally:
            cut_all()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With the default settings."""
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img", size="256MiB") as running:
        yield running
