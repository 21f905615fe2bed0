"""``info``, ``check``, ``dump`` and ``copies`` on a device that a real daemon wrote."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.daemon_process import DaemonProcess, clean_environment

VALUES = {"plain": b"value", "spaced%20key": b"", "bell%07%1b%5B2J": b"x" * 10_000, "%ff%fe": b"no text"}
"""Keys as they are written in a path, and their values."""


def put(port: int, key: str, value: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", f"/v1/kv/tests/{key}", body=value)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a device with a few entries, stopped in order."""
    folder = tmp_path_factory.mktemp("written")
    path = folder / "device"
    with DaemonProcess(folder / "log", "--device", str(path), "--create", "--size", "32MiB") as daemon:
        daemon.wait_ready()
        for key, value in VALUES.items():
            assert put(daemon.port, key, value) == 201
        held = run_command("check", str(path), "--json")
        assert json.loads(held.stdout)["held"] is True
        assert daemon.stop() == 0
    return path.read_bytes()


@pytest.fixture
def device(written: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.write_bytes(written)
    return path


def test_nothing_is_written(device: Path, written: bytes) -> None:
    for arguments in (["info"], ["copies"], ["dump"], ["check"], ["check", "--payloads"]):
        result = run_command(*arguments, str(device))
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout
        json.loads("[" + run_command(*arguments, str(device), "--json").stdout.replace("}\n{", "},{") + "]")
    assert device.read_bytes() == written


def test_info_names_the_device(device: Path) -> None:
    facts = json.loads(run_command("info", str(device), "--json").stdout)
    assert facts["device"] == str(device)
    assert facts["held"] is False
    assert facts["geometry"]["size_bytes"] == 32 << 20
    assert "secret" not in facts


def test_dump_tells_every_entry_one_a_line(device: Path) -> None:
    entries = [json.loads(line) for line in run_command("dump", str(device), "--json").stdout.splitlines()]
    assert sorted(entry["payload_bytes"] for entry in entries) == sorted(len(value) for value in VALUES.values())
    assert {entry["key"] for entry in entries} == {"plain", "spaced key", "bell\x07\x1b[2J", None}
    shown = run_command("dump", str(device)).stdout
    assert len(shown.splitlines()) == len(VALUES)
    assert "\x1b" not in shown, "a key must not steer the operator's terminal"
    assert "key bell\\x07\\x1b[2J," in shown


def test_the_exit_code_of_check_tells_the_verdict(device: Path, written: bytes) -> None:
    assert json.loads(run_command("check", str(device), "--json").stdout)["verdict"] == "clean"
    at_bytes = written.index(b"x" * 10_000)
    with device.open("r+b") as file:
        file.seek(at_bytes + 5000)
        file.write(b"y")
    assert run_command("check", str(device)).returncode == 0, "without --payloads values are not read"
    result = run_command("check", str(device), "--payloads", "--json")
    assert result.returncode == 3
    report = json.loads(result.stdout)
    assert report["damage"]["record_payload"] == 1
    assert report["findings"][0]["kind"] == "record_payload"


def test_a_reader_that_has_seen_enough(device: Path) -> None:
    command = f"{sys.executable} -m rawblockd dump {device} --json | head -c 1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=clean_environment()
    )
    assert (result.stdout, result.stderr) == ("{", "")


@pytest.mark.parametrize("command", ["info", "check", "dump", "copies"])
def test_what_holds_no_cache_is_refused(command: str, tmp_path: Path) -> None:
    missing = run_command(command, str(tmp_path / "none"))
    assert missing.returncode == 10
    other = tmp_path / "other"
    other.write_bytes(b"other" * 1_000_000)
    refused = run_command(command, str(other), "--json")
    assert refused.returncode in (12, 14)
    assert json.loads(refused.stdout)["exit_code"] == refused.returncode
    assert "Traceback" not in missing.stderr + refused.stderr
