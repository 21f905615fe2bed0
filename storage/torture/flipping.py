"""Flipped bits in a closed device: in each kind of structure, and in the same page of every copy."""

from __future__ import annotations

import random
from collections.abc import Callable

from storage.format.row import Row, SlotState
from storage.torture.closed_device import ClosedDevice
from storage.torture.survey import Survey

Flip = Callable[[ClosedDevice, Survey, random.Random], None]


def _flip_within(closed: ClosedDevice, rng: random.Random, what: str, offset_bytes: int, size_bytes: int) -> None:
    closed.flip(what, offset_bytes + rng.randrange(size_bytes), 1 << rng.randrange(8))


def flip_superblock(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    place = rng.randrange(2)
    offset = found.geometry.superblock_offsets[place]
    _flip_within(closed, rng, f"superblock {'AB'[place]}", offset, found.geometry.block_bytes)


def flip_copy_header(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    copy = rng.randrange(found.geometry.copies)
    _flip_within(closed, rng, f"header of copy {copy}", found.geometry.copy_offset(copy), found.geometry.block_bytes)


def flip_directory(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    copy = found.newest.copy
    size = found.geometry.directory_blocks * found.geometry.block_bytes
    _flip_within(closed, rng, f"directory of copy {copy}", found.geometry.directory_offset(copy), size)


def flip_page(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    pages = found.pages_written()
    if pages:
        copy, page = found.newest.copy, rng.choice(pages)
        offset = found.geometry.page_offset(copy, page)
        _flip_within(closed, rng, f"page {page} of copy {copy}", offset, found.geometry.block_bytes)


def flip_page_everywhere(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """No copy has the page whole: rows are settled one by one, or skipped and counted."""
    pages = found.pages_written()
    if not pages:
        return
    page, byte, bits = rng.choice(pages), rng.randrange(found.geometry.block_bytes), 1 << rng.randrange(8)
    for copy in range(found.geometry.copies):
        closed.flip(f"page {page} of copy {copy}", found.geometry.page_offset(copy, page) + byte, bits)


def flip_journal(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """A block known to be flushed: behind that point damage can't be told from a tail (R3)."""
    flushed = [header.number for header in found.journal.chain if header.number <= found.flushed_through]
    if flushed:
        number = rng.choice(flushed)
        offset = found.geometry.journal_block_offset(number)
        _flip_within(closed, rng, f"journal block {number}", offset, found.geometry.block_bytes)


def flip_record_header(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    row_id, row = _live(found, rng)
    if row is not None:
        _flip_within(
            closed, rng, f"record header in {row.slab}/{row.slot}", found.slot_offset(row_id), row.header_bytes
        )


def flip_payload(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    row_id, row = _live(found, rng)
    if row is not None and row.payload_bytes:
        offset = found.slot_offset(row_id) + row.header_bytes
        _flip_within(closed, rng, f"payload in {row.slab}/{row.slot}", offset, row.payload_bytes)


def _live(found: Survey, rng: random.Random) -> tuple[int, Row | None]:
    live = found.rows(SlotState.LIVE)
    return rng.choice(live) if live else (0, None)


FLIPS: tuple[Flip, ...] = (
    flip_superblock,
    flip_copy_header,
    flip_directory,
    flip_page,
    flip_page_everywhere,
    flip_journal,
    flip_record_header,
    flip_payload,
)


def flip_some(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """One to three flips of different kinds."""
    for flip in rng.sample(FLIPS, rng.randrange(1, 4)):
        flip(closed, found, rng)
