"""The files of a run: on one disk, fully written, and removed afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BLOCK_BYTES = 4 << 20
GIB = 1 << 30


class NoRoom(Exception):
    pass


def check_room(folder: Path, needed_bytes: int) -> None:
    """Raises ``NoRoom`` if the disk has less left."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise NoRoom(f"{folder} has {free / GIB:.1f} GiB free, the run needs {needed_bytes / GIB:.1f} GiB")


def write_whole(path: Path, size_bytes: int) -> None:
    """Make a file whose every block was written: blocks that are only allocated are slower to write the first time."""
    block = os.urandom(BLOCK_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        for offset in range(0, size_bytes, BLOCK_BYTES):
            os.pwrite(fd, block[: size_bytes - offset], offset)
        os.fsync(fd)
        # What this machine remembers of it must not help whoever reads it through the page cache.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
