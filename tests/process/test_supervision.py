"""What systemd is told in the course of a daemon's life."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rawblockd.sd_notify import SystemdNotifier
from rawblockd.supervision import EXTENSION_SECONDS, Supervision
from storage.recovery.report import RecoveryProgress
from storage.status import EngineState, Reason

EXTEND = f"EXTEND_TIMEOUT_USEC={int(EXTENSION_SECONDS * 1_000_000)}"


class Engine:
    def __init__(self) -> None:
        self.state = EngineState.RECOVERING
        self.reasons: list[Reason] = []
        self.progress = RecoveryProgress(0.0, "reading checkpoint copies")


class Told:
    """The receiving side."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    def all(self) -> list[str]:
        messages = []
        with suppress(BlockingIOError):
            while True:
                messages.append(self._receiver.recv(1000).decode())
        return messages


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield Told(receiver)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[SystemdNotifier]:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000"})
    yield notifier
    notifier.close()


async def turn(supervision: Supervision, seconds: float) -> None:
    """Let the supervision run for a while."""
    task = asyncio.create_task(supervision.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])


async def test_recovery_asks_for_time_only_while_it_moves_on(told: Told, systemd: SystemdNotifier) -> None:
    engine = Engine()
    supervision = Supervision(engine, systemd)
    await turn(supervision, 0.1)
    messages = told.all()
    assert messages.count(EXTEND) == 1
    assert "STATUS=Recovering: reading checkpoint copies, 0%" in messages
    engine.progress = RecoveryProgress(0.43, "replaying the journal")
    await turn(supervision, 0.1)
    messages = told.all()
    assert messages.count(EXTEND) == 1
    assert "STATUS=Recovering: replaying the journal, 43%" in messages
    assert "READY=1" not in messages


async def test_ready_degraded_and_back(told: Told, systemd: SystemdNotifier) -> None:
    engine = Engine()
    supervision = Supervision(engine, systemd)
    engine.state = EngineState.READY
    supervision.ready()
    assert told.all() == ["STATUS=Ready", "READY=1"]
    engine.state, engine.reasons = EngineState.DEGRADED, [Reason.PARTIAL_RECOVERY, Reason.CORRUPTION]
    await turn(supervision, 0.1)
    messages = told.all()
    assert [m for m in messages if m.startswith("STATUS")] == ["STATUS=Degraded: partial_recovery, corruption"]
    assert messages.count("WATCHDOG=1") >= 3, "a degraded daemon is alive"
    engine.state, engine.reasons = EngineState.READ_ONLY, [Reason.DEVICE_ERRORS]
    await turn(supervision, 0.05)
    assert "STATUS=Read only: device_errors" in told.all()


async def test_a_loop_that_does_not_turn_sends_no_pings(told: Told, systemd: SystemdNotifier) -> None:
    supervision = Supervision(Engine(), systemd)
    task = asyncio.create_task(supervision.run())
    await asyncio.sleep(0.05)
    told.all()
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is meant to stand still
    assert told.all() == []
    task.cancel()
    await asyncio.wait([task])


async def test_a_stop_asks_for_time(told: Told, systemd: SystemdNotifier) -> None:
    engine = Engine()
    supervision = Supervision(engine, systemd)
    supervision.ready()
    engine.state = EngineState.DRAINING
    supervision.stopping()
    told.all()
    await turn(supervision, 0.1)
    messages = told.all()
    assert messages.count(EXTEND) >= 3
    assert not [m for m in messages if m.startswith("STATUS")], "the sentence about the stop stays"
