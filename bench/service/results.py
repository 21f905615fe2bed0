"""What a run found, as JSON: the page and the plots are made of nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.service.checkpoints import Checkpoints
from bench.service.eviction import FullDevice
from bench.service.in_process import InProcess
from bench.service.limit import Limit
from bench.service.series import Measured
from bench.service.targets import Line, checkpoint_lines, restart_lines, service_lines
from bench.service.work import Figures


@dataclass(slots=True)
class Results:
    machine: dict[str, str]
    conditions: dict[str, Any]
    measured: dict[str, Measured] = field(default_factory=dict)
    checkpoints: Checkpoints | None = None
    restarts: list[dict[str, Any]] = field(default_factory=list)
    full_device: list[FullDevice] = field(default_factory=list)
    in_process: list[InProcess] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[Line]:
        """The table of targets, as far as this run has figures."""
        lines = service_lines(self.measured) + restart_lines(self.restarts)
        if self.checkpoints is not None:
            lines += checkpoint_lines(self.checkpoints)
        return sorted(lines, key=lambda line: line.row)

    def document(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "conditions": self.conditions,
            "targets": [_line_document(line) for line in self.lines()],
            "series": [_series_document(measured) for measured in self.measured.values()],
            "full_device": [_full_document(item) for item in self.full_device],
            "checkpoints": None if self.checkpoints is None else asdict(self.checkpoints),
            "restarts": self.restarts,
            "in_process": [asdict(item) for item in self.in_process],
            "generator_limit": [asdict(item) for item in self.limits],
            "problems": self.problems,
        }


def write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(document), indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def medians(runs: Iterable[Figures]) -> dict[str, float]:
    """Of each figure by itself."""
    runs = list(runs)
    names = [item.name for item in fields(Figures)]
    return {name: statistics.median(float(getattr(run, name)) for run in runs) for name in names}


def _line_document(line: Line) -> dict[str, Any]:
    return {**asdict(line), "median": line.median, "verdict": line.verdict}


def _series_document(measured: Measured) -> dict[str, Any]:
    series = measured.series
    return {
        "name": series.name,
        "title": series.work.name,
        "operation": series.work.operation,
        "size": series.work.size,
        "connections": series.work.connections,
        "values": series.work.values,
        "contenders": {
            name: {"median": medians(runs), "rates": [run.rate for run in runs]}
            for name, runs in measured.figures.items()
        },
    }


def _full_document(item: FullDevice) -> dict[str, Any]:
    rates = {name: [run.rate for run in getattr(item, name)] for name in ("with_room", "full")}
    ratios = [full / room for full, room in zip(rates["full"], rates["with_room"], strict=True)]
    return {
        "size": item.size,
        "evicted": item.evicted,
        "ratios": ratios,
        "with_room": medians(item.with_room),
        "full": medians(item.full),
    }


def _rounded(value: Any) -> Any:
    """Five digits say all that such figures know."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
