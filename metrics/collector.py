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
from metrics.event_families import event_families
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
        for _, families in self.sections():
            yield from families

    def sections(self) -> Iterator[tuple[str, Iterator[Metric]]]:
        """(title in docs/metrics.md, families), all from one picture."""
        status = self._sources.engine.status()
        counts = self._sources.engine.counters
        yield "State", state_families(status, self._sources.started_at)
        yield "Recovery", recovery_families(status)
        yield "Checkpoints and journal", checkpoint_families(status, counts)
        yield "Capacity", capacity_families(status)
        yield "Reads, puts, deletes, evictions", request_families(counts)
        yield "Verification", verification_families(status)
        yield "Device", io_families(self._sources.io)
        yield "Events", event_families(self._sources.engine.events)
        yield "HTTP", http_families(self._sources.http)


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
