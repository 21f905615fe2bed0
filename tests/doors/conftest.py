"""One daemon with all doors open for each worker; its values are small enough that too large ones are easily made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

ALL_DOORS = ("--doors", "bazel,ccache,gradle,sccache")


@pytest.fixture(scope="session")
def open_doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img", *ALL_DOORS, size="256MiB") as running:
        yield running


@pytest.fixture
def client(open_doors: Daemon) -> Iterator[RawClient]:
    with RawClient(open_doors.address) as connection:
        yield connection
