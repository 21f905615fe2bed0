"""Small makers of metric families: the prefix, labels from mappings, histograms from plain buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

PREFIX = "rawblockd_"


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def labelled_gauges(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, number in values:
        family.add_metric(label_values, number)
    return family


def counter(name: str, text: str, value: int) -> CounterMetricFamily:
    """``name`` without ``_total``: the library appends it."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    """As ``counter``, one for each value of one label."""
    return labelled_counters(name, text, [label], (((value,), number) for value, number in values.items()))


def labelled_counters(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, number in values:
        family.add_metric(label_values, number)
    return family


def histogram(name: str, text: str, labels: Sequence[str] = ()) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, text, labels=labels)


def add_durations(
    family: HistogramMetricFamily,
    label_values: Sequence[str],
    bounds: Sequence[float],
    counts: Sequence[int],
    sum_seconds: float,
) -> None:
    """Add one series. ``counts`` are per bucket; Prometheus wants them cumulative and with +Inf."""
    buckets = []
    total = 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
    family.add_metric(label_values, buckets, sum_seconds)
