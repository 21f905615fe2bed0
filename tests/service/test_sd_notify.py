"""Messages to systemd, against a real datagram socket."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawblockd.sd_notify import SystemdNotifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        yield receiver


def test_messages(systemd: socket.socket) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.getsockname()})
    assert notifier.active
    notifier.status("Recovering:\nreading, 43 %")
    notifier.status("Recovering: reading, 43 %")
    notifier.ready()
    notifier.watchdog()
    notifier.extend_timeout(1.5)
    notifier.stopping()
    received = [systemd.recv(1000).decode() for _ in range(5)]
    assert received == [
        "STATUS=Recovering: reading, 43 %",
        "READY=1",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1",
    ]
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    first, second = systemd.recv(1000).decode().splitlines()
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.close()


def test_abstract_socket() -> None:
    name = f"rawblockd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.settimeout(5)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": "@" + name})
        notifier.ready()
        assert receiver.recv(1000) == b"READY=1"
        notifier.close()


@pytest.mark.parametrize("value", ["", "vsock:2:1234"])
def test_without_a_socket_of_ours_nothing_is_sent(value: str) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": value})
    assert not notifier.active
    notifier.ready()
    notifier.close()


def test_a_failing_socket_is_logged_once_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            notifier.watchdog()
    assert [record.message for record in caplog.records] == ["systemd can't be notified"]
    notifier.close()


def test_a_full_socket_does_not_block(systemd: socket.socket) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.getsockname()})
    began = time.monotonic()
    for _ in range(10_000):
        notifier.watchdog()
    assert time.monotonic() - began < 5
    notifier.close()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_watchdog_interval(environment: dict[str, str], seconds: float) -> None:
    assert SystemdNotifier(environment).watchdog_seconds == seconds
