"""Which files and devices lie beneath a path, and which loop devices lie above it.

D6 forbids two processes on one device through whatever path, and a loop device is such a path: /dev/loopN and
the file behind it are the same bytes. The kernel tells the relation in two places: LOOP_GET_STATUS64 gives the backing
inode's identity (device and inode number, exact), /sys/block/loopN/loop/backing_file gives a path to it, which may be
stale: the file was unlinked, renamed, or lives in another mount namespace. So a path counts only when the inode found
there is the backing one.

Not covered: overlayfs, where a file seen through the overlay and the same file in its lower directory are different
inodes to the kernel.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from dataclasses import dataclass
from typing import Final

_LOOP_MAJOR: Final = 7
_LOOP_GET_STATUS64: Final = 0x4C05
_INFO64_HEAD: Final = struct.Struct("=QQQ")  # struct loop_info64: lo_device, lo_inode, lo_rdevice, then more
_INFO64_BYTES: Final = 232
_DEPTH_MAX: Final = 16
"""Loops over loops followed at most; the kernel itself stops far below."""
_SYSFS: Final = "/sys"


@dataclass(frozen=True, slots=True)
class Identity:
    """A file (by file system and inode) or a block device (by device number): equal means the same bytes."""

    is_block_device: bool
    device: int
    inode: int
    """0 for a block device."""

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        if stat.S_ISBLK(found.st_mode):
            return cls(True, found.st_rdev, 0)
        return cls(False, found.st_dev, found.st_ino)


@dataclass(frozen=True, slots=True)
class Layer:
    """Something beneath or above a device. ``path`` is None when no path leads to it from here."""

    identity: Identity
    path: str | None


def layers_beneath(found: os.stat_result) -> list[Layer]:
    """What a device stands on, top first: the disk of a partition isn't one, the file behind a loop device is."""
    layers: list[Layer] = []
    identity = Identity.of(found)
    while identity.is_block_device and len(layers) < _DEPTH_MAX:
        name = _disk_name(identity.device)
        if name is None or (layer := _backing_of(name)) is None:
            break
        layers.append(layer)
        identity = layer.identity
    return layers


def loops_above(found: os.stat_result) -> list[Layer]:
    """Loop devices that show the bytes of this file or block device, also through other loop devices."""
    pairs = [(_identity_at(f"{_SYSFS}/block/{name}"), name, _backing_of(name)) for name in _loop_names()]
    reached = {Identity.of(found)}
    above: list[Layer] = []
    for _ in range(_DEPTH_MAX):
        fresh = [
            Layer(identity, f"/dev/{name}")
            for identity, name, backing in pairs
            if identity is not None and backing is not None and identity not in reached and backing.identity in reached
        ]
        if not fresh:
            break
        above += fresh
        reached.update(layer.identity for layer in fresh)
    return above


def disk_and_partitions(found: os.stat_result) -> list[Layer]:
    """The other nodes of the same disk whose bytes overlap this one's: a partition's disk, a disk's partitions."""
    if not stat.S_ISBLK(found.st_mode):
        return []
    place = os.path.realpath(f"{_SYSFS}/dev/block/{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}")
    if os.path.exists(f"{place}/partition"):
        places = [os.path.dirname(place)]
    else:
        try:
            names = os.listdir(place)
        except OSError:
            return []
        places = [f"{place}/{name}" for name in names if os.path.exists(f"{place}/{name}/partition")]
    layers = [(_identity_at(one), f"/dev/{os.path.basename(one)}") for one in places]
    return [Layer(identity, path) for identity, path in layers if identity is not None and os.path.exists(path)]


def _loop_names() -> list[str]:
    """Names of loop devices that are in use."""
    try:
        names = os.listdir(f"{_SYSFS}/block")
    except OSError:
        return []
    return sorted(n for n in names if n.startswith("loop") and os.path.isdir(f"{_SYSFS}/block/{n}/loop"))


def _identity_at(place: str) -> Identity | None:
    """The block device that a sysfs directory stands for."""
    number = _read(f"{place}/dev")
    if number is None:
        return None
    major, _, minor = number.partition(":")
    return Identity(True, os.makedev(int(major), int(minor)), 0)


def _disk_name(device: int) -> str | None:
    """Kernel name of the whole disk that a block device number belongs to."""
    link = f"{_SYSFS}/dev/block/{os.major(device)}:{os.minor(device)}"
    if not os.path.exists(link):
        return None
    place = os.path.realpath(link)
    if os.path.exists(f"{place}/partition"):
        place = os.path.dirname(place)
    return os.path.basename(place)


def _backing_of(name: str) -> Layer | None:
    """What is behind a loop device; None for other devices and for a loop device without a file."""
    path = _read(f"{_SYSFS}/block/{name}/loop/backing_file")
    if path is None:
        return None
    exact = _backing_identity(f"/dev/{name}")
    try:
        by_path = Identity.of(os.stat(path))
    except OSError:
        by_path = None
    if exact is None:
        # The node is missing or we may not read it: the path is all there is.
        return None if by_path is None else Layer(by_path, path)
    return Layer(exact, path if by_path == exact else None)


def _backing_identity(node: str) -> Identity | None:
    """The backing inode as the loop driver knows it. None if the node isn't a loop device."""
    try:
        fd = os.open(node, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISBLK(found.st_mode) or os.major(found.st_rdev) != _LOOP_MAJOR:
            return None  # to another driver the ioctl's number may mean something else
        answer = bytearray(_INFO64_BYTES)
        fcntl.ioctl(fd, _LOOP_GET_STATUS64, answer, True)
    except OSError:  # ENXIO: detached meanwhile
        return None
    finally:
        os.close(fd)
    device, inode, block_device = _INFO64_HEAD.unpack_from(answer)
    if block_device:
        return Identity(True, _decode_device(block_device), 0)
    return Identity(False, _decode_device(device), inode)


def _decode_device(encoded: int) -> int:
    """The kernel's 32-bit encoding (linux/kdev_t.h, new_encode_dev) as the number stat gives."""
    return os.makedev((encoded >> 8) & 0xFFF, (encoded & 0xFF) | ((encoded >> 12) & 0xFFF00))


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as text:
            return text.read().rstrip("\n")
    except OSError:
        return None
