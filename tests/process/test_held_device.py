"""The offline commands on a device that a daemon holds, and what a stop in order leaves on it."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path

import pytest

from storage import offline
from tests.support.commands import run_command
from tests.support.daemon_process import DaemonProcess

VALUES = 40
FLAGS = ("--create", "--size", "64MiB", "--buffer-bytes", "16MiB")


@pytest.mark.parametrize("name", ["info", "copies", "dump", "check"])
def test_a_held_device_is_only_read(name: str, tmp_path: Path) -> None:
    """D6: the command says what it can, and the daemon under load doesn't notice: no error, nothing lost."""
    device = tmp_path / "device"
    ended = threading.Event()
    versions: dict[int, bytes] = {}
    wrong: list[tuple[int, bytes]] = []

    def load(daemon: DaemonProcess) -> None:
        number = 0
        while not ended.is_set() or number < VALUES:
            number += 1
            value = b"%d" % number * 500
            code, answer = daemon.request("PUT", f"/v1/kv/held/{number % VALUES}", value)
            versions[number % VALUES] = value
            if code not in (201, 204):
                wrong.append((code, answer))

    with DaemonProcess(tmp_path / "log", "--device", str(device), *FLAGS) as daemon:
        daemon.wait_ready()
        client = threading.Thread(target=load, args=(daemon,))
        client.start()
        try:
            found = run_command(name, str(device), "--json")
        finally:
            ended.set()
            client.join()
        # A device that is written meanwhile may look damaged to a check; it says so by its exit code.
        assert found.returncode in ((0, 3) if name == "check" else (0,)), found.stderr
        if name != "dump":
            assert json.loads(found.stdout)["held"] is True
        assert not wrong
        for number, value in versions.items():
            assert daemon.get(f"/v1/kv/held/{number}") == (200, value)
        assert daemon.status()["state"] == "ready"
        assert daemon.stop() == 0
        assert not [record for record in daemon.records() if record["level"] in ("warning", "error", "critical")]


def test_sigterm_drains_and_writes_a_last_checkpoint(tmp_path: Path) -> None:
    """D1, R9: a request under way comes to its end; then everything is in a checkpoint, and the exit code is 0."""
    device = tmp_path / "device"
    with DaemonProcess(tmp_path / "log", "--device", str(device), *FLAGS) as daemon:
        daemon.wait_ready()
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as client:
            head = b"PUT /v1/kv/a/late HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            client.sendall(head)
            assert client.recv(4096).startswith(b"HTTP/1.1 100")
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_logged("stop requested")
            client.sendall(b"late")
            assert client.recv(4096).startswith(b"HTTP/1.1 201")
        assert daemon.wait() == 0
    copies = [copy for copy in offline.copies(str(device))["copies"] if copy["newest"]]
    assert [copy["entries"] for copy in copies] == [1]
    assert not offline.check(str(device), True, lambda _ratio, _step: None).damaged
    with DaemonProcess(tmp_path / "log", "--device", str(device)) as daemon:
        daemon.wait_ready()
        assert daemon.get("/v1/kv/a/late") == (200, b"late")
        assert daemon.status()["recovery"]["lost_unflushed"] == 0
        assert daemon.stop() == 0
