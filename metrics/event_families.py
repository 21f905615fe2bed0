"""Families about the event stream."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from metrics.families import counters, gauge
from storage.events import EventFeed


def event_families(events: EventFeed) -> Iterator[Metric]:
    yield gauge("event_subscribers", "Clients that follow the event stream.", events.subscribers)
    yield counters("events", "Durable changes told to whoever follows.", "type", events.counts)
    yield counters(
        "event_resyncs", "Clients told that they missed events and must start over, by why.", "reason", events.resyncs
    )
