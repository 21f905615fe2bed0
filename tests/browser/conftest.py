"""One browser and few daemons for each test process: starts cost more than tests."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.settings import ApiSettings
from storage.status import EngineState, Reason
from tests.browser.chromium import Chromium, Page
from tests.browser.devices import damaged_device
from tests.browser.faces import CrowdedEngine, StandingEngine, face_of
from tests.http.local_server import server_over
from tests.support.daemon_process import DaemonProcess

ENTRIES, SKIPPED = 200, 57

Serve = Callable[[str], str]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def page(browser: Chromium) -> Iterator[Page]:
    """A tab. A test may empty its list of complaints; what is left in it fails the test."""
    tab = browser.new_page()
    tab.dress()
    yield tab
    complaints = tab.complaints
    tab.close()
    assert complaints == []


@contextlib.contextmanager
def daemon_on(device: Path, *arguments: str) -> Iterator[DaemonProcess]:
    """A real daemon, ready; its device is deleted afterwards."""
    try:
        # No checkpoint by its age: a page would say something else than it did a moment ago.
        flags = ("--buffer-bytes", "16MiB", "--checkpoint-interval-seconds", "3600")
        with DaemonProcess(device.with_suffix(".log"), "--device", str(device), *flags, *arguments) as daemon:
            daemon.wait_ready()
            yield daemon
            if daemon.process.poll() is None:
                assert daemon.stop() == 0, daemon.log_text()
            assert '"exception"' not in daemon.log_text()
    finally:
        device.unlink(missing_ok=True)


def url_of(daemon: DaemonProcess) -> str:
    return f"http://127.0.0.1:{daemon.port}"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A ready daemon of the test's own."""
    with daemon_on(tmp_path / "fresh.device", "--create", "--size", "64MiB") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A ready daemon for tests that may find what others have put."""
    with daemon_on(tmp_path_factory.mktemp("shared") / "shared.device", "--create", "--size", "64MiB") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A device that starts in partial recovery, to be copied."""
    device = tmp_path_factory.mktemp("damaged") / "damaged.device"
    damaged_device(device, entries=ENTRIES, skipped=SKIPPED)
    yield device
    device.unlink()


@pytest.fixture
def partial(damaged: Path, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon of the test's own, in partial recovery."""
    device = tmp_path / "partial.device"
    shutil.copyfile(damaged, device)
    with daemon_on(device) as daemon:
        yield daemon


def corrupt_entry(daemon: DaemonProcess, device: Path) -> None:
    """Let the daemon meet a record that is damaged on the device."""
    value = bytes(range(64, 128)) * 40
    assert daemon.request("PUT", "/v1/kv/demo/damaged?durability=flush", value)[0] == 201
    with device.open("r+b") as file:
        at = file.read().index(value)
        file.seek(at)
        file.write(bytes(64))
    assert daemon.request("GET", "/v1/kv/demo/damaged")[0] == 404


@pytest.fixture(scope="session")
def serve(shared: DaemonProcess, damaged: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """The address of a server in a state, by name; each is started when it is first asked for. Tests only look."""
    folder = tmp_path_factory.mktemp("states")
    addresses: dict[str, str] = {}
    with contextlib.ExitStack() as running:

        def real(name: str) -> str:
            if name == "ready":
                assert shared.request("PUT", "/v1/kv/demo/ready", b"x" * 3000)[0] in (201, 204)
                return url_of(shared)
            device = folder / f"{name}.device"
            if name == "partial":
                shutil.copyfile(damaged, device)
                return url_of(running.enter_context(daemon_on(device)))
            daemon = running.enter_context(daemon_on(device, "--create", "--size", "64MiB"))
            assert name == "degraded"
            corrupt_entry(daemon, device)
            return url_of(daemon)

        def standing(name: str) -> str:
            engine = STANDING[name]
            return running.enter_context(
                server_over(face_of(engine), ApiSettings(), lambda accept: (b"", "text/plain"))
            )

        def address(name: str) -> str:
            if name not in addresses:
                addresses[name] = standing(name) if name in STANDING else real(name)
            return addresses[name]

        yield address


STANDING: dict[str, StandingEngine] = {
    "starting": StandingEngine(EngineState.STARTING),
    "recovering": StandingEngine(EngineState.RECOVERING, step="pages", ratio=0.41),
    "read_only": StandingEngine(EngineState.READ_ONLY, Reason.JOURNAL_UNAVAILABLE, Reason.DEVICE_ERRORS),
    "every_reason": StandingEngine(EngineState.DEGRADED, *Reason),
    "crowded": CrowdedEngine(),
    "draining": StandingEngine(EngineState.DRAINING),
    "failed": StandingEngine(EngineState.FAILED),
}
