"""Ratios, medians and verdicts."""

from __future__ import annotations

import pytest

from bench.service.checkpoints import Checkpoints
from bench.service.series import FIO, OURS, Measured, all_series, chosen, variation
from bench.service.targets import (
    TARGETS,
    TITLES,
    checkpoint_lines,
    missing_rows,
    restart_lines,
    service_lines,
    verdict,
)
from bench.service.work import Figures, Work

SERIES = {series.name: series for series in all_series()}


def figures(rate: float, p50: float = 100.0) -> Figures:
    return Figures(rate, rate * 2, rate * 1000, p50, p50 * 3)


def measured(name: str, rates: dict[str, list[float]]) -> Measured:
    return Measured(SERIES[name], {who: [figures(rate) for rate in each] for who, each in rates.items()})


def test_fio_counts_right_before_and_right_after_each_turn() -> None:
    found = measured("get-64k", {FIO: [100, 300, 100, 500], OURS: [100, 100, 150], "nginx": [50, 100, 300]})
    assert found.ratios(OURS, FIO) == [0.5, 0.5, 0.5]
    assert found.ratios(OURS, FIO, "bytes_per_second") == [0.5, 0.5, 0.5]
    assert found.ratios(OURS, "nginx") == [2.0, 1.0, 0.5]


def test_what_counts_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    found = measured("get-64k", {FIO: [1000, 1000, 1000, 1000], OURS: [10, 20, 30], "nginx": [10, 2, 60]})
    lines = {(line.row, line.what): line for line in service_lines({"get-64k": found})}
    assert set(lines) == {(2, "GET 64 KiB"), (6, "GET 64 KiB")}
    against_nginx = lines[6, "GET 64 KiB"]
    assert against_nginx.by_repetition == [1.0, 10.0, 0.5]
    assert against_nginx.median == 1.0
    assert against_nginx.verdict == "reached, and what we were after"
    assert lines[2, "GET 64 KiB"].verdict == "below: 6% of the way"


def test_lower_is_better_for_latency() -> None:
    found = Measured(
        SERIES["one-client"],
        {OURS: [figures(1, 50), figures(1, 60)], "executor": [figures(1, 100), figures(1, 100)], FIO: []},
    )
    (line,) = service_lines({"one-client": found})
    assert (line.row, line.by_repetition) == (14, [0.5, 0.6])
    assert (line.median, line.verdict) == (0.55, "reached")
    assert (line.ours, line.theirs) == ("55 µs", "100 µs")


@pytest.mark.parametrize(
    ("figure", "lower", "words"),
    [
        (0.54, False, "below: 98% of the way"),
        (0.55, False, "reached"),
        (0.90, False, "reached, and what we were after"),
        (1.1, True, "below: 50% of the way"),
        (0.55, True, "reached, and what we were after"),
    ],
)
def test_verdicts(figure: float, lower: bool, words: str) -> None:
    assert verdict(figure, 0.55, 0.9, lower_is_better=lower) == words


def test_checkpoints() -> None:
    found = Checkpoints(10, [100, 100, 200], [150, 110, 600], [1, 1, 1], [1.0], [1000, 1000], [10, 30], [0.01])
    slower, small = checkpoint_lines(found)
    assert (slower.row, slower.by_repetition, slower.verdict) == (11, [1.5, 1.1, 3.0], "reached")
    assert (small.row, small.by_repetition, small.median, small.verdict) == (12, [0.01, 0.03], 0.02, "reached")


def test_starts() -> None:
    few = {"entries": 1_000_000, "recovery_seconds": 0.25, "rows_per_second": 4e6, "bytes_per_entry": 300.0}
    many = few | {"entries": 10_000_000, "ready_seconds": 6.0, "bytes_per_entry": 90.0}
    lines = restart_lines([few, many])
    assert [(line.row, line.median, line.verdict) for line in lines] == [
        (9, 4.0, "reached"),
        (9, 4.0, "reached"),
        (9, 6.0, "below: 83% of the way"),
        (10, 90.0, "reached"),
    ]


def test_each_row_has_a_series_that_the_quick_bench_runs() -> None:
    quick = {series.name: series for series in chosen(all_series(), [], [], full=False)}
    for target in TARGETS:
        assert target.row in quick[target.series].rows
        assert {OURS, target.other} <= set(quick[target.series].contenders)
    assert {target.row for target in TARGETS} | {9, 10, 11, 12} == set(TITLES)
    assert missing_rows([], [3, 1]) == [1, 3]


def test_choosing() -> None:
    def names(names: list[str], rows: list[int], *, full: bool = False) -> list[str]:
        return [series.name for series in chosen(all_series(), names, rows, full=full)]

    assert names(["get-4k"], []) == ["get-4k"]
    assert names(["get-4k*"], []) == ["get-4k", "get-4k-c1", "get-4k-c8"]
    assert names(["batch"], []) == ["mget-4k", "mput-4k", "mget-64k", "mput-64k"]
    assert names([], [14, 5]) == ["mget-4k", "one-client"]
    assert names(["nothing"], []) == []
    assert len(names([], [], full=True)) == len(SERIES) == len(all_series())
    (series,) = chosen(all_series(), ["put-64k"], [], full=True)
    assert {"memcached", "rawblockd?flush"} <= set(series.contenders)


def test_a_contender_may_name_a_level() -> None:
    assert variation("rawblockd?none", Work("put", 1)) == ("rawblockd", Work("put", 1, durability="none"))
    assert variation("nginx", Work("put", 1)) == ("nginx", Work("put", 1))
