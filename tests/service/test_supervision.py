"""What systemd is told in the course of a daemon's life."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rawblockd.sd_notify import SystemdNotifier
from rawblockd.state_sentence import recovering_sentence, state_sentence
from rawblockd.supervision import EXTENSION_SECONDS, HANG_INTERVALS, Supervision
from storage.engine import Engine as RealEngine
from storage.recovery.report import RecoveryProgress
from storage.status import EngineState, EngineStatus, Reason
from tests.support.simulated_device import Image, SimulatedDevice

INTERVAL_SECONDS = 0.04
EXTEND = f"EXTEND_TIMEOUT_USEC={int(EXTENSION_SECONDS * 1_000_000)}"


class Engine:
    def __init__(self) -> None:
        self.state = EngineState.RECOVERING
        self.reasons: list[Reason] = []
        self.progress = RecoveryProgress(0.0, "copies")
        self.facts = RealEngine(SimulatedDevice(Image(1 << 20))).status()

    def status(self) -> EngineStatus:
        self.facts.state, self.facts.reasons = self.state, self.reasons
        return self.facts


class Pulse:
    def __init__(self) -> None:
        self.waited_seconds = 0.0
        self.completed = 0
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1


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

    async def until(self, happened: Callable[[list[str]], bool]) -> list[str]:
        """All that is told until what was told so far satisfies ``happened``."""
        messages: list[str] = []
        async with asyncio.timeout(20):
            while True:
                messages += self.all()
                if happened(messages):
                    return messages
                await asyncio.sleep(0.005)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield Told(receiver)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[SystemdNotifier]:
    notifier = SystemdNotifier(
        {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": f"{INTERVAL_SECONDS * 1e6:.0f}"}
    )
    yield notifier
    notifier.close()


@asynccontextmanager
async def running(supervision: Supervision) -> AsyncIterator[None]:
    task = asyncio.create_task(supervision.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def pings(count: int) -> Callable[[list[str]], bool]:
    return lambda messages: messages.count("WATCHDOG=1") >= count


async def test_recovery_asks_for_time_only_while_it_moves_on(told: Told, systemd: SystemdNotifier) -> None:
    engine, pulse = Engine(), Pulse()
    async with running(Supervision(engine, systemd, pulse)):
        messages = await told.until(pings(5))
        assert messages.count(EXTEND) == 1
        assert "STATUS=recovering 0 %: copies" in messages
        engine.progress = RecoveryProgress(0.419, "journal")
        messages = await told.until(pings(5))
        assert messages.count(EXTEND) == 1
        assert "STATUS=recovering 41 %: journal" in messages
        pulse.completed += 1000
        messages = await told.until(pings(5))
        assert messages.count(EXTEND) == 1, "a step that reads moves on without another percent"
        assert "READY=1" not in messages
    assert pulse.beats == 0, "before the start is over nobody but the recovery uses the device"


async def test_ready_degraded_and_back(told: Told, systemd: SystemdNotifier) -> None:
    engine = Engine()
    supervision = Supervision(engine, systemd, Pulse())
    engine.state = EngineState.READY
    supervision.ready()
    assert told.all() == ["STATUS=ready", "READY=1"]
    async with running(supervision):
        engine.state, engine.reasons = EngineState.DEGRADED, [Reason.PARTIAL_RECOVERY]
        engine.facts.skipped_entries = 3
        messages = await told.until(pings(5))
        assert [m for m in messages if m.startswith("STATUS")] == [
            "STATUS=degraded: partial recovery, 3 entries skipped"
        ]
        engine.state, engine.reasons = EngineState.READY, []
        await told.until(lambda messages: "STATUS=ready" in messages)


@pytest.mark.parametrize("reason", Reason)
async def test_no_reason_withholds_the_watchdog(reason: Reason, told: Told, systemd: SystemdNotifier) -> None:
    """A paused or failing checkpoint, damage, a device that fails operations: degraded or read-only, never killed."""
    engine = Engine()
    engine.state, engine.reasons = EngineState.DEGRADED, [reason]
    supervision = Supervision(engine, systemd, Pulse())
    supervision.ready()
    async with running(supervision):
        await told.until(pings(5))


async def test_a_loop_that_does_not_turn_sends_no_pings(told: Told, systemd: SystemdNotifier) -> None:
    async with running(Supervision(Engine(), systemd, Pulse())):
        await told.until(pings(1))
        told.all()
        time.sleep(5 * INTERVAL_SECONDS)  # noqa: ASYNC251 - the loop is meant to stand still
        assert told.all() == []
        await told.until(pings(1))


async def test_a_device_that_does_not_answer_stops_the_pings(
    told: Told, systemd: SystemdNotifier, caplog: pytest.LogCaptureFixture
) -> None:
    engine, pulse = Engine(), Pulse()
    engine.state = EngineState.READY
    supervision = Supervision(engine, systemd, pulse)
    supervision.ready()
    async with running(supervision):
        pulse.waited_seconds = HANG_INTERVALS * INTERVAL_SECONDS
        await told.until(pings(3))
        pulse.waited_seconds = 61.0
        await told.until(lambda messages: bool(messages) and messages[-1].startswith("STATUS=device I/O hangs"))
        beats = pulse.beats
        async with asyncio.timeout(20):
            while pulse.beats < beats + 5:
                await asyncio.sleep(0.005)
        assert told.all() == [], "the loop turns, and yet nothing is sent"
        pulse.waited_seconds = 0.0
        messages = await told.until(pings(3))
        assert "STATUS=ready" in messages
    assert [record.message for record in caplog.records] == [
        "device I/O hangs: the watchdog is not fed",
        "device I/O goes on: the watchdog is fed again",
    ]


async def test_a_stop_asks_for_time_while_the_device_answers(told: Told, systemd: SystemdNotifier) -> None:
    engine, pulse = Engine(), Pulse()
    supervision = Supervision(engine, systemd, pulse)
    supervision.ready()
    engine.state = EngineState.DRAINING
    supervision.stopping()
    told.all()
    async with running(supervision):
        messages = await told.until(lambda messages: messages.count(EXTEND) >= 3)
        assert not [m for m in messages if m.startswith("STATUS")], "the sentence about the stop stays"
        pulse.waited_seconds = 61.0
        await asyncio.sleep(2 * INTERVAL_SECONDS)
        told.all()
        await asyncio.sleep(5 * INTERVAL_SECONDS)
        assert told.all() == [], "a last checkpoint that hangs gets no more time"
    assert pulse.beats == 0


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason.PARTIAL_RECOVERY, "degraded: partial recovery, 1 entry skipped, a loss of unknown extent"),
        (Reason.CORRUPTION, "degraded: corruption found, 2 slots quarantined"),
        (Reason.CHECKPOINT_OVERDUE, "degraded: checkpoint overdue, the newest is 5 min old"),
        (Reason.CHECKPOINT_FAILING, "degraded: checkpoints fail, 4 so far"),
        (Reason.JOURNAL_UNAVAILABLE, "degraded: the journal can't be written"),
        (Reason.DEVICE_ERRORS, "degraded: self test: no"),
        (Reason.COPY_DAMAGED, "degraded: copy damaged"),
    ],
)
def test_sentences(reason: Reason, sentence: str) -> None:
    engine = Engine()
    engine.state, engine.reasons = EngineState.DEGRADED, [reason]
    facts = engine.status()
    facts.skipped_entries, facts.recovery.unknown_loss = 1, True
    facts.capacity.slots.quarantined = 2
    facts.checkpoint.age_seconds, facts.checkpoint.failed = 312.0, 4
    facts.self_test.failure = "self test: no"
    assert state_sentence(facts) == sentence


def test_all_reasons_are_told() -> None:
    engine = Engine()
    engine.state = EngineState.READ_ONLY
    engine.reasons = [Reason.CORRUPTION, Reason.DEVICE_ERRORS]
    assert state_sentence(engine.status()) == (
        "read-only: corruption found, 0 slots quarantined; operations of the device fail"
    )


def test_a_recovery_is_complete_only_at_its_end() -> None:
    assert recovering_sentence(RecoveryProgress(0.999, "rows")) == "recovering 99 %: rows"
    assert recovering_sentence(RecoveryProgress(1.0, "done")) == "recovering 100 %: done"
    assert recovering_sentence(RecoveryProgress()) == "recovering 0 %: beginning"
