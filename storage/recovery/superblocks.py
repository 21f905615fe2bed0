"""Which device is this? Both superblocks are read; one that verifies is enough."""

from __future__ import annotations

import dataclasses

from storage.device.interface import BlockDevice
from storage.errors import ForeignContent, LayoutMismatch, NotFormatted, SuperblocksLost
from storage.format.geometry import BLOCK_MAX_BYTES, BLOCK_MIN_BYTES
from storage.format.layout import Undecodable
from storage.format.superblock import (
    FORMATTING_MAGIC,
    MAGIC,
    SUPERBLOCK,
    Superblock,
    claimed_block_bytes,
    decode_superblock,
)
from storage.recovery.reading import BlockReader


def read_superblock(device: BlockDevice) -> tuple[Superblock, list[str]]:
    """The device's superblock with the higher start count of both, and the verdict per place.

    Raises NotFormatted, ForeignContent, FormatUnsupported, LayoutMismatch, SuperblocksLost.
    """
    found: list[Superblock | None] = []
    verdicts: list[str] = []
    for place in (0, 1):
        superblock, verdict = _read_place(device, place, found[0] if found else None)
        found.append(superblock)
        verdicts.append(verdict)
    first, last = found
    if first is not None and last is not None and first.uuid != last.uuid:
        # The device grew or shrank, or half of it was copied: the first block decides, the other is no superblock.
        verdicts[1] = "wrong_device"
        last = None
    superblock = first or last
    if superblock is None:
        raise _refusal(device, verdicts)
    if first is not None and last is not None:
        superblock = dataclasses.replace(first, start_count=max(first.start_count, last.start_count))
    if superblock.geometry.device_bytes > device.size_bytes:
        raise LayoutMismatch(
            f"formatted with {superblock.geometry.device_bytes} bytes, the device has {device.size_bytes}"
        )
    return superblock, verdicts


def _read_place(device: BlockDevice, place: int, first: Superblock | None) -> tuple[Superblock | None, str]:
    """With an intact first superblock the last one's place is known; else the sizes possible are tried."""
    if first is not None:
        sizes = [first.geometry.block_bytes]
        ends = [first.geometry.device_bytes]
    else:
        sizes = [size for size in _block_sizes() if size <= device.size_bytes]
        ends = [device.size_bytes // size * size for size in sizes]
    verdict = "absent"
    for index, size in enumerate(sizes):
        end = ends[index]
        if end > device.size_bytes:
            return None, "absent"
        reader = BlockReader(device, size)
        try:
            block = reader.block(0 if place == 0 else end - size)
        finally:
            reader.close()
        if block is None:
            verdict = "unreadable"
            continue
        claimed = claimed_block_bytes(block[: SUPERBLOCK.size_bytes])
        if claimed not in (0, size) and claimed in sizes:
            continue
        try:
            return decode_superblock(block, place), "valid"
        except Undecodable as error:
            if block.startswith(MAGIC) or any(block):
                verdict = error.reason if block.startswith(MAGIC) else verdict
    return None, verdict


def _block_sizes() -> list[int]:
    sizes = []
    size = BLOCK_MIN_BYTES
    while size <= BLOCK_MAX_BYTES:
        sizes.append(size)
        size *= 2
    return sizes


def _refusal(device: BlockDevice, verdicts: list[str]) -> NotFormatted | ForeignContent | LayoutMismatch:
    reader = BlockReader(device, BLOCK_MIN_BYTES)
    try:
        head = reader.block(0)
    finally:
        reader.close()
    if head is not None and head.startswith(FORMATTING_MAGIC):
        return NotFormatted("formatting it was not finished; format it again")
    if any(verdict != "absent" for verdict in verdicts):
        return SuperblocksLost(f"{verdicts[0]} at the start, {verdicts[1]} at the end")
    if head is None or any(head):
        return ForeignContent("the first block is no superblock")
    return NotFormatted()
