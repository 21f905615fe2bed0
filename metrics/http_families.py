"""Families about HTTP requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from metrics.families import add_durations, histogram, labelled_counters
from metrics.sources import HttpCounts


def http_families(http: HttpCounts) -> Iterator[Metric]:
    yield labelled_counters(
        "http_requests",
        "Requests by route, method and status; 499 where the client left before the end.",
        ["route", "method", "code"],
        (((route, method, str(code)), count) for (route, method, code), count in http.requests.items()),
    )
    durations = histogram(
        "http_request_duration_seconds", "From the head to the end of the answer.", ["route", "method"]
    )
    for labels, source in http.durations.items():
        add_durations(durations, labels, source.bounds, source.buckets, source.sum_seconds)
    yield durations
