"""One populated device is written once; each test gets a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.offline.devices import DeviceFile, Expected, copy_of, populate


@pytest.fixture(scope="session")
def populated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    path = tmp_path_factory.mktemp("offline") / "populated"
    return path, populate(path)


@pytest.fixture
def expected(populated: tuple[Path, Expected]) -> Expected:
    return populated[1]


@pytest.fixture
def device(populated: tuple[Path, Expected], tmp_path: Path) -> Iterator[DeviceFile]:
    made = copy_of(populated[0], tmp_path / "device")
    yield made
    made.path.unlink()
