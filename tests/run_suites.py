"""Run every test suite in a process of its own and say how long each took.

A suite is a folder of ``tests/`` with test files in it. Its tests run in two processes: each has files, devices and
ports of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
SPREAD = ("-n", "2", "--dist", "worksteal")
"""A process that has no more tests takes some of the other's: a few are as long as dozens."""


def suites() -> list[Path]:
    return sorted(folder for folder in TESTS.iterdir() if folder.is_dir() and any(folder.rglob("test_*.py")))


def main() -> int:
    failed = []
    for folder in suites():
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", *SPREAD, str(folder)]
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
