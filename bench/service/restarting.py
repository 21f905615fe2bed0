"""Starts with many entries: ``bench.restart`` in a process of its own, so that memory is that of a fresh process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.service.measuring import say
from bench.service.processes import ServerFailed

TIMEOUT_SECONDS = 900.0


def understood(text: str) -> dict[str, Any]:
    """The last line of what ``bench.restart`` wrote. Raises ``ServerFailed``."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (ValueError, IndexError) as error:
        raise ServerFailed(f"bench.restart wrote no figures: {text[-300:]!r}") from error
    return found


def measure_restart(folder: Path, tree: Path, entries: int, runs: int) -> dict[str, Any]:
    """Raises ``ServerFailed``."""
    began = time.monotonic()
    path = folder / "restart.device"
    words = [sys.executable, "-m", "bench.restart", "--entries", str(entries), "--runs", str(runs)]
    try:
        text = _output([*words, "--path", str(path)], tree)
    finally:
        path.unlink(missing_ok=True)
    say(f"restart with {entries:,} entries: {time.monotonic() - began:.0f} s")
    return understood(text)


def _output(words: list[str], tree: Path) -> str:
    """In a process group of its own, which ends as a whole: it starts daemons."""
    with subprocess.Popen(
        words,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            text, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ServerFailed(f"bench.restart did not end within {TIMEOUT_SECONDS:.0f} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise ServerFailed(f"bench.restart ended with {process.returncode}: {errors[-600:]}")
    return text
