"""Getting the device for ``serve``: make the file if that was asked for and it is missing, then open it."""

from __future__ import annotations

import os
import time

import structlog

from rawblockd.settings import Settings
from storage.device.interface import BlockDevice
from storage.device.opening import open_device
from storage.errors import CachePresent, DeviceInUse, GeometryInvalid, SettingsInvalid
from storage.formatting import format_device

log = structlog.stdlib.get_logger("rawblockd")


LINGER_SECONDS = 2.0
"""A process that was killed holds the device until the kernel has ended its I/O: a start right behind it waits."""
POLL_SECONDS = 0.05


def prepare_device(settings: Settings) -> BlockDevice:
    """The open device. Blocks: opening takes locks and reads, making a file writes its metadata.

    Raises DeviceInUse when it is still held after ``LINGER_SECONDS``.
    """
    deadline = time.monotonic() + LINGER_SECONDS
    while True:
        try:
            return _prepare(settings)
        except DeviceInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)


def _prepare(settings: Settings) -> BlockDevice:
    path = settings.device
    if path is None:
        raise SettingsInvalid("device is not set: which device holds the cache?", settings=["device"])
    if settings.create:
        _create(path, settings)
    return open_device(path, write=True, allow_buffered=settings.allow_buffered_io, io_engine=settings.io_engine.value)


def _create(path: str, settings: Settings) -> None:
    """Make the file if it is missing, or end a making that was cut off.

    A file that holds a cache is left to be served; one that holds anything else is refused. A block device is
    never formatted on the way: that is for ``format``.
    """
    missing = not os.path.lexists(path)
    if not missing and not os.path.isfile(path):
        return
    try:
        formatted = format_device(
            path,
            size_bytes=settings.size if missing else None,
            smallest_slot_bytes=settings.smallest_slot,
            allow_buffered=settings.allow_buffered_io,
        )
    except CachePresent:
        return
    except GeometryInvalid:
        if missing:
            raise
        return  # too small for a making of ours that was cut off: the engine says what is wrong with it
    log.info("formatted the file", device=path, size_bytes=formatted.geometry.device_bytes, created=missing)
