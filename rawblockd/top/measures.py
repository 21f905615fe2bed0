"""From two scrapes of ``/metrics`` to what happened between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

VALUES_ROUTE = "/v1/kv/{namespace}/{key}"
OPERATIONS = ("read", "write", "flush")

_LINE = re.compile(r"(rawblockd_[a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One scrape: name and labels, sorted → number. ``at`` in seconds of any clock."""

    at: float
    values: dict[tuple[str, Labels], float]

    @classmethod
    def parse(cls, text: str, at: float) -> Sample:
        values = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            if match is not None:
                labels = tuple(sorted((found[1], found[2]) for found in _LABEL.finditer(match[2] or "")))
                values[match[1], labels] = float(match[3])
        return cls(at, values)

    def sum(self, name: str, **labels: str) -> float:
        """The sum over all series of ``rawblockd_``name that have these labels, perhaps with others."""
        wanted = set(labels.items())
        return sum(n for (other, own), n in self.values.items() if other == f"rawblockd_{name}" and wanted <= set(own))

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Upper bound → cumulative count of a histogram's one series."""
        wanted = set(labels.items())
        found = {}
        for (other, own), number in self.values.items():
            if other == f"rawblockd_{name}_bucket" and wanted <= set(own):
                found[float(dict(own)["le"])] = number
        return found


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds; None where nothing happened."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second. None: not known yet, or nothing happened that it could be of."""

    gets: float | None = None
    puts: float | None = None
    deletes: float | None = None
    refused: float | None = None
    evicted: float | None = None
    hit_ratio: float | None = None
    get_latency: Latency = Latency()
    put_latency: Latency = Latency()
    io_operations: dict[str, float] = field(default_factory=dict)
    io_bytes: dict[str, float] = field(default_factory=dict)
    io_latency: dict[str, Latency] = field(default_factory=dict)


def rates_between(before: Sample | None, after: Sample) -> Rates:
    """Nothing is known of the time before the first scrape, and of that before a restart."""
    if before is None or after.at <= before.at or _restarted(before, after):
        return Rates()
    seconds = after.at - before.at

    def grown(name: str, **labels: str) -> float:
        return max(0.0, after.sum(name, **labels) - before.sum(name, **labels))

    def latency(name: str, **labels: str) -> Latency:
        old = before.buckets(name, **labels)
        return quantiles({le: n - old.get(le, 0.0) for le, n in after.buckets(name, **labels).items()})

    lookups = grown("lookups_total")
    http = "http_request_duration_seconds"
    return Rates(
        gets=lookups / seconds,
        puts=(grown("puts_total", result="created") + grown("puts_total", result="replaced")) / seconds,
        deletes=grown("deletes_total", result="deleted") / seconds,
        refused=(grown("puts_total", result="refused") + grown("puts_total", result="failed")) / seconds,
        evicted=grown("evictions_total") / seconds,
        hit_ratio=grown("lookups_total", result="hit") / lookups if lookups else None,
        get_latency=latency(http, route=VALUES_ROUTE, method="GET"),
        put_latency=latency(http, route=VALUES_ROUTE, method="PUT"),
        io_operations={op: grown("io_operations_total", op=op) / seconds for op in OPERATIONS},
        io_bytes={op: grown("io_bytes_total", op=op) / seconds for op in OPERATIONS},
        io_latency={op: latency("io_duration_seconds", op=op) for op in OPERATIONS},
    )


def _restarted(before: Sample, after: Sample) -> bool:
    """A counter never falls but by a new start."""
    return any(
        number < before.values.get(key, 0.0) for key, number in after.values.items() if key[0].endswith("_total")
    )


def quantiles(cumulative: dict[float, float]) -> Latency:
    """Median and 99th percentile, between the bounds as Prometheus does it; the last bound for what lies above it."""
    bounds = sorted(cumulative)
    total = cumulative[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return Latency()
    return Latency(_quantile(0.5 * total, bounds, cumulative), _quantile(0.99 * total, bounds, cumulative))


def _quantile(rank: float, bounds: list[float], cumulative: dict[float, float]) -> float:
    low, below = 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (count - below) if count > below else bound
        low, below = bound, count
    return low
