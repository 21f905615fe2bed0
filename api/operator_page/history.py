"""The last minutes of traffic, for the charts: a bounded ring of samples made from what is counted anyway (L1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.counters import HttpCounters
from api.value_paths import PREFIX, TEMPLATE

SAMPLE_SECONDS = 2.0
SAMPLES_MAX = 300
"""Ten minutes. A sample is 150 bytes: 45 KB in all."""

_VALUES = PREFIX.decode()
_READING = ("GET", "HEAD")
_READING_BATCHES = (":mget", ":exists")


@dataclass(frozen=True, slots=True)
class Sample:
    """What happened since the sample before. None where nothing happened that could be measured."""

    at: float
    reads_per_second: float
    writes_per_second: float
    hit_ratio: float | None
    get_p50_seconds: float | None
    get_p99_seconds: float | None


@dataclass(slots=True)
class HistoryView:
    """Samples by column, oldest first; ``at`` is seconds since 1970, null stands where nothing could be measured."""

    interval_seconds: float
    span_seconds: float
    at: list[float]
    reads_per_second: list[float]
    writes_per_second: list[float]
    hit_ratio: list[float | None]
    get_p50_seconds: list[float | None]
    get_p99_seconds: list[float | None]


@dataclass(frozen=True, slots=True)
class _Totals:
    at: float
    reads: int
    writes: int
    hits: int
    lookups: int
    get_buckets: tuple[int, ...]


class History:
    """``lookups`` are the engine's counts by result, ``counters`` the requests and their durations."""

    def __init__(self, lookups: Mapping[str, int], counters: HttpCounters) -> None:
        self._lookups = lookups
        self._counters = counters
        self._before: _Totals | None = None
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def take(self, at: float) -> None:
        """Add what happened since the last call; the first one only begins. ``at`` is seconds since 1970."""
        now, before = self._totals(at), self._before
        self._before = now
        if before is None or now.at <= before.at:  # a clock that was set back measures nothing
            return
        seconds = now.at - before.at
        lookups = now.lookups - before.lookups
        taken = [new - old for new, old in zip(now.get_buckets, before.get_buckets, strict=True)]
        bounds = self._get_bounds()
        self.samples.append(
            Sample(
                at=at,
                reads_per_second=(now.reads - before.reads) / seconds,
                writes_per_second=(now.writes - before.writes) / seconds,
                hit_ratio=(now.hits - before.hits) / lookups if lookups else None,
                get_p50_seconds=quantile(bounds, taken, 0.5),
                get_p99_seconds=quantile(bounds, taken, 0.99),
            )
        )

    def view(self) -> HistoryView:
        samples = self.samples
        return HistoryView(
            interval_seconds=SAMPLE_SECONDS,
            span_seconds=SAMPLE_SECONDS * SAMPLES_MAX,
            at=[round(sample.at, 3) for sample in samples],
            reads_per_second=[round(sample.reads_per_second, 3) for sample in samples],
            writes_per_second=[round(sample.writes_per_second, 3) for sample in samples],
            hit_ratio=[_rounded(sample.hit_ratio, 4) for sample in samples],
            get_p50_seconds=[_rounded(sample.get_p50_seconds, 7) for sample in samples],
            get_p99_seconds=[_rounded(sample.get_p99_seconds, 7) for sample in samples],
        )

    def _get_bounds(self) -> Sequence[float]:
        return self._counters.durations[TEMPLATE, "GET"].bounds

    def _totals(self, at: float) -> _Totals:
        reads = writes = 0
        for (route, method), durations in self._counters.durations.items():
            if not route.startswith(_VALUES):
                continue
            if method in _READING or route.endswith(_READING_BATCHES):
                reads += durations.count
            else:
                writes += durations.count
        buckets = self._counters.durations[TEMPLATE, "GET"].buckets
        return _Totals(at, reads, writes, self._lookups["hit"], sum(self._lookups.values()), tuple(buckets))


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """The value below which ``part`` of the observations lie, evenly spread within a bucket; None without any.

    ``counts`` has one more than ``bounds``; what lies above the last bound counts as being at it.
    """
    wanted = part * sum(counts)
    if not wanted:
        return None
    below = 0
    for index, count in enumerate(counts[:-1]):
        if count and below + count >= wanted:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * (wanted - below) / count
        below += count
    return bounds[-1]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
