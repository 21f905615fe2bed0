"""Another process that opens a device: it holds it, or says why it was refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import sys
from storage.device.opening import open_device
from storage.errors import DeviceRefused
try:
    device = open_device(sys.argv[1], write=True, io_engine="threads")
except DeviceRefused as error:
    print(error.code, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
    device.close()
"""


@contextmanager
def held_elsewhere(path: Path | str) -> Iterator[None]:
    """The device is open for writing in another process meanwhile."""
    with _opener(path) as (process, answer):
        assert answer == "held"
        assert process.poll() is None
        yield


def opening_elsewhere(path: Path | str) -> str:
    """What another process gets that opens the device for writing: "held", or the code of the refusal."""
    with _opener(path) as (_, answer):
        return answer


@contextmanager
def _opener(path: Path | str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, os.fspath(path)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait(timeout=30) == 0
