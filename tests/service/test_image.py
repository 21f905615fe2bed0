"""What the image would hold and run, without a container engine: its files, its user, its commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

import pytest

from tests.service import dockerfile
from tests.service.dockerfile import DATA, INSTALLED, ROOT, environment, stages, the_only
from tests.support.daemon_process import DaemonProcess, clean_environment

USER = 8790
TOOLS = Path(sys.executable).parent


class ImageProcess(DaemonProcess):
    """The image's command, as the image's user where the test run may change it, on a folder for the volume."""

    def __init__(self, log_path: Path, installed: Path, volume: Path, **more: str) -> None:
        _, stage = stages()
        own = environment(stage)
        own["PATH"] = own["PATH"].replace(INSTALLED, str(installed)).replace("$PATH", os.environ["PATH"])
        own["RAWBLOCKD_DEVICE"] = own["RAWBLOCKD_DEVICE"].replace(DATA, str(volume))
        own |= {"RAWBLOCKD_PORT": "0", "RAWBLOCKD_SIZE": "64MiB"}
        self._log_path = log_path
        self.environment = clean_environment(**(own | more))
        command = as_user() + the_only(stage, "ENTRYPOINT").words() + the_only(stage, "CMD").words()
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, cwd=volume)

    def __enter__(self) -> ImageProcess:
        return self

    def health(self) -> int:
        """What the image's health check says."""
        _, stage = stages()
        environ = self.environment | {"RAWBLOCKD_URL": f"http://127.0.0.1:{self.port}"}
        words = as_user() + the_only(stage, "HEALTHCHECK").words()
        return subprocess.run(words, env=environ, capture_output=True, check=False, timeout=60).returncode


def as_user() -> list[str]:
    """Words before a command that make it the image's user's, where the test run may change the user."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder of the image's user, where that user gets to."""
    folder = Path(tempfile.mkdtemp(prefix="rawblockd-volume-"))
    if os.geteuid() == 0:
        os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder)


def test_hadolint_has_nothing_to_say() -> None:
    result = subprocess.run([TOOLS / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_hadolint_would_say_something(tmp_path: Path) -> None:
    worse = tmp_path / "Dockerfile"
    worse.write_text((ROOT / "Dockerfile").read_text().replace("WORKDIR /build", "RUN cd /build"))
    result = subprocess.run([TOOLS / "hadolint", worse], capture_output=True, text=True, check=False)
    assert "DL3003" in result.stdout
    assert result.returncode != 0


def test_how_the_image_runs() -> None:
    _, stage = stages()
    assert the_only(stage, "USER").rest == f"{USER}:{USER}"
    assert f"useradd --system --uid {USER} --user-group --home-dir {DATA}" in the_only(stage, "RUN").rest
    assert the_only(stage, "VOLUME").rest == DATA
    assert the_only(stage, "STOPSIGNAL").rest == "SIGTERM"
    assert the_only(stage, "EXPOSE").rest == "8790"
    assert the_only(stage, "HEALTHCHECK").words() == ["rawblockd", "health"]
    assert the_only(stage, "ENTRYPOINT").words() == ["rawblockd"]
    assert the_only(stage, "CMD").words() == ["serve"]
    assert the_only(stage, "COPY").rest == f"--from=build {INSTALLED} {INSTALLED}"


def test_the_context_is_what_the_wheel_needs(tmp_path: Path) -> None:
    dockerfile.copy_context(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"pyproject.toml", "requirements.lock", "LICENSE", "rawblockd", "api", "storage", "metrics"}


def test_what_is_installed(installed: Path) -> None:
    names = {path.name for path in (installed / "bin").iterdir()}
    assert "rawblockd" in names
    assert not [name for name in names if name.startswith("pip")], "the image has no installer"
    (packages,) = installed.glob("lib/python3*/site-packages")
    locked = dict(line.lower().split("==") for line in (ROOT / "requirements.lock").read_text().split())
    found = {}
    for folder in packages.glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        found[name.lower().replace("_", "-")] = version
    assert found.pop("rawblockd")
    assert found
    wanted = {name.replace("_", "-").replace(".", "-"): version for name, version in locked.items()}
    assert found.items() <= wanted.items(), "another version than the tests use"
    assert "pytest" not in found


def test_the_image_serves_a_volume(installed: Path, volume: Path, tmp_path: Path) -> None:
    with ImageProcess(tmp_path / "log", installed, volume, RAWBLOCKD_ALLOW_OPEN_ACCESS="true") as daemon:
        daemon.wait_ready()
        assert daemon.health() == 0
        assert daemon.request("PUT", "/v1/kv/image/key", b"value")[0] == 201
        assert json.loads(daemon.get("/v1/status")[1])["device"]["direct_io"] is True
        if os.geteuid() == 0:
            assert os.stat(volume / "cache").st_uid == USER
        _, stage = stages()
        assert daemon.stop(Signals[the_only(stage, "STOPSIGNAL").rest]) == 0
        assert daemon.health() == 1
    with ImageProcess(tmp_path / "log", installed, volume, RAWBLOCKD_ALLOW_OPEN_ACCESS="true") as daemon:
        daemon.wait_ready()
        assert daemon.get("/v1/kv/image/key") == (200, b"value")
        assert daemon.stop() == 0


def test_the_image_is_not_open_by_default(installed: Path, volume: Path, tmp_path: Path) -> None:
    with ImageProcess(tmp_path / "log", installed, volume) as daemon:
        assert daemon.wait() == 2
        assert "allow_open_access" in daemon.log_text()
    assert not list(volume.iterdir())
