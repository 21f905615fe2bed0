"""What a PromQL expression names: metrics, label matchers, grouping labels. For our rules and queries, not for all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

QUOTED = r'"[^"]*"'
METRIC = re.compile(r"\b(?!rawblockd_client\b)(?:rawblockd|process)_[a-z0-9_]+")
"""``rawblockd_client`` is the package of the Python client."""
SELECTOR = re.compile(rf"\b((?:rawblockd|process)_[a-z0-9_]+)(\{{(?:[^{{}}\"]|{QUOTED})*\}})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Matcher:
    label: str
    operator: str
    value: str

    def matches(self, value: str) -> bool:
        found = re.fullmatch(self.value, value) is not None if "~" in self.operator else value == self.value
        return found != self.operator.startswith("!")


def metric_names(text: str) -> set[str]:
    """Every name of a metric of ours in a text, quoted strings of templates included."""
    return set(METRIC.findall(text))


def selectors(expression: str) -> Iterator[tuple[str, list[Matcher]]]:
    for name, braces in SELECTOR.findall(expression):
        yield name, [Matcher(*found) for found in MATCHER.findall(braces)]


def grouping_labels(expression: str) -> set[str]:
    return {label.strip() for group in GROUPING.findall(expression) for label in group.split(",") if label.strip()}
