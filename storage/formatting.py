"""Making a cache on a device: the only code that writes to a device that holds none (D5).

Order: the first block says "being formatted" and the last one is zeroed, flush; the ends are cleared of older
signatures; the first checkpoint copy is written, flush; then the superblocks, last block first. A crash before the
end leaves the mark, which may be formatted again without force.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from storage.device.blank import blank_verdict
from storage.device.interface import BlockDevice
from storage.device.opening import open_device
from storage.device.probe import probe, refusal
from storage.device.signatures import foreign_signature
from storage.errors import CachePresent, DeviceMissing, ForeignContent, GeometryInvalid, NotFormatted, RawblockdError
from storage.format.checkpoint_copy import (
    DIRECTORY_MAGIC,
    CopyHeader,
    encode_copy_header,
    encode_stream,
    stream_checksum,
)
from storage.format.checksums import SECRET_BYTES
from storage.format.geometry import BLOCK_MIN_BYTES, Geometry, plan
from storage.format.superblock import FORMATTING_MAGIC, Superblock, encode_superblock
from storage.recovery.superblocks import read_superblock

CLEARED_BYTES = 1 << 20
"""Cleared at both ends, where other programs keep their signatures (btrfs at 64 KiB is the furthest in)."""


@dataclass(frozen=True, slots=True)
class Formatted:
    superblock: Superblock
    path: str

    @property
    def geometry(self) -> Geometry:
        return self.superblock.geometry


def format_device(
    path: str,
    *,
    size_bytes: int | None = None,
    smallest_slot_bytes: int | None = None,
    slab_bytes: int | None = None,
    copies: int = 3,
    block_bytes: int = BLOCK_MIN_BYTES,
    force: bool = False,
    allow_buffered: bool = False,
    step: Callable[[str], None] = lambda _: None,
) -> Formatted:
    """Create a cache. ``size_bytes`` makes (or checks) a regular file of that size.

    Raises GeometryInvalid before anything is touched, DeviceMissing, DeviceInUse, CachePresent, ForeignContent,
    DirectIoRefused, DeviceFailed.
    """
    options = {
        "smallest_slot_bytes": smallest_slot_bytes,
        "slab_bytes": slab_bytes,
        "copies": copies,
        "block_bytes": block_bytes,
    }
    created = False
    if not os.path.lexists(path):
        if size_bytes is None:
            raise DeviceMissing(f"{path} does not exist; give a size to create a file")
        plan(size_bytes, **options)  # type: ignore[arg-type]
        _allocate(path, size_bytes)
        created = True
    try:
        return _format_existing(path, size_bytes, options, force=force, allow_buffered=allow_buffered, step=step)
    except RawblockdError:
        if created:
            os.unlink(path)
        raise


def _format_existing(
    path: str,
    size_bytes: int | None,
    options: dict[str, int | None],
    *,
    force: bool,
    allow_buffered: bool,
    step: Callable[[str], None],
) -> Formatted:
    facts = probe(path)
    usable = facts.size_bytes if size_bytes is None else size_bytes
    if usable > facts.size_bytes:
        raise GeometryInvalid(f"size = {usable}: larger than the device, which has {facts.size_bytes} bytes")
    geometry = plan(usable, **options)  # type: ignore[arg-type]
    device = open_device(path, write=True, allow_buffered=allow_buffered)
    try:
        if not force:
            refuse_content(device)
        superblock = Superblock(
            uuid.uuid4().bytes, secrets.token_bytes(SECRET_BYTES), int(time.time() * 1000), geometry
        )
        write_format(device, superblock, step=step)
    finally:
        device.close()
    return Formatted(superblock, path)


def _allocate(path: str, size_bytes: int) -> None:
    """A file with all its blocks, so that a full file system shows now and not in the middle of a put."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise refusal(path, error) from error
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        os.unlink(path)
        raise GeometryInvalid(f"size = {size_bytes}: {error.strerror}") from error
    finally:
        os.close(fd)


def refuse_content(device: BlockDevice) -> None:
    """Raises CachePresent or ForeignContent unless the device is blank or a formatting of it was not finished."""
    try:
        read_superblock(device)
    except NotFormatted:
        pass
    except ForeignContent:
        pass
    else:
        raise CachePresent(f"{device.path}; --force destroys it")
    head = memoryview(mmap.mmap(-1, BLOCK_MIN_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    device.read_now(0, head)
    if bytes(head[: len(FORMATTING_MAGIC)]) == FORMATTING_MAGIC:
        return
    signature = foreign_signature(device.path)
    if signature is not None:
        raise ForeignContent(f"{device.path}: {signature}; --force overwrites it")
    verdict = blank_verdict(device.path)
    if not verdict.blank:
        raise ForeignContent(f"{device.path}: not blank at byte {verdict.content_at}; --force overwrites it")


def write_format(device: BlockDevice, superblock: Superblock, *, step: Callable[[str], None] = lambda _: None) -> None:
    """Write an empty cache, whatever is there."""
    geometry = superblock.geometry
    size = geometry.block_bytes
    with (
        mmap.mmap(-1, CLEARED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory,
        memoryview(memory) as view,
    ):

        def write(offset_bytes: int, content: bytes) -> None:
            for begin in range(0, len(content), CLEARED_BYTES):
                part = content[begin : begin + CLEARED_BYTES]
                view[: len(part)] = part
                device.write_now(offset_bytes + begin, view[: len(part)])

        first, last = geometry.superblock_offsets
        write(first, FORMATTING_MAGIC.ljust(size, b"\0"))
        write(last, bytes(size))
        device.flush_now()
        step("marked")
        cleared = min(CLEARED_BYTES, geometry.device_bytes // 4 // size * size)
        write(size, bytes(cleared - size))
        write(last + size - cleared, bytes(cleared))
        for copy in range(geometry.copies):
            write(geometry.copy_offset(copy), bytes(size))
        _clear_journal(geometry, write)
        _write_first_copy(superblock, write)
        device.flush_now()
        step("written")
        write(last, encode_superblock(superblock, 1))
        device.flush_now()
        step("last_superblock")
        write(first, encode_superblock(superblock, 0))
        device.flush_now()


def _clear_journal(geometry: Geometry, write: Callable[[int, bytes], None]) -> None:
    """Blocks of an older cache would not verify, but their place could pass for damage."""
    for begin in range(0, geometry.journal_bytes, CLEARED_BYTES):
        write(geometry.journal_offset + begin, bytes(min(CLEARED_BYTES, geometry.journal_bytes - begin)))


def _write_first_copy(superblock: Superblock, write: Callable[[int, bytes], None]) -> None:
    """Checkpoint 1: nothing, complete."""
    geometry = superblock.geometry
    directory = encode_stream(
        DIRECTORY_MAGIC,
        bytes(geometry.pages * 16),
        uuid=superblock.uuid,
        copy=0,
        number=1,
        block_bytes=geometry.block_bytes,
    )
    write(geometry.directory_offset(0), directory)
    header = CopyHeader(
        copy=0,
        number=1,
        seq=0,
        journal_block=1,
        start_count=0,
        pages=geometry.pages,
        directory_checksum=stream_checksum(directory),
        catalogue_checksum=0,
        catalogue_bytes=0,
        written_ms=superblock.created_ms,
        entries=0,
        tail=1,
    )
    write(geometry.copy_offset(0), encode_copy_header(header, superblock.uuid, geometry.block_bytes))
