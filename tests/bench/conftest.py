"""The load generator, compiled once, and a server for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.service.generator.compiling import compiled
from bench.service.generator.running import Generator
from tests.bench.toy_server import ToyServer


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    return Generator(compiled("load", tmp_path_factory.mktemp("generator")))


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer() as running:
        yield running
