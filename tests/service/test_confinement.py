"""The daemon does all its work under what the units forbid, on a block device that belongs to its group."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.dockerfile import PYTHON
from tests.service.unit_files import FOLDER, SERVICES
from tests.support.daemon_process import DaemonProcess, clean_environment
from tests.support.loop_devices import loop_device, run, zero_file

UNIT = FOLDER / SERVICES[0]
CONFINE = Path(__file__).with_name("confine.py")
USER, GROUP = 48_790, 48_791


def confined(*command: str | Path) -> list[str]:
    return [PYTHON, str(CONFINE), str(UNIT), str(USER), str(GROUP), *map(str, command)]


class ConfinedProcess(DaemonProcess):
    def __init__(self, log_path: Path, program: Path, *arguments: str) -> None:
        self._log_path = log_path
        # ProtectSystem=strict: everything read-only but the folder of the state.
        script = 'mount --make-rprivate / && mount -o remount,bind,ro / && exec "$@"'
        serve = confined(program, "serve", "--port", "0", "--log-format", "json", *arguments)
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script, "sh", *serve],
                stdout=log,
                stderr=log,
                env=clean_environment(),
            )


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can put a process under all of this")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    with loop_device(zero_file(tmp_path / "backing", 64 << 20)) as path:
        run("chown", f"root:{GROUP}", path)
        run("chmod", "0660", path)
        yield path
        run("chown", "root:disk", path)


@pytest.mark.parametrize("io_engine", ["uring", "threads"])
def test_the_daemon_does_all_its_work(io_engine: str, installed: Path, device: str, tmp_path: Path) -> None:
    program = installed / "bin" / "rawblockd"
    run(str(program), "format", device)
    with ConfinedProcess(tmp_path / "log", program, "--device", device, "--io-engine", io_engine) as daemon:
        daemon.wait_ready()
        process = Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in process
        assert "Seccomp:\t2" in process
        assert "NoNewPrivs:\t1" in process
        assert "CapBnd:\t0000000000000000" in process
        value = os.urandom(200_000)
        assert daemon.request("PUT", "/v1/kv/a/b?durability=flush", value)[0] == 201
        assert daemon.get("/v1/kv/a/b") == (200, value)
        assert daemon.request("DELETE", "/v1/kv/a/b")[0] == 204
        assert daemon.request("POST", "/v1/checkpoint", b"")[0] == 200
        status = json.loads(daemon.get("/v1/status")[1])
        assert status["device"]["io_engine"] == io_engine
        assert status["device"]["direct_io"] is True
        assert daemon.get("/metrics")[0] == 200
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_logged("settings reloaded")
        assert daemon.stop() == 0
        assert not [record for record in daemon.records() if record["level"] not in ("info", "debug")]


def test_a_file_is_made_in_the_folder_of_the_state(installed: Path, tmp_path: Path) -> None:
    memory = tempfile.mkdtemp(prefix="rawblockd-state-", dir="/dev/shm")  # a mount of its own, which stays writable
    try:
        os.chown(memory, USER, GROUP)
        arguments = ("--device", f"{memory}/cache", "--create", "--size", "64MiB", "--uds", f"{memory}/socket")
        with ConfinedProcess(tmp_path / "log", installed / "bin" / "rawblockd", *arguments) as daemon:
            daemon.wait_logged("ready")
            assert daemon.stop() == 0
    finally:
        shutil.rmtree(memory)


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.socket(socket.AF_NETLINK)",
        "import os; os.chroot('/')",
        "import os; os.setuid(0)",
        "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())",
        "import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)",
        "import os; os.open('/etc/shadow', os.O_RDONLY)",
    ],
)
def test_the_confinement_is_one(attempt: str) -> None:
    """What the tests above stand on: it does forbid."""
    result = subprocess.run(confined(PYTHON, "-c", attempt), capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert "Error: [Errno" in result.stderr
