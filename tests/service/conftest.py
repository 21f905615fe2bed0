"""What the Dockerfile installs, installed once for all tests of a run that start from it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service import dockerfile

FREE_BYTES = 1 << 30


@pytest.fixture(scope="session")
def installed(testrun_uid: str) -> Iterator[Path]:
    """The folder that is ``/opt/rawblockd`` in the image. Other users can read it; the tests' own folders they can't.

    Test processes share it: the first one builds, the last one removes.
    """
    root = _place() / f"rawblockd-image-{testrun_uid}"
    with _alone(root):
        users = root / "users"
        if not users.exists():
            dockerfile.build(root)
            users.touch()
        users.write_text(f"{users.read_text()}{os.getpid()}\n")
    try:
        yield root / "opt"
    finally:
        with _alone(root):
            left = [line for line in users.read_text().split() if line != str(os.getpid())]
            users.write_text("".join(f"{line}\n" for line in left))
            if not left:
                shutil.rmtree(root)
                root.with_suffix(".lock").unlink()


def _place() -> Path:
    """In memory where there is room: an installation is thousands of small files, and they go again."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize > FREE_BYTES and not found.f_flag & os.ST_NOEXEC:
            return memory
    return Path(tempfile.gettempdir())


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One process at a time, in a folder that exists."""
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root.mkdir(mode=0o755, exist_ok=True)
        yield
