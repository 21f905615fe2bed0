"""Run every test suite in a process of its own and say how long each took.

A suite is a folder of ``tests/`` with test files in it. Its tests run in two processes, except in the suites
that measure time or inject faults into the machine itself.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
ONE_PROCESS = {"crash"}
"""Suites whose tests would disturb each other."""


def suites() -> list[Path]:
    return sorted(folder for folder in TESTS.iterdir() if folder.is_dir() and any(folder.rglob("test_*.py")))


def main() -> int:
    failed = []
    for folder in suites():
        spread = [] if folder.name in ONE_PROCESS else ["-n", "2"]
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", *spread, str(folder)]
        result = subprocess.run(command, cwd=TESTS.parent, check=False)
        sys.stdout.write(f"suite {folder.name}: {time.monotonic() - began:.1f} s\n")
        sys.stdout.flush()
        if result.returncode != 0:
            failed.append(folder.name)
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
