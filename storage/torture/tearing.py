"""Torn writes: what a crash may leave of a write that was under way, cut at the sectors a device writes whole.

Only bytes that are promised to nobody are torn. Three of the ways imitate a kill, after which everything acknowledged
must be there; the fourth imitates a power loss, after which what was never flushed may be gone, from the end on.
"""

from __future__ import annotations

import random

from storage.format.journal_block import encode_journal_block
from storage.format.row import SlotState
from storage.torture.closed_device import SECTOR_BYTES, ClosedDevice
from storage.torture.survey import Survey, rows_of_block, write_id_in_slot


def tear_next_journal_blocks(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """A group of up to four blocks behind the end: the first torn, each of the others whole, torn or absent."""
    geometry = found.geometry
    position = found.recovered.position
    checksum = position.last_checksum
    rows = [rng.randbytes(64) for _ in range(geometry.rows_per_journal_block)]  # so that no part of it is all of it
    for ahead in range(rng.randrange(1, 5)):
        block = memoryview(bytearray(geometry.block_bytes))
        number = position.last_block + 1 + ahead
        checksum = encode_journal_block(
            block,
            uuid=found.superblock.uuid,
            start_count=position.start_count - 1,
            number=number,
            previous=checksum,
            flushed_through=position.flushed_through,
            tail=position.tail,
            complete_since=position.complete_since,
            rows=rows,
            records=b"",
        )
        sectors = geometry.block_bytes // SECTOR_BYTES
        cut = rng.randrange(1, sectors) if not ahead else rng.choice([0, sectors, rng.randrange(sectors)])
        if cut:
            content = bytes(block[: cut * SECTOR_BYTES])
            closed.edit(f"journal block {number}, torn", geometry.journal_block_offset(number), content)


def tear_free_slots(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """Records on their way into free slots: any sectors of a record that is live elsewhere, its header included."""
    live, limbo = found.rows(SlotState.LIVE), _places_unflushed(closed, found)
    # A slot that a row behind the last flush speaks of is not given out before the next one.
    free = [(row_id, row) for row_id, row in found.rows(SlotState.FREE) if (row.slab, row.slot) not in limbo]
    if not live or not free:
        return
    for row_id, row in rng.sample(free, min(len(free), 3)):
        source, record = rng.choice(live)
        room = min(found.geometry.class_bytes[row.slot_class], record.record_bytes, 1 << 18)
        cut = rng.randrange(1, max(2, room // SECTOR_BYTES + 1)) * SECTOR_BYTES
        content = closed.read(found.slot_offset(source), cut)
        closed.edit(f"free slot {row.slab}/{row.slot}, torn", found.slot_offset(row_id), content)


def tear_target_copy(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """A checkpoint under way: some pages of the copy that comes next are new in part; its header too, now and then."""
    geometry, target = found.geometry, found.target
    sectors = geometry.block_bytes // SECTOR_BYTES
    stale = found.pages_behind(target)
    for page in rng.sample(stale, min(len(stale), rng.randrange(1, 9))):
        content = closed.read(geometry.page_offset(found.newest.copy, page), geometry.block_bytes)
        cut = rng.randrange(1, sectors + 1) * SECTOR_BYTES
        closed.edit(f"page {page} of copy {target}, torn", geometry.page_offset(target, page), content[:cut])
    if rng.random() < 0.5:
        offset = geometry.directory_offset(target)
        content = closed.read(geometry.directory_offset(found.newest.copy), geometry.block_bytes)
        cut = rng.randrange(1, sectors + 1) * SECTOR_BYTES
        closed.edit(f"directory of copy {target}, torn", offset, content[:cut])
    if rng.random() < 0.5:
        offset = geometry.copy_offset(target)
        content = rng.randbytes(rng.randrange(1, sectors) * SECTOR_BYTES)
        closed.edit(f"header of copy {target}, torn", offset, content)


def lose_unflushed(closed: ClosedDevice, found: Survey, rng: random.Random) -> None:
    """A power loss: of the journal blocks that were never flushed the last ones are gone, the first of them in part.

    A block is kept if it may have been flushed without any block that says so: those a start writes, and those whose
    freed slots are in use again.
    """
    geometry = found.geometry
    newest_start = [header.number for header in found.valid.values() if header.start_count == found.journal.start_count]
    losable = []
    for header in reversed(found.journal.chain):
        if header.number <= found.flushed_through or header.flushed_through < min(newest_start):
            break
        freed = [row for row in rows_of_block(closed, found, header) if row.state == SlotState.FREE and row.write_id]
        if any(write_id_in_slot(closed, found, row) != row.write_id for row in freed):
            break
        losable.append(header.number)
    if not losable:
        return
    first = rng.choice(losable)
    for number in range(first, losable[0] + 1):
        keep = rng.randrange(geometry.block_bytes // SECTOR_BYTES) * SECTOR_BYTES if number == first else 0
        offset = geometry.journal_block_offset(number)
        closed.edit(f"journal block {number}, lost", offset + keep, bytes(geometry.block_bytes - keep))


def _places_unflushed(closed: ClosedDevice, found: Survey) -> set[tuple[int, int]]:
    """Slab and slot of every row behind the last flush."""
    unflushed = [header for header in found.journal.chain if header.number > found.flushed_through]
    return {(row.slab, row.slot) for header in unflushed for row in rows_of_block(closed, found, header)}
