"""Real devices for the real process: nothing here is made small or watched, as it is for simulated devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A path for a device, which is deleted at the end of the test: it may have a gigabyte."""
    path = tmp_path / "device"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def _short_journal() -> None:
    """Devices here have the journal that they have everywhere else."""


@pytest.fixture(autouse=True)
def _cut_devices() -> None:
    """There are no simulated devices here."""
