"""The collector: every family from one picture of the engine per scrape, so that the numbers of a scrape agree."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from metrics.engine_families import (
    capacity_families,
    checkpoint_families,
    recovery_families,
    request_families,
    state_families,
    verification_families,
)
from metrics.http_families import http_families
from metrics.io_families import io_families
from metrics.sources import MetricsSources


class RawblockdCollector(Collector):
    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources

    def describe(self) -> list[Metric]:
        # Without this the registry would collect once at registration, before the engine has begun.
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._sources.engine.status()
        counts = self._sources.engine.counters
        yield from state_families(status)
        yield from recovery_families(status)
        yield from checkpoint_families(status, counts)
        yield from capacity_families(status)
        yield from request_families(counts)
        yield from verification_families(status)
        yield from io_families(self._sources.io)
        yield from http_families(self._sources.http)


class MetricsPage:
    """What ``/metrics`` answers, from a registry of its own: nothing that a library registers globally leaks in."""

    def __init__(self, sources: MetricsSources) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(RawblockdCollector(sources))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """The page and its content type, in the format that the Accept field of a scrape prefers."""
        encoder, content_type = choose_encoder(accept or "")
        return encoder(self._registry), content_type
