"""A pytest plugin: how long each suite's tests took, set-up and clean-up included, summed over the processes."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

_seconds: defaultdict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    suite = report.nodeid.split("/")[1]
    _seconds[suite] += report.duration
    _tests[suite] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _seconds:
        terminalreporter.write_line("")
    for suite, seconds in sorted(_seconds.items()):
        terminalreporter.write_line(f"suite {suite}: {_tests[suite]} tests, {seconds:.0f} s of work")
