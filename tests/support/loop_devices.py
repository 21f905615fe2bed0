"""Real devices for tests: files, loop devices over them, mounts, small full file systems.

Everything is taken down again, also when a test fails. Where the machine allows no loop devices or mounts, the test is
skipped with the reason.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20
_LOOP_CTL_ADD = 0x4C80
_LOOP_CTL_REMOVE = 0x4C81


def run(*command: str, stdin: str | None = None) -> str:
    """Run a tool and give its output; a failure shows the tool's words."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout.strip()


def zero_file(path: Path, size_bytes: int) -> Path:
    """A file whose blocks are allocated, as a cache's file is."""
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    return path


@contextmanager
def loop_device(
    backing: Path | str,
    sector_bytes: int = 512,
    *,
    direct_io: bool = True,
    read_only: bool = False,
) -> Iterator[str]:
    """A loop device over a file or device; yields its path."""
    _need_root("loop devices")
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("this machine has no loop devices")
    command = ["losetup", "--find", "--show", f"--sector-size={sector_bytes}"]
    command += [f"--direct-io={'on' if direct_io else 'off'}"]
    command += ["--read-only"] if read_only else []
    done = subprocess.run([*command, os.fspath(backing)], capture_output=True, text=True, check=False)
    if done.returncode != 0 and ("permitted" in done.stderr or "No such device" in done.stderr):
        pytest.skip(f"this machine lets no loop device be made: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    device = done.stdout.strip()
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


@contextmanager
def unused_loop_device() -> Iterator[str]:
    """A loop device that nothing is behind, with a number so high that nobody else is given it."""
    _need_root("loop devices")
    number = 10_000 + os.getpid() % 10_000
    try:
        control = os.open("/dev/loop-control", os.O_RDWR)
        fcntl.ioctl(control, _LOOP_CTL_ADD, number)
    except OSError as error:
        pytest.skip(f"this machine lets no loop device be made: {error.strerror}")
    try:
        yield f"/dev/loop{number}"
    finally:
        fcntl.ioctl(control, _LOOP_CTL_REMOVE, number)
        os.close(control)


@contextmanager
def mounted(source: str, place: Path, *options: str) -> Iterator[Path]:
    """Mount ``source`` (a device, or a directory with ``--bind``) at ``place``, which is made."""
    _need_root("mounts")
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, source, os.fspath(place)], capture_output=True, text=True, check=False)
    if done.returncode != 0 and "permission denied" in done.stderr:
        pytest.skip(f"this machine lets nothing be mounted: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    try:
        yield place
    finally:
        run("umount", os.fspath(place))


@contextmanager
def tmpfs(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory that is full after ``size_bytes``."""
    with mounted("tmpfs", place, "-t", "tmpfs", "-o", f"size={size_bytes}") as mounted_at:
        yield mounted_at


def _need_root(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"{what} need root")
