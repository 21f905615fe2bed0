"""One daemon for the client's tests, over TCP and a Unix socket at once; each test has a namespace of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from rawblockd_client import Client, Retries
from tests.client.places import Place
from tests.support.daemon_process import DaemonProcess

PATIENT = Retries(deadline_seconds=60.0)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("client")
    flags = ("--device", str(folder / "device"), "--create", "--size", "1GiB", "--uds", str(folder / "s"), "--tcp")
    with DaemonProcess(folder / "log", *flags) as daemon:
        daemon.wait_ready()
        yield Place(daemon, f"http://127.0.0.1:{daemon.port}", f"unix:{folder / 's'}")
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log_text()
    (folder / "device").unlink()


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with Client(place.url, retries=PATIENT) as client:
        yield client


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return "t-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:24]
