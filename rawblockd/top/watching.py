"""Two threads that ask the daemon: one for its state again and again, one that follows its events.

They never give up: a daemon that is away, restarting or refusing is what an operator wants to see.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rawblockd.command_line.daemon_client import EventStream, Target, exchange
from rawblockd.errors import DaemonRefused, DaemonUnreachable
from rawblockd.top.measures import Rates, Sample, rates_between

ASK_TIMEOUT_SECONDS = 5.0
EVENTS_AT_FIRST = 50
SILENCE_MAX_SECONDS = 40.0
"""The daemon gives a sign of life every 15 s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one look at the daemon gave. ``trouble`` says in words why there is no status; empty if there is one."""

    at: float
    status: dict[str, Any] | None = None
    rates: Rates = field(default_factory=Rates)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of the stream: its type, the id to come back with, its data."""

    kind: str
    id: str
    data: dict[str, Any]


class StatusWatch(threading.Thread):
    """Looks every ``interval_seconds``, and hands each answer to ``tell`` on its own thread."""

    def __init__(self, target: Target, interval_seconds: float, tell: Callable[[Answer], object]) -> None:
        super().__init__(name="rawblockd-top-status", daemon=True)
        self._target = target
        self._interval_seconds = interval_seconds
        self._tell = tell
        self._ended = threading.Event()
        self._before: Sample | None = None

    def run(self) -> None:
        while not self._ended.is_set():
            self._tell(self._look())
            self._ended.wait(self._interval_seconds)

    def stop(self) -> None:
        self._ended.set()

    def _look(self) -> Answer:
        try:
            status = self._ask("/v1/status")
            page = self._ask("/metrics")
        except (DaemonUnreachable, DaemonRefused) as error:
            self._before = None
            return Answer(time.time(), trouble=f"{error.sentence} {error.detail}")
        sample = Sample.parse(page if isinstance(page, str) else "", time.monotonic())
        rates = rates_between(self._before, sample)
        self._before = sample
        return Answer(time.time(), status, rates)

    def _ask(self, path: str) -> Any:
        code, answer = exchange(self._target, "GET", path, ASK_TIMEOUT_SECONDS)
        if code != 200:
            title = answer.get("title", "") if isinstance(answer, dict) else ""
            raise DaemonRefused(f"{path}: {title or f'status {code}'}")
        return answer


class EventWatch(threading.Thread):
    """Follows the events, and goes on where it was after the daemon was away."""

    def __init__(self, target: Target, retry_seconds: float, tell: Callable[[Happened], object]) -> None:
        super().__init__(name="rawblockd-top-events", daemon=True)
        self._target = target
        self._retry_seconds = retry_seconds
        self._tell = tell
        self._ended = threading.Event()
        self._stream: EventStream | None = None
        self._last_id = ""

    def run(self) -> None:
        while not self._ended.is_set():
            self._follow()
            self._ended.wait(self._retry_seconds)

    def stop(self) -> None:
        self._ended.set()
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def _follow(self) -> None:
        """Until the stream ends, for whatever reason: what is wrong with the daemon the other thread says."""
        begin = f"since={self._last_id}" if self._last_id else f"last={EVENTS_AT_FIRST}"
        try:
            self._stream = EventStream(self._target, f"/v1/events?{begin}", SILENCE_MAX_SECONDS)
        except (DaemonUnreachable, DaemonRefused):
            return
        try:
            for happened in happenings(self._stream.lines()):
                if self._ended.is_set():
                    return
                self._last_id = happened.id or self._last_id
                if happened.kind:
                    self._tell(happened)
        except DaemonUnreachable:
            return
        finally:
            self._stream.close()


def happenings(lines: Iterator[str]) -> Iterator[Happened]:
    """The blocks of a stream; those without a type carry only an id."""
    kind, number, data = "", "", ""
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if kind or number:
                yield Happened(kind, number, json.loads(data) if data else {})
            kind, number, data = "", "", ""
        elif name == "event":
            kind = value
        elif name == "id":
            number = value
        elif name == "data":
            data = value
