"""The tables of ``docs/metrics.md``: each exported family with type, labels, the values of closed sets, and meaning.

They are made from what the collector yields, so that no family can be missing. Label values are those that the sources
have: the page is made from sources that have each family at least once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from metrics.collector import RawblockdCollector
from metrics.sources import MetricsSources

OPEN_LABELS = {
    "code": "the status of HTTP",
    "direct_io": "`true` or `false`",
    "io_engine": "as in the status",
    "method": "the method, or `other`",
    "namespace": "name of the namespace",
    "route": "the template as in `/docs`, or `other`",
    "slot_bytes": "size of a slot of the class",
    "version": "as `rawblockd --version`",
}
"""Labels whose values are not listed one by one, and what they are."""

TABLE_HEAD = ["| metric | type | labels | meaning |", "|---|---|---|---|"]


def reference(sources: MetricsSources) -> str:
    """A section with a table for each part of the collector, and one for what is known of the process."""
    sections: list[tuple[str, Iterable[Metric]]] = [*RawblockdCollector(sources).sections()]
    sections.append(("Process", sorted(ProcessCollector(registry=None).collect(), key=lambda family: family.name)))
    lines: list[str] = []
    for title, families in sections:
        lines += [f"## {title}", "", *TABLE_HEAD, *(family_row(family) for family in families), ""]
    return "\n".join(lines).rstrip() + "\n"


def exported_name(family: Metric) -> str:
    """The name as it is queried; that of a histogram without ``_bucket``, ``_sum`` and ``_count``."""
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def family_row(family: Metric) -> str:
    labels = "<br>".join(label_texts(family))
    kind = "gauge" if family.type == "info" else family.type
    return f"| `{exported_name(family)}` | {kind} | {labels} | {family.documentation} |"


def label_texts(family: Metric) -> Iterator[str]:
    """``name``: its values, or what they are."""
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for name, value in sample.labels.items():
            if name == "le":
                continue  # that a histogram has bounds is no news
            values.setdefault(name, {})[value] = None
    for name, seen in values.items():
        text = OPEN_LABELS.get(name) or ", ".join(f"`{value}`" for value in seen)
        yield f"`{name}`: {text}"
