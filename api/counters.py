"""Counts and times of HTTP requests, for the metrics.

Routes are templates of a closed set and methods are of a closed set, so that no key and no client can become
a label; codes appear as they are first seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

OTHER = "other"
"""Route of requests that match none, and method of those that are no common one."""

METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "POST", "PROPFIND", "MKCOL", OTHER)

CLIENT_GONE = 499
"""Code of requests whose client left, or was cut off, before it had the whole answer. It's never sent."""

DURATION_BOUNDS_SECONDS = (
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds (inclusive) of the buckets; a last one without a bound follows. A small read takes 100–300 µs."""


class Histogram:
    """Durations in seconds: ``buckets[i]`` counts those up to ``bounds[i]`` alone (not cumulative)."""

    __slots__ = ("bounds", "buckets", "count", "sum_seconds")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BOUNDS_SECONDS) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.count += 1
        self.sum_seconds += seconds


class HttpCounters:
    """``requests[route, method, code]`` and ``durations[route, method]``."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}
        self.durations: dict[tuple[str, str], Histogram] = {}
        self._routes: set[str] = set()
        self.declare(OTHER, (OTHER,))

    def declare(self, route: str, methods: Iterable[str]) -> None:
        """Make a route known, with the histograms of its own methods at 0 from the start."""
        self._routes.add(route)
        for method in methods:
            self.durations.setdefault((route, method), Histogram())

    def record(self, route: str, method: str, code: int, seconds: float) -> None:
        """Count one request. An undeclared route counts as ``other``, a rare method too."""
        label = (route, method, code)
        count = self.requests.get(label)
        if count is not None:  # nearly always: seen before, and so declared
            self.requests[label] = count + 1
            self.durations[route, method].observe(seconds)
            return
        if route not in self._routes:
            route = OTHER
        if method not in METHODS:
            method = OTHER
        histogram = self.durations.get((route, method))
        if histogram is None:
            histogram = self.durations[route, method] = Histogram()
        histogram.observe(seconds)
        label = (route, method, code)
        self.requests[label] = self.requests.get(label, 0) + 1
