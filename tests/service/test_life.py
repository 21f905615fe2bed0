"""What systemd hears from a real daemon: its whole life, damage, and a device that hangs."""

from __future__ import annotations

import json
import lzma
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service.notify_socket import notify_socket
from tests.support.daemon_process import DaemonProcess
from tests.support.loop_devices import loop_device, mounted, run, zero_file

GOLDEN = Path(__file__).parents[1] / "golden"
CREATE = ("--create", "--size", "64MiB")
INTERVAL_SECONDS = 0.4


def supervised(address: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": f"{INTERVAL_SECONDS * 1e6:.0f}"}


def test_the_whole_life(tmp_path: Path) -> None:
    address = f"@rawblockd-{os.getpid()}"  # systemd's own are of both kinds; the other tests here have a path
    with notify_socket(address) as systemd:
        arguments = ("--device", str(tmp_path / "device"), *CREATE)
        with DaemonProcess(tmp_path / "log", *arguments, **supervised(address)) as daemon:
            ready = systemd.wait("READY=1")
            systemd.wait("WATCHDOG=1", count=3, after=ready)
            daemon.process.send_signal(signal.SIGHUP)
            reloaded = systemd.wait("RELOADING=1\nMONOTONIC_USEC=")
            systemd.wait("READY=1", after=reloaded - 1)
            assert daemon.stop() == 0
        systemd.wait("STOPPING=1", after=reloaded)
    heard = systemd.heard
    assert heard[0] == "STATUS=opening the device"
    assert any(message.startswith("STATUS=recovering ") for message in heard[: heard.index("READY=1")])
    assert any(message.startswith("EXTEND_TIMEOUT_USEC=") for message in heard[: heard.index("READY=1")])
    assert "STATUS=ready" in heard
    assert heard.count("READY=1") == 2
    stopping = heard.index("STOPPING=1")
    assert "STATUS=stopping: draining requests, then the last checkpoint" in heard[stopping:]


def test_a_refusal_says_why(tmp_path: Path) -> None:
    with notify_socket(str(tmp_path / "notify")) as systemd:
        arguments = ("--device", str(tmp_path / "none"))
        with DaemonProcess(tmp_path / "log", *arguments, **supervised(systemd.address)) as daemon:
            assert daemon.wait() == 10
        systemd.wait("STATUS=failed: The path does not exist")
    assert "READY=1" not in systemd.heard


def test_partial_recovery_is_told_and_the_watchdog_fed(tmp_path: Path) -> None:
    """R4: checkpoints are paused, and nobody is killed for it."""
    device = tmp_path / "device"
    device.write_bytes(lzma.decompress((GOLDEN / "v1-partial.xz").read_bytes()))
    address = str(tmp_path / "notify")
    with (
        notify_socket(address) as systemd,
        DaemonProcess(tmp_path / "log", "--device", str(device), **supervised(address)) as daemon,
    ):
        systemd.wait("READY=1")
        skipped = daemon.status()["skipped_entries"]
        assert skipped
        entries = "entry" if skipped == 1 else "entries"
        told = systemd.wait(f"STATUS=degraded: partial recovery, {skipped} {entries} skipped")
        systemd.wait("WATCHDOG=1", count=10, after=told)
        assert daemon.status()["auto_checkpoint"]["enabled"] is False
        assert daemon.request("POST", "/v1/recovery/acknowledge", b"")[0] == 200
        systemd.wait("STATUS=ready", after=told)
        assert daemon.stop() == 0


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """A file system on which every write hangs in the kernel, and reads go on."""
    run("fsfreeze", "--freeze", str(place))
    try:
        yield
    finally:
        run("fsfreeze", "--unfreeze", str(place))


@pytest.mark.parametrize("io_engine", ["uring", "threads"])
def test_a_device_that_hangs_stops_the_watchdog(io_engine: str, tmp_path: Path) -> None:
    with loop_device(zero_file(tmp_path / "disk", 160 << 20)) as disk:
        run("mkfs.ext4", "-q", disk)
        with mounted(disk, tmp_path / "mounted") as place, notify_socket(str(tmp_path / "notify")) as systemd:
            arguments = ("--device", str(place / "cache"), *CREATE, "--io-engine", io_engine)
            with DaemonProcess(tmp_path / "log", *arguments, **supervised(systemd.address)) as daemon:
                systemd.wait("READY=1")
                answers: list[int] = []
                put = threading.Thread(
                    target=lambda: answers.append(daemon.request("PUT", "/v1/kv/a/b", b"x", timeout_seconds=60.0)[0])
                )
                with frozen(place):
                    put.start()
                    hanging = systemd.wait("STATUS=device I/O hangs")
                    # Several intervals in which the loop turns: it answers, and tells the seconds it has waited.
                    systemd.wait("STATUS=device I/O hangs", count=3, after=hanging)
                    assert daemon.get("/livez")[0] == 200
                    assert "WATCHDOG=1" not in systemd.heard[hanging:]
                    assert answers == []
                systemd.wait("WATCHDOG=1", count=3, after=hanging)
                put.join()
                assert answers == [201]
                systemd.wait("STATUS=ready", after=hanging)
                assert daemon.stop() == 0
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert [event for event in events if event.startswith("device I/O")] == [
        "device I/O hangs: the watchdog is not fed",
        "device I/O goes on: the watchdog is fed again",
    ]


def test_the_watchdogs_signal_leaves_a_traceback(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "log", "--device", str(tmp_path / "device"), *CREATE) as daemon:
        daemon.wait_logged("ready")
        assert daemon.stop(signal.SIGABRT) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in daemon.log_text()
        assert "most recent call first" in daemon.log_text()
