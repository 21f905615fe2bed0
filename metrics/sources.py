"""What the metrics are made from. The engine, its device and the HTTP layer count; nothing here does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from storage.counters import EngineCounters
from storage.device.counters import IoCounters
from storage.events import EventFeed
from storage.status import EngineStatus


class CountingEngine(Protocol):
    @property
    def counters(self) -> EngineCounters: ...
    @property
    def events(self) -> EventFeed: ...
    def status(self) -> EngineStatus: ...


class HttpDurations(Protocol):
    @property
    def bounds(self) -> Sequence[float]: ...
    @property
    def buckets(self) -> Sequence[int]: ...
    @property
    def sum_seconds(self) -> float: ...


class HttpCounts(Protocol):
    """``requests[route, method, code]`` and ``durations[route, method]``; routes are templates of a closed set."""

    @property
    def requests(self) -> Mapping[tuple[str, str, int], int]: ...
    @property
    def durations(self) -> Mapping[tuple[str, str], HttpDurations]: ...


@dataclass(frozen=True, slots=True)
class MetricsSources:
    engine: CountingEngine
    io: IoCounters
    http: HttpCounts
    started_at: float = field(default_factory=time.time)
    """When the daemon began, in seconds since 1970."""
