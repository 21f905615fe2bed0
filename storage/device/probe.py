"""What a path is: kind, size, block sizes, what it allows. Nothing is written and no lock is taken.

Sources of the numbers: ioctls of the block layer (``linux/fs.h``), ``fstat``, and ``statx`` with STATX_DIOALIGN
(Linux 6.1) for the alignment that O_DIRECT needs on a file.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from storage.errors import BlocksTooLarge, DeviceInUse, DeviceMissing, DeviceRefused

# linux/fs.h: _IO(0x12, n), and _IOR(0x12, 114, size_t) on 64-bit machines.
_BLKROGET: Final = 0x125E
_BLKSSZGET: Final = 0x1268
_BLKPBSZGET: Final = 0x127B
_BLKGETSIZE64: Final = 0x80081272

FALLBACK_BLOCK_BYTES: Final = 4096
"""Alignment taken for a file whose file system doesn't tell: enough for every device with 512 and 4096-byte sectors."""
SECTOR_MIN_BYTES: Final = 512
SECTOR_MAX_BYTES: Final = 4096
"""The superblock, which tells everything else, is read and written in blocks of this size."""

_AT_EMPTY_PATH: Final = 0x1000
_STATX_DIOALIGN: Final = 0x2000
_STATX_BYTES: Final = 256
_DIO_MEM_ALIGN_AT: Final = 0x98  # struct statx: stx_dio_mem_align, then stx_dio_offset_align, 32 bits each
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENAMETOOLONG})
_IN_USE: Final = frozenset({errno.EBUSY, errno.ETXTBSY})


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What was found. Sizes in bytes."""

    path: str
    is_block_device: bool
    size_bytes: int
    logical_block_bytes: int
    """Alignment that I/O needs: the logical sector, or what O_DIRECT wants on this file; at least 512."""
    physical_block_bytes: int
    """The unit the hardware writes at once; equals the logical block where unknown."""
    direct_io_possible: bool | None
    """None: the system doesn't say; opening with O_DIRECT tells."""
    read_only: bool
    """The block device refuses writes. Always False for files: opening them tells."""
    discard: bool
    """The block device can discard, or the file can be punched (which only a try can tell for sure)."""


def probe(path: str) -> DeviceFacts:
    """Look at the path. Raises DeviceMissing, BlocksTooLarge, DeviceRefused (no permission)."""
    kind_of(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise refusal(path, error) from error
    try:
        return probe_fd(fd, path)
    finally:
        os.close(fd)


def probe_fd(fd: int, path: str) -> DeviceFacts:
    """As ``probe``, on an open descriptor; ``path`` is for the report.

    Raises DeviceMissing for other kinds, BlocksTooLarge.
    """
    facts = _facts(fd, path)
    if facts.logical_block_bytes > SECTOR_MAX_BYTES:
        raise BlocksTooLarge(f"{path}: {facts.logical_block_bytes} bytes")
    return facts


def _facts(fd: int, path: str) -> DeviceFacts:
    found = os.fstat(fd)
    if stat.S_ISBLK(found.st_mode):
        return _probe_block(fd, path, found)
    if not stat.S_ISREG(found.st_mode):
        raise DeviceMissing(f"{path} is neither a block device nor a regular file")
    memory_align, offset_align = direct_io_alignment(fd)
    if offset_align is None:
        block, possible = FALLBACK_BLOCK_BYTES, None
    elif offset_align == 0:
        block, possible = FALLBACK_BLOCK_BYTES, False
    else:
        block, possible = max(offset_align, memory_align or 0, SECTOR_MIN_BYTES), True
    return DeviceFacts(path, False, found.st_size, block, block, possible, False, True)


def kind_of(path: str) -> os.stat_result:
    """Stat of the path if it is a block device or a regular file. Raises DeviceMissing otherwise.

    Asked before opening, because opening a FIFO waits and opening a tape or a terminal has effects.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise refusal(path, error) from error
    if not (stat.S_ISBLK(found.st_mode) or stat.S_ISREG(found.st_mode)):
        raise DeviceMissing(f"{path} is neither a block device nor a regular file")
    return found


@contextmanager
def own_descriptor(path: str) -> Iterator[int]:
    """A descriptor to look through, closed afterwards: locks of a holder, also our own, stay.

    Raises DeviceMissing, DeviceRefused when the path can't be opened.
    """
    kind_of(path)
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise refusal(path, error) from error
    try:
        # What O_DIRECT writers put there must not be hidden by older pages of the cache.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        yield fd
    finally:
        os.close(fd)


def refusal(path: str, error: OSError) -> DeviceRefused:
    """What it means that the path can't be opened."""
    if error.errno in _MISSING:
        return DeviceMissing(f"{path}: {error.strerror}")
    if error.errno in _IN_USE:
        return DeviceInUse(f"{path} is held by another process, mounted, or in use as swap: {error.strerror}")
    return DeviceRefused(f"{path}: {error.strerror}")


def direct_io_alignment(fd: int) -> tuple[int | None, int | None]:
    """(memory, offset) alignment for O_DIRECT by statx; (0, 0): not possible; (None, None): the system doesn't say."""
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except AttributeError:  # a C library without statx
        return None, None
    answer = (ctypes.c_char * _STATX_BYTES)()
    if statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer) != 0:
        return None, None
    raw = bytes(answer)
    if not int.from_bytes(raw[:4], sys.byteorder) & _STATX_DIOALIGN:
        return None, None
    memory = int.from_bytes(raw[_DIO_MEM_ALIGN_AT : _DIO_MEM_ALIGN_AT + 4], sys.byteorder)
    offset = int.from_bytes(raw[_DIO_MEM_ALIGN_AT + 4 : _DIO_MEM_ALIGN_AT + 8], sys.byteorder)
    return memory, offset


def _probe_block(fd: int, path: str, found: os.stat_result) -> DeviceFacts:
    try:
        size = _ioctl_int(fd, _BLKGETSIZE64, "Q")
        logical = _ioctl_int(fd, _BLKSSZGET, "i")
        physical = _ioctl_int(fd, _BLKPBSZGET, "I")
        read_only = bool(_ioctl_int(fd, _BLKROGET, "i"))
    except OSError as error:
        raise refusal(path, error) from error
    discard = _discards(os.major(found.st_rdev), os.minor(found.st_rdev))
    return DeviceFacts(path, True, size, max(logical, SECTOR_MIN_BYTES), physical, True, read_only, discard)


def _discards(major: int, minor: int) -> bool:
    """Whether the queue takes discards; a partition's queue is its disk's."""
    for place in ("queue", "../queue"):
        try:
            with open(f"/sys/dev/block/{major}:{minor}/{place}/discard_max_bytes", encoding="ascii") as text:
                return int(text.read()) > 0
        except (OSError, ValueError):
            continue
    return False


def _ioctl_int(fd: int, request: int, code: str) -> int:
    answer = array.array(code, [0])
    fcntl.ioctl(fd, request, answer, True)
    return answer[0]
