"""Running the program's commands as a user does, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.daemon_process import clean_environment

TIMEOUT_SECONDS = 110
"""Less than a test has."""


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``rawblockd ARGUMENTS`` with such variables, and no setting of whoever runs the tests."""
    return subprocess.run(
        [sys.executable, "-m", "rawblockd", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        env=clean_environment(**({"COLUMNS": "120"} | environment)),
    )
