"""Run all test suites and say how long each took.

A suite is a folder of ``tests/`` with test files in it. The tests of all suites are shared out among half as many
processes again as the machine has cores, so that no core waits for the end of a suite, nor for what a test waits for;
each has files, devices and ports of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def suites() -> list[str]:
    """Folders with tests, the long ones first: what is left at the end is short."""
    folders = sorted(folder for folder in TESTS.iterdir() if folder.is_dir() and any(folder.rglob("test_*.py")))
    folders.sort(key=lambda folder: folder.name not in ("crash", "client", "service", "browser"))
    return [str(folder) for folder in folders]


def main() -> int:
    # More than cores: half of a test's time is waiting, for a daemon, for the device or for a time to pass.
    processes = str(max(2, os.cpu_count() or 2) * 3 // 2)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "tests.support.suite_times"]
    # A process that has no more tests takes some of the other's: a few are as long as dozens.
    command += ["-n", processes, "--dist", "worksteal", "--maxprocesses", processes, *suites()]
    # Compiled modules are kept: hundreds of daemons start, and compiling everything anew is half of a start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, cwd=TESTS.parent, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
