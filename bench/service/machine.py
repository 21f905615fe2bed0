"""Where and when: absolute figures mean nothing without it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def describe(folder: Path) -> dict[str, str]:
    """In words, without names of hosts or paths."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / (1 << 30):.0f} GiB",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "disk": _disk(folder),
        "versions": ", ".join(filter(None, map(_version, ("fio", "nginx", "redis-server", "memcached")))),
    }


def busy() -> float:
    """Processes that wanted to run in the last minute, in the mean."""
    return os.getloadavg()[0]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(folder: Path) -> str:
    words = ["findmnt", "--noheadings", "--output", "FSTYPE,SOURCE", "--target", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    kind, _, source = done.stdout.strip().partition(" ")
    name = Path(source.strip()).name
    model = Path(f"/sys/block/{name}/device/model")
    label = model.read_text().strip() if model.exists() else name
    return f"{kind} on {label}" if kind else "unknown"


def _version(package: str) -> str:
    words = ["dpkg-query", "--show", "--showformat=${Version}", package]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    version = done.stdout.strip().partition(":")[2] or done.stdout.strip()
    return f"{package} {version}" if version else ""
