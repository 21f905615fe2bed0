"""Opening a cache to look at it: read-only, without a lock, so that it works beside a daemon that holds the device.

What is read of a held device may change between two reads: findings are then transient, and every answer says so
(``held``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from storage.device.interface import BlockDevice
from storage.device.locking import is_held
from storage.device.opening import open_device
from storage.format.geometry import Geometry
from storage.format.superblock import Superblock
from storage.recovery.reading import BlockReader
from storage.recovery.superblocks import read_superblock


@dataclass(frozen=True, slots=True)
class OpenCache:
    """A device that holds a cache. ``held``: a daemon or the kernel had it when it was opened."""

    device: BlockDevice
    superblock: Superblock
    superblock_verdicts: list[str]
    reader: BlockReader
    held: bool

    @property
    def geometry(self) -> Geometry:
        return self.superblock.geometry

    @property
    def uuid(self) -> bytes:
        return self.superblock.uuid


@contextlib.contextmanager
def opened(path: str) -> Iterator[OpenCache]:
    """The cache on ``path`` while the context lasts.

    Raises DeviceMissing, DeviceRefused, NotFormatted, ForeignContent, FormatUnsupported, LayoutMismatch, DeviceFailed.
    """
    held = is_held(path)
    # Threads, as the ring's self test would be waste: only blocking reads are made.
    device = open_device(path, write=False, allow_buffered=True, io_engine="threads", exclusive=False)
    try:
        superblock, verdicts = read_superblock(device)
        reader = BlockReader(device, superblock.geometry.block_bytes)
        try:
            yield OpenCache(device, superblock, verdicts, reader, held)
        finally:
            reader.close()
    finally:
        device.close()
