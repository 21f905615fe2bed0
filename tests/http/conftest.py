"""Daemons for the HTTP tests, one per worker, since a start costs more than a test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With the default settings."""
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img") as running:
        yield running


@pytest.fixture(scope="session")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With the shortest patience for slow clients."""
    device = tmp_path_factory.mktemp("device") / "cache.img"
    with Daemon(device, "--body-timeout-seconds", "0.2", "--send-timeout-seconds", "0.2") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    with RawClient(daemon.address) as connection:
        yield connection


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """The path of a value that no other test uses."""
    return f"/v1/kv/tests/{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:32]}"
