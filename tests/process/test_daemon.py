"""The daemon's life from outside: start, signals, refusals, exit codes, systemd's view."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.daemon_process import DaemonProcess

SIZE = ("--create", "--size", "64MiB")


@pytest.fixture
def device(tmp_path: Path) -> str:
    return str(tmp_path / "device")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_missing_file_is_made_and_a_signal_stops_in_order(number: signal.Signals, device: str, log: Path) -> None:
    with DaemonProcess(log, "--device", device, *SIZE) as daemon:
        daemon.wait_ready()
        found = os.stat(device)
        assert found.st_size == 64 << 20
        assert found.st_blocks * 512 >= 64 << 20, "preallocated, not sparse"
        assert daemon.stop(number) == 0
        events = [record["event"] for record in daemon.records() if record["logger"].startswith("rawblockd")]
        order = ["formatted the file", "listening", "ready", "stop requested", "requests drained", "stopped"]
        assert [event for event in events if event in order] == order
        assert not [record for record in daemon.records() if record["level"] in ("warning", "error", "critical")]


def test_an_existing_file_of_ours_is_served_and_not_formatted(device: str, log: Path) -> None:
    uuids = []
    for _ in range(2):
        with DaemonProcess(log, "--device", device, *SIZE) as daemon:
            daemon.wait_ready()
            uuids.append(json.loads(daemon.get("/v1/status")[1])["device"]["uuid"])
            assert daemon.stop() == 0
    assert uuids[0] == uuids[1]


def test_anything_else_at_the_path_is_refused_and_left_alone(tmp_path: Path, log: Path) -> None:
    device = tmp_path / "precious"
    device.write_bytes(b"precious" * 1_000_000)
    with DaemonProcess(log, "--device", str(device), *SIZE) as daemon:
        assert daemon.wait() in (12, 14)
        (error,) = [record for record in daemon.records() if record["level"] == "error"]
        assert error["exit_code"] == daemon.process.poll()
        assert "Traceback" not in daemon.log_text()
    assert device.read_bytes() == b"precious" * 1_000_000


def test_a_device_that_is_held_is_refused(device: str, log: Path, tmp_path: Path) -> None:
    with DaemonProcess(log, "--device", device, *SIZE) as daemon:
        daemon.wait_ready()
        with DaemonProcess(tmp_path / "second", "--device", device) as second:
            assert second.wait() == 11
            assert [r["code"] for r in second.records() if r["level"] == "error"] == ["device_in_use"]
        assert daemon.get("/readyz")[0] == 200
        assert daemon.stop() == 0


def test_an_address_in_use_is_found_before_the_device_is_touched(device: str, log: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with DaemonProcess(log, "--device", device, *SIZE, "--port", port) as daemon:
            assert daemon.wait() == 4
    assert not os.path.exists(device)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_at_once(second: signal.Signals, device: str, log: Path) -> None:
    with DaemonProcess(log, "--device", device, *SIZE) as daemon:
        daemon.wait_ready()
        # A put whose body never comes keeps the drain waiting.
        with socket.create_connection(("127.0.0.1", daemon.port)) as client:
            client.sendall(b"PUT /v1/kv/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
            time.sleep(0.3)
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_logged("stop requested")
            time.sleep(0.3)
            assert daemon.process.poll() is None
            assert daemon.stop(second) == 128 + second


def test_the_drain_is_bounded(device: str, log: Path) -> None:
    with DaemonProcess(log, "--device", device, *SIZE, "--drain-timeout-seconds", "0.5") as daemon:
        daemon.wait_ready()
        with socket.create_connection(("127.0.0.1", daemon.port)) as client:
            client.sendall(b"PUT /v1/kv/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
            time.sleep(0.3)
            began = time.monotonic()
            assert daemon.stop() == 0
            assert 0.4 < time.monotonic() - began < 10
        daemon.wait_logged("requests cut off after the drain time")
        assert "Traceback" not in daemon.log_text()


def test_sighup_reads_the_log_level_again(device: str, log: Path, tmp_path: Path) -> None:
    config = tmp_path / "rawblockd.toml"
    config.write_text('log_level = "info"\n')
    with DaemonProcess(log, "--device", device, *SIZE, "--config", str(config)) as daemon:
        daemon.wait_ready()
        config.write_text('log_level = "nonsense"\n')
        daemon.process.send_signal(signal.SIGHUP)
        refused = daemon.wait_logged("settings not reloaded")
        assert "nonsense" in refused["detail"]
        config.write_text('log_level = "debug"\n')
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.wait_logged("settings reloaded")["log_level"] == "debug"
        config.write_text('log_level = "error"\n')
        before = len(daemon.records())
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert daemon.stop() == 0
        assert [record for record in daemon.records()[before:] if record["level"] == "info"] == []


def test_a_unix_socket(device: str, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with DaemonProcess(log, "--device", device, *SIZE, "--uds", str(path)) as daemon:
        daemon.wait_logged("ready")
        healthy = run_command("health", "--url", f"unix://{path}")
        assert (healthy.returncode, healthy.stdout) == (0, "healthy: ready\n")
        assert daemon.stop() == 0
    assert not path.exists()


def test_the_commands_against_a_daemon(device: str, log: Path) -> None:
    with DaemonProcess(log, "--device", device, *SIZE) as daemon:
        daemon.wait_ready()
        url = f"http://127.0.0.1:{daemon.port}"
        status = run_command("status", "--url", url, "--json")
        assert json.loads(status.stdout)["state"] == "ready"
        assert run_command("checkpoint", "--url", url).returncode == 0
        nothing = run_command("recovery", "acknowledge", "--url", url, "--json")
        assert nothing.returncode == 6
        assert json.loads(nothing.stdout)["problem_code"] == "nothing_to_acknowledge"
        assert run_command("recovery", "show", "--url", url).returncode == 0
        _, metrics = daemon.get("/metrics")
        assert b'rawblockd_engine_state{state="ready"} 1.0' in metrics
        assert daemon.stop() == 0
    assert run_command("health", "--url", url).returncode == 1


def test_device_is_needed(log: Path) -> None:
    with DaemonProcess(log) as daemon:
        assert daemon.wait() == 2
        assert "device is not set" in daemon.log_text()
