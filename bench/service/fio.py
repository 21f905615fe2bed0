"""fio: what the device gives to whoever asks it directly, with the same size and depth."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.service.work import READS_PERCENT, Figures, Work

RAMP_SECONDS = 0.3
TIMEOUT_SECONDS = 120.0
ATTEMPTS = 2
"""On a disk that others use, fio now and then waits for minutes."""


class FioFailed(Exception):
    pass


def understood(text: str) -> Figures:
    """The figures in fio's JSON. Raises ``FioFailed``."""
    # fio writes notes in front of the JSON, for instance when a file is laid out.
    begin = text.find("{")
    try:
        jobs: list[dict[str, Any]] = json.loads(text[begin:])["jobs"]
        job = jobs[0]
        if job["error"]:
            raise FioFailed(f"fio reports error {job['error']}")
        sides = [side for side in (job["read"], job["write"]) if side["total_ios"]]
        busiest = max(sides, key=lambda side: float(side["iops"]))
        percentiles = busiest["clat_ns"]["percentile"]
        rate = sum(float(side["iops"]) for side in sides)
        transferred = sum(float(side["bw_bytes"]) for side in sides)
        p50, p99 = (float(percentiles[key]) / 1e3 for key in ("50.000000", "99.000000"))
    except (ValueError, KeyError, IndexError) as error:
        raise FioFailed(f"fio's report is not understood ({error!r}): {text[:200]!r}") from error
    return Figures(rate, rate, transferred, p50, p99)


class Fio:
    """Reads go to the very file that the daemon serves, which they leave as it is; writes go to its twin."""

    def __init__(self, served: Path, twin: Path, *, huge_pages: bool) -> None:
        self._served = served
        self._twin = twin
        self.huge_pages = huge_pages

    def command(self, work: Work, seconds: float) -> list[str]:
        kind = {"get": "randread", "mget": "randread", "mixed": "randrw"}.get(work.operation, "randwrite")
        path = self._served if kind == "randread" else self._twin
        depth = 32 if work.values > 1 else work.connections
        words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "fio",
            "--name=device",
            f"--filename={path}",
            f"--rw={kind}",
            f"--bs={work.size}",
        ]
        words += [f"--iodepth={depth}", "--ioengine=libaio", "--direct=1", "--numjobs=1", "--thread", "--time_based"]
        words += [f"--runtime={seconds}", f"--ramp_time={RAMP_SECONDS}", "--norandommap", "--randrepeat=0"]
        if kind == "randrw":
            words.append(f"--rwmixread={READS_PERCENT}")
        if self.huge_pages:
            words.append("--iomem=shmhuge")
        return [*words, "--output-format=json"]

    def measure(self, work: Work, seconds: float) -> Figures:
        """Raises ``FioFailed``."""
        for _ in range(ATTEMPTS - 1):
            with suppress(FioFailed):
                return self._measure_once(work, seconds)
        return self._measure_once(work, seconds)

    def _measure_once(self, work: Work, seconds: float) -> Figures:
        limit = seconds + TIMEOUT_SECONDS
        try:
            done = subprocess.run(
                self.command(work, seconds), capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise FioFailed(f"fio did not end within {limit:.0f} s") from error
        if done.returncode:
            raise FioFailed(f"fio ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()[-300:]}")
        return understood(done.stdout)
