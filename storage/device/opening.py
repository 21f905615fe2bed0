"""Opening a device: alone (D6), with O_DIRECT, with the I/O engine that works here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from typing import Final

from storage.buffers import aligned_buffer
from storage.device.file_device import FileDevice
from storage.device.io_engine import ENGINE_CHOICES
from storage.device.locking import DeviceLocks
from storage.device.probe import DeviceFacts, kind_of, probe_fd, refusal
from storage.device.threads import ThreadsEngine
from storage.device.uring import UringEngine, why_no_ring
from storage.errors import DeviceInUse, DeviceRefused, DirectIoRefused, SettingsInvalid

_log: Final = logging.getLogger(__name__)


def open_device(
    path: str | os.PathLike[str],
    *,
    write: bool,
    allow_buffered: bool = False,
    io_engine: str = "auto",
    exclusive: bool = True,
) -> FileDevice:
    """Open a block device or a regular file.

    ``exclusive`` takes the locks of ``locking``; without it nothing is locked and ``write`` isn't possible.
    ``allow_buffered`` accepts the page cache where O_DIRECT is refused (``direct_io`` of the device is False then).
    ``io_engine``: "uring" insists, "threads" avoids the ring, "auto" takes the ring where its self test passes.

    Raises DeviceMissing, DeviceInUse, DirectIoRefused, BlocksTooLarge, DeviceRefused (no permission, read-only, or a
    ring that was insisted on and can't be had), SettingsInvalid (unknown ``io_engine``). Nothing is written.
    """
    if write and not exclusive:
        raise ValueError("a device is only written by the one who holds it")
    if io_engine not in ENGINE_CHOICES:
        raise SettingsInvalid(f"io_engine is {io_engine!r}, not one of {', '.join(ENGINE_CHOICES)}")
    name = os.fspath(path)
    fd, direct_io = _open_fd(name, write=write, allow_buffered=allow_buffered, exclusive=exclusive)
    locks = DeviceLocks()
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        undo.callback(locks.release)
        if exclusive:
            locks.take(fd, name)
        facts = probe_fd(fd, name)
        if write and facts.read_only:
            raise DeviceRefused(f"{name} is read-only")
        if direct_io:
            direct_io = _direct_io_works(fd, facts, allow_buffered=allow_buffered)
            if not direct_io:
                _drop_direct(fd)
        engine = _choose_engine(fd, facts, io_engine)
        undo.pop_all()
    return FileDevice(fd, facts, direct_io=direct_io, writable=write, io_engine=engine, locks=locks)


def _open_fd(path: str, *, write: bool, allow_buffered: bool, exclusive: bool) -> tuple[int, bool]:
    """(descriptor, opened with O_DIRECT)."""
    before = kind_of(path)
    flags = os.O_RDWR if write else os.O_RDONLY
    if exclusive and stat.S_ISBLK(before.st_mode):
        # Without O_CREAT, O_EXCL on a block device is the kernel's exclusive claim; on a file it's undefined.
        flags |= os.O_EXCL
    try:
        try:
            fd, direct_io = os.open(path, flags | os.O_DIRECT), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            if not allow_buffered:
                raise _direct_refused(path) from error
            fd, direct_io = os.open(path, flags), False
    except OSError as error:
        raise refusal(path, error) from error
    after = os.fstat(fd)
    if (before.st_dev, before.st_ino, before.st_rdev) != (after.st_dev, after.st_ino, after.st_rdev):
        os.close(fd)
        raise DeviceInUse(f"{path} was replaced while it was opened")
    return fd, direct_io


def _direct_io_works(fd: int, facts: DeviceFacts, *, allow_buffered: bool) -> bool:
    """Whether O_DIRECT holds what the successful open promised. Raises DirectIoRefused if not and not allowed.

    Some file systems accept the flag and refuse the I/O, or quietly go through the page cache and say so by statx.
    """
    works = facts.direct_io_possible is not False
    length = facts.logical_block_bytes
    if works and facts.size_bytes >= length:
        try:
            os.preadv(fd, [aligned_buffer(length)], 0)
        except OSError as error:
            # Any other error is the device's: recovery deals with unreadable blocks.
            works = error.errno != errno.EINVAL
    if not works and not allow_buffered:
        raise _direct_refused(facts.path)
    return works


def _drop_direct(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)


def _direct_refused(path: str) -> DirectIoRefused:
    return DirectIoRefused(f"{path}: the file system refuses O_DIRECT")


def _choose_engine(fd: int, facts: DeviceFacts, wanted: str) -> str:
    if wanted == ThreadsEngine.name:
        return wanted
    reason = why_no_ring(fd, facts.size_bytes, facts.logical_block_bytes)
    if reason is None:
        return UringEngine.name
    if wanted == UringEngine.name:
        raise DeviceRefused(f"{facts.path}: io_uring was asked for, but {reason}")
    _log.info("io_uring is not used: %s", reason)
    return ThreadsEngine.name
