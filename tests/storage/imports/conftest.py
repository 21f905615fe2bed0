"""An engine with a namespace that imports can replace."""

from __future__ import annotations

import pytest

from storage.engine import Engine
from tests.storage.imports.training import SCHEMA
from tests.support.engines import Rig


@pytest.fixture
async def engine(rig: Rig) -> Engine:
    await rig.engine.set_namespace("n", SCHEMA)
    return rig.engine
