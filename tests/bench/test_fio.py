"""What fio reports, and what it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.service.fio import Fio, FioFailed, understood
from bench.service.work import Work

NOTHING = {"total_ios": 0, "iops": 0.0, "bw_bytes": 0, "clat_ns": {"N": 0}}


def side(iops: float, size: int, p50: int, p99: int) -> dict[str, Any]:
    percentiles = {"50.000000": p50, "99.000000": p99}
    return {
        "total_ios": int(iops),
        "iops": iops,
        "bw_bytes": int(iops * size),
        "clat_ns": {"N": int(iops), "percentile": percentiles},
    }


def report(read: dict[str, Any], write: dict[str, Any], error: int = 0) -> str:
    return json.dumps({"fio version": "fio-3.33", "jobs": [{"error": error, "read": read, "write": write}]})


def test_reads() -> None:
    figures = understood(report(side(80_000.5, 4096, 380_000, 900_000), NOTHING))
    assert (figures.rate, figures.values_per_second) == (80_000.5, 80_000.5)
    assert figures.bytes_per_second == int(80_000.5 * 4096)
    assert (figures.p50_microseconds, figures.p99_microseconds) == (380.0, 900.0)


def test_reads_and_writes_are_added_and_latency_is_of_the_more() -> None:
    figures = understood("note: something\n" + report(side(800, 10, 1000, 2000), side(200, 10, 9000, 9000)))
    assert (figures.rate, figures.bytes_per_second, figures.p50_microseconds) == (1000, 10_000, 1.0)


@pytest.mark.parametrize("text", ["", "{", "{}", report(NOTHING, NOTHING)[:-3], json.dumps({"jobs": []})])
def test_what_is_no_report(text: str) -> None:
    with pytest.raises(FioFailed, match="not understood"):
        understood(text)


def test_an_error_of_fio() -> None:
    with pytest.raises(FioFailed, match="error 5"):
        understood(report(side(1, 1, 1, 1), NOTHING, error=5))


@pytest.mark.parametrize(
    ("work", "kind", "depth", "file"),
    [
        (Work("get", 4096, 8), "randread", 8, "served"),
        (Work("put", 4096, 8), "randwrite", 8, "twin"),
        (Work("mixed", 4096), "randrw", 32, "twin"),
        (Work("mget", 4096, 4, values=64), "randread", 32, "served"),
        (Work("mput", 4096, 4, values=64), "randwrite", 32, "twin"),
    ],
)
def test_same_size_and_depth_and_no_write_to_the_served_file(work: Work, kind: str, depth: int, file: str) -> None:
    words = Fio(Path("served"), Path("twin"), huge_pages=True).command(work, 1.0)
    wanted = {f"--rw={kind}", "--bs=4096", f"--iodepth={depth}", f"--filename={file}", "--iomem=shmhuge", "--direct=1"}
    assert wanted <= set(words)
