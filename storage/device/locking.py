"""One process per device, through whatever path (D6).

A holder has, on the device it opened:

- O_EXCL, if it's a block device: the kernel's claim, which also excludes mounts, swap, partitions and the whole disk;
- ``flock`` LOCK_EX on the inode, whatever name leads to it: hard link, symlink, bind mount;
- an open-file-description read lock as a *mark* (see below);

and beyond it:

- flock and mark on everything beneath a loop device (claim too, where that's a block device): so the daemon on
  /dev/loopN and the daemon on the file behind it exclude each other by the file's flock, in both directions;
- claims on the loop devices above it, so that nobody mounts the same bytes through them. A loop device made later
  can't be prevented, but no second daemon starts on it, because of the file's flock. Detaching a claimed loop device
  takes effect when the claim ends.

Two regions or partitions of one backing file count as one device: the lock is on the whole file.

Where no path leads to a backing file (unlinked, another mount namespace), it can't be locked. Then a lock held on
its inode is looked up in /proc/locks; and a daemon that opens the file by some other name finds the loop device above
it claimed.

None of these locks belongs to the process (as ``fcntl`` locks do): closing another descriptor of the same
file, as ``info`` and ``check`` do, drops nothing.

The mark makes a holder visible without disturbing anyone: F_OFD_GETLK only asks. Trying a lock to see whether it's
free would make a daemon that starts in that moment fail.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from typing import Final

from storage.device.loop_stack import Identity, Layer, disk_and_partitions, layers_beneath, loops_above
from storage.device.probe import kind_of, refusal
from storage.errors import DeviceInUse

_FLOCK: Final = struct.Struct("@hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_NODE_WAIT_SECONDS: Final = 3.0
_NODE_STEP_SECONDS: Final = 0.02


class DeviceLocks:
    """The locks that belong to one open device. Empty for a device opened without them."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def take(self, fd: int, path: str) -> None:
        """Lock the device behind ``fd``, and what lies beneath and above it. Raises DeviceInUse; then nothing is held
        beyond what goes with ``fd``."""
        found = os.fstat(fd)
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            _lock(fd, path, is_node=stat.S_ISBLK(found.st_mode))
            for layer in layers_beneath(found):
                self._take_beneath(layer, path)
            for layer in loops_above(found):
                self._claim_above(layer, path)
            undo.pop_all()

    def _take_beneath(self, layer: Layer, path: str) -> None:
        if layer.path is None:
            if _locked_by_someone(layer.identity):
                raise DeviceInUse(f"the file behind {path} is held by another process")
            return
        claim = os.O_EXCL if layer.identity.is_block_device else 0
        try:
            fd = os.open(layer.path, os.O_RDONLY | claim)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise DeviceInUse(f"{layer.path}, beneath {path}, is held by another process or mounted") from error
            raise refusal(layer.path, error) from error
        self._fds.append(fd)
        if Identity.of(os.fstat(fd)) != layer.identity:
            raise DeviceInUse(f"{layer.path}, beneath {path}, changed while it was opened")
        _lock(fd, layer.path, is_node=layer.identity.is_block_device)

    def _claim_above(self, layer: Layer, path: str) -> None:
        assert layer.path is not None
        try:
            self._fds.append(os.open(layer.path, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise DeviceInUse(f"{layer.path}, a loop device over {path}, is held or mounted") from error
            # ENXIO: detached meanwhile. EACCES: not ours to open, hence not ours to protect.


def is_held(path: str) -> bool:
    """Whether a daemon holds the device, through whatever path, or the kernel uses it (mounted, swap, volume manager).

    Only asks: neither disturbs a holder nor makes a starting one fail. Raises DeviceMissing, DeviceRefused.
    """
    found = kind_of(path)
    itself = Layer(Identity.of(found), path)
    kernel_uses = _mounted() | _swaps()
    for layer in (itself, *disk_and_partitions(found), *layers_beneath(found), *loops_above(found)):
        if layer.identity in kernel_uses or _is_part_of_another(layer.identity):
            return True
        try:
            if _locked_by_someone(layer.identity) if layer.path is None else _is_marked(layer.path):
                return True
        except OSError as error:
            if layer is itself:
                raise refusal(path, error) from error
            # A neighbour that is gone by now (a loop device was detached), or isn't ours to look at.
    return False


def _lock(fd: int, path: str, *, is_node: bool) -> None:
    """Take the flock and set the mark. Raises DeviceInUse.

    A device node's flock may be taken for a moment by udev while it looks at the device: waited for a little, because
    the real guard of a node is O_EXCL. A file's flock is only ever a holder's.
    """
    deadline = time.monotonic() + (_NODE_WAIT_SECONDS if is_node else 0.0)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise DeviceInUse(f"{path} is locked by another process") from error
            time.sleep(_NODE_STEP_SECONDS)
        except OSError as error:
            raise refusal(path, error) from error
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise DeviceInUse(f"{path} is locked by another process") from error
        raise refusal(path, error) from error


def _is_marked(path: str) -> bool:
    """Raises OSError when the path can't be opened."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    finally:
        os.close(fd)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


def _locked_by_someone(identity: Identity) -> bool:
    """Whether /proc/locks knows a flock on a file; the last resort, as it misses other process namespaces."""
    wanted = (os.major(identity.device), os.minor(identity.device), identity.inode)
    with open("/proc/locks", encoding="ascii", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK":
                major, minor, inode = fields[5].split(":")
                if (int(major, 16), int(minor, 16), int(inode)) == wanted:
                    return True
    return False


def _mounted() -> set[Identity]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        numbers = [line.split()[2].split(":") for line in lines]
    return {Identity(True, os.makedev(int(major), int(minor)), 0) for major, minor in numbers}


def _is_part_of_another(identity: Identity) -> bool:
    """Whether device-mapper or RAID has made the block device a part of another."""
    if not identity.is_block_device:
        return False
    try:
        return bool(os.listdir(f"/sys/dev/block/{os.major(identity.device)}:{os.minor(identity.device)}/holders"))
    except OSError:
        return False


def _swaps() -> set[Identity]:
    found: set[Identity] = set()
    # A kernel without swap has no such file; a path in it may be out of reach.
    with contextlib.suppress(OSError), open("/proc/swaps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in list(lines)[1:]:
            with contextlib.suppress(OSError):
                found.add(Identity.of(os.stat(line.split()[0])))
    return found
