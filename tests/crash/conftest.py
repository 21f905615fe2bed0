"""Small devices for tests of crashes that ask for them; what tests tell is printed at the end of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.engines import short_journal
from tests.support.simulated_device import cut_all

TOLD = "told"


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say what came of a test; it is printed whichever process the test runs in."""
    return lambda text: record_property(TOLD, text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                for name, text in report.user_properties:
                    if name == TOLD:
                        terminalreporter.write_line(str(text))


@pytest.fixture
async def small_devices() -> AsyncIterator[None]:
    """Journals of 64 blocks; whatever a test leaves waiting is ended."""
    with short_journal(64, reserve=8):
        yield
        cut_all()
