"""The table of targets: ratios of one run that the service is to reach, and those it is after."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.service.checkpoints import Checkpoints
from bench.service.series import FIO, OURS, Measured
from bench.service.units import amount

TITLES = {
    1: "GET and PUT 1 MiB and 4 MiB against fio",
    2: "GET and PUT 64 KiB against fio",
    3: "GET 4 KiB from the device against bare ASGI on uvicorn returning a constant",
    4: "GET and PUT 4 KiB against FastAPI + diskcache",
    5: "`:mget` of 64 × 4 KiB, 4 connections, values/s against fio 4 KiB QD 32",
    6: "GET against nginx directio, one worker",
    7: "PUT against nginx WebDAV, one worker",
    8: "PUT against redis everysec",
    9: "Restart: rows to ready",
    10: "Memory per entry",
    11: "p99 of 4 KiB GET during a checkpoint of many entries against without",
    12: "Checkpoint bytes with 1 % of the pages changed against a full one",
    13: "PUT 64 KiB: durability `journal` against `none`",
    14: "One client, p50 of 4 KiB GET against bare ASGI + `run_in_executor`",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two contenders of a series."""

    row: int
    what: str
    series: str
    other: str
    at_least: float
    after: float
    value: str = "rate"
    lower_is_better: bool = False


TARGETS = (
    Target(1, "GET 1 MiB", "get-1m", FIO, 0.55, 0.90, "bytes_per_second"),
    Target(1, "PUT 1 MiB", "put-1m", FIO, 0.55, 0.90, "bytes_per_second"),
    Target(1, "GET 4 MiB", "get-4m", FIO, 0.55, 0.90, "bytes_per_second"),
    Target(1, "PUT 4 MiB", "put-4m", FIO, 0.55, 0.90, "bytes_per_second"),
    Target(2, "GET 64 KiB", "get-64k", FIO, 0.35, 0.60, "bytes_per_second"),
    Target(2, "PUT 64 KiB", "put-64k", FIO, 0.35, 0.60, "bytes_per_second"),
    Target(3, "GET 4 KiB", "get-4k", "asgi", 0.8, 1.3),
    Target(4, "GET 4 KiB", "get-4k", "diskcache", 10, 15),
    Target(4, "PUT 4 KiB", "put-4k", "diskcache", 15, 30),
    Target(5, "`:mget`", "mget-4k", FIO, 0.65, 0.90, "values_per_second"),
    Target(6, "GET 4 KiB", "get-4k", "nginx", 0.6, 1.0),
    Target(6, "GET 64 KiB", "get-64k", "nginx", 0.5, 1.0),
    Target(6, "GET 1 MiB", "get-1m", "nginx", 1.0, 2.0, "bytes_per_second"),
    Target(7, "PUT 4 KiB", "put-4k", "nginx", 5, 8),
    Target(7, "PUT 64 KiB", "put-64k", "nginx", 3.5, 6),
    Target(7, "PUT 1 MiB", "put-1m", "nginx", 3.5, 6, "bytes_per_second"),
    Target(8, "PUT 64 KiB", "put-64k", "redis", 1.5, 3),
    Target(8, "PUT 1 MiB", "put-1m", "redis", 4, 8, "bytes_per_second"),
    Target(13, "PUT 64 KiB", "put-64k", f"{OURS}?none", 0.80, 0.90),
    Target(14, "GET 4 KiB", "one-client", "executor", 0.6, 0.45, "p50_microseconds", lower_is_better=True),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. ``ours`` and ``theirs`` are absolute figures in words."""

    row: int
    what: str
    by_repetition: list[float]
    at_least: float
    after: float | None
    lower_is_better: bool
    ours: str
    theirs: str
    unit: str = ""
    """Of the figures and targets; empty: they are ratios."""

    @property
    def median(self) -> float:
        return statistics.median(self.by_repetition)

    @property
    def verdict(self) -> str:
        return verdict(self.median, self.at_least, self.after, lower_is_better=self.lower_is_better)


def verdict(figure: float, at_least: float, after: float | None, *, lower_is_better: bool) -> str:
    """In plain words."""

    def reaches(target: float) -> bool:
        return figure <= target if lower_is_better else figure >= target

    if not reaches(at_least):
        share = at_least / figure if lower_is_better else figure / at_least
        return f"below: {share:.0%} of the way"
    if after is None or not reaches(after):
        return "reached"
    return "reached, and what we were after"


def service_lines(measured: Mapping[str, Measured]) -> list[Line]:
    """Those of the targets whose series were measured."""
    lines = []
    for target in TARGETS:
        series = measured.get(target.series)
        if series is None or target.other not in series.figures:
            continue
        lines.append(
            Line(
                row=target.row,
                what=target.what,
                by_repetition=series.ratios(OURS, target.other, target.value),
                at_least=target.at_least,
                after=target.after,
                lower_is_better=target.lower_is_better,
                ours=_middle(series, OURS, target.value),
                theirs=_middle(series, target.other, target.value),
            )
        )
    return lines


def _middle(series: Measured, contender: str, value: str) -> str:
    return amount(value, statistics.median(float(getattr(run, value)) for run in series.figures[contender]))


def checkpoint_lines(found: Checkpoints) -> list[Line]:
    slower = [
        during / without
        for during, without in zip(found.p99_during_microseconds, found.p99_without_microseconds, strict=True)
    ]
    full = statistics.median(found.full_bytes)
    small = [size / full for size in found.small_bytes]
    written = [amount("bytes", size) for size in (statistics.median(found.small_bytes), full)]
    during, without = (
        amount("p99_microseconds", statistics.median(figures))
        for figures in (found.p99_during_microseconds, found.p99_without_microseconds)
    )
    entries = f"{found.entries:,} entries"
    return [
        Line(11, entries, slower, 1.5, 1.2, True, during, without),
        Line(12, entries, small, 0.02, None, True, *written),
    ]


def restart_lines(found: Iterable[Mapping[str, Any]]) -> list[Line]:
    """``bench.restart`` repeats by itself and reports medians."""
    lines = []
    for figures in found:
        entries = int(figures["entries"])
        what = f"{entries:,} entries"
        if rate := figures.get("rows_per_second"):
            millions = float(rate) / 1e6
            lines.append(Line(9, what, [millions], 3.0, 5.0, False, f"{millions:.2f} M rows/s", "–", "M rows/s"))
        if (ready := figures.get("ready_seconds")) and entries >= 10_000_000:
            shown = f"{float(ready):.2f} s"
            lines.append(Line(9, f"{what}, process start to ready", [float(ready)], 5.0, None, True, shown, "–", "s"))
        if (each := figures.get("bytes_per_entry")) and entries >= 10_000_000:
            shown = f"{float(each):.0f} B"
            lines.append(Line(10, what, [float(each)], 96.0, 80.0, True, shown, "–", "B"))
    return lines


def missing_rows(lines: Sequence[Line], wanted: Iterable[int]) -> list[int]:
    """Rows of the table that this run has no figure for."""
    return sorted(set(wanted) - {line.row for line in lines})
