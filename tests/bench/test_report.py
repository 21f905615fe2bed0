"""The page is made of the JSON, and what people write in it stays."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from bench.service import plots, report, results
from bench.service.checkpoints import Checkpoints
from bench.service.eviction import FullDevice
from bench.service.in_process import InProcess
from bench.service.limit import Limit
from bench.service.results import Results
from bench.service.series import FIO, Measured, all_series
from bench.service.work import Figures

MACHINE = ("date", "processor", "memory", "kernel", "python", "disk", "versions")
RUNS = 3


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """Of a run in which the daemon is as fast as everybody else; only reads of 4 KiB are slow."""
    conditions = {"runs": RUNS, "seconds": 1.0, "load_average": 0.1, "network": "a wire", "huge_pages": True}
    found = Results({name: name for name in MACHINE}, conditions)
    for series in all_series():
        whole = series.with_extra()
        figures = {name: [Figures(1000, 1000, 1e9, 100, 900)] * RUNS for name in whole.contenders}
        if series.name == "get-4k":
            figures["rawblockd"] = [Figures(10, 10, 1e4, 100, 900)] * RUNS
        figures[FIO] = figures[FIO] + figures[FIO][:1]
        found.measured[series.name] = Measured(whole, figures)
    found.checkpoints = Checkpoints(1_000_000, [1.0], [1.2], [9], [0.4], [1 << 26], [1 << 20], [0.01])
    found.restarts = [{"entries": 10_000_000, "recovery_seconds": 2.0, "rows_per_second": 5e6, "ready_seconds": 3.0}]
    figures_full = [Figures(500, 500, 5e8, 100, 900)]
    found.full_device = [FullDevice(4096, figures_full * 2, figures_full * 2, 77)]
    found.in_process = [InProcess("lmdb", 4096, [1.0, 2.0, 3.0], [5.0]), InProcess("lmcache", 4096, [], [], "no wheel")]
    found.limits = [Limit("get", 4096, 97_000)]
    path = tmp_path / "performance.json"
    results.write(path, found.document())
    return results.read(path)


def test_the_page_has_a_place_for_each_table_and_keeps_what_people_wrote(document: dict[str, Any]) -> None:
    page = report.PAGE.read_text()
    filled = report.filled(page, document)
    assert report.filled(filled, document) == filled
    for name in report.BLOCKS:
        before, mark = page.partition(f"<!-- {name} -->")[:2]
        assert mark
        assert before.rpartition("-->")[2] in filled
    assert page.rpartition("-->")[2] == filled.rpartition("-->")[2]


def test_a_page_without_a_place_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no place for"):
        report.filled("a page", document)


def test_where_it_loses_it_says_so(document: dict[str, Any]) -> None:
    text = "\n".join(report.verdict(document))
    assert "**Below**, row 3, GET 4 KiB from the device" in text
    assert "0.010 of 0.8" in text
    assert "Not measured in this run: rows 10." in text
    table = "\n".join(report.targets(document))
    assert "below: 1% of the way" in table
    assert "reached, and what we were after" in table
    assert "no wheel" in "\n".join(report.libraries(document))


def test_problems_are_told(document: dict[str, Any]) -> None:
    document["problems"] = ["get-4m: nobody answered"]
    assert "- Failed: get-4m: nobody answered" in report.verdict(document)


def test_all_tables_have_as_many_cells_as_heads(document: dict[str, Any]) -> None:
    for name, block in report.BLOCKS.items():
        rows = [line for line in block(document) if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1, name


def test_plots_are_whole_and_follow_the_scheme_of_the_reader(document: dict[str, Any], tmp_path: Path) -> None:
    plots.write_all(tmp_path, document)
    names = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert names == ["performance-get.svg", "performance-put.svg", "performance-targets.svg"]
    for name in names:
        text = (tmp_path / name).read_text()
        ElementTree.fromstring(text)
        assert "prefers-color-scheme: dark" in text
        assert "NaN" not in text


def test_plots_of_a_run_without_these_series(document: dict[str, Any], tmp_path: Path) -> None:
    plots.write_all(tmp_path, document | {"series": [], "targets": []})
    assert "not measured" in (tmp_path / "performance-get.svg").read_text()


def test_figures_are_rounded_to_what_they_know(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    assert "97000" in text
    assert all(len(word) < 12 for word in text.split() if word.replace(".", "").isdigit())
