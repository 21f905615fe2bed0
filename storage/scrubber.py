"""Background verification of everything on the device, at a bounded rate (a read now and then finds bit rot early).

A pass looks at every slot in the order of the table, then at the checkpoint copies, the journal and the superblocks:

===============  ======================================================================================
what             when it is wrong
===============  ======================================================================================
live record      as if a reader had met it: quarantined, counted, reported (R8)
free slot        a header that verifies there is the remains of a put that never ended: made void,
                 so that a rebuild without copies can't take it for an entry (R1)
page of a copy   written again by the next checkpoint of that copy
copy header      the copy counts as holding none: the next checkpoint writes it
journal block    counted; a checkpoint soon makes it unnecessary
superblock       written again from the other one
===============  ======================================================================================

While partial recovery lasts nothing but live records is repaired or made void: the rest is evidence (R4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from storage.buffers import Buffer, BufferArena
from storage.checkpoint.checkpointer import Checkpointer
from storage.checkpoint.copy_state import CopyState
from storage.device.interface import BlockDevice
from storage.errors import Busy, DeviceFailed, EntryCorrupt, EntryUnreadable, ReadFailed, Unavailable
from storage.format.checkpoint_copy import decode_copy_header
from storage.format.geometry import NO_CLASS
from storage.format.journal_block import decode_journal_header
from storage.format.layout import Undecodable, round_up
from storage.format.page import decode_page_header
from storage.format.record import MAGIC as RECORD_MAGIC
from storage.format.row import SlotState
from storage.format.superblock import Superblock, decode_superblock, encode_superblock
from storage.index import Index
from storage.journal import Journal
from storage.read_path import ReadPath
from storage.turns import Turns

log = logging.getLogger("rawblockd.storage")

FAILURE_PAUSE_SECONDS = 5.0
ROWS_AT_ONCE = 256
"""Slots passed between two turns of the loop: some 1 ms."""
SPAN_BYTES = 256 * 1024
"""Of pages read and verified at a time: some 0.2 ms of the loop."""


@dataclass(slots=True)
class ScrubProgress:
    """``damaged`` counts what was found wrong, per kind, since the start."""

    ratio: float = 0.0
    passes: int = 0
    last_pass_at: float = 0.0
    bytes: int = 0
    damaged: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("record", "leftover", "page", "copy", "journal", "superblock"), 0)
    )


class Scrubber:
    def __init__(
        self,
        device: BlockDevice,
        index: Index,
        journal: Journal,
        checkpointer: Checkpointer,
        read_path: ReadPath,
        arena: BufferArena,
        superblock: Superblock,
        *,
        bytes_per_second: int,
        clock: Callable[[], float],
        frozen: Callable[[], bool],
    ) -> None:
        self._device = device
        self._index = index
        self._journal = journal
        self._checkpointer = checkpointer
        self._read_path = read_path
        self._arena = arena
        self._superblock = superblock
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._frozen = frozen
        self.progress = ScrubProgress()
        self._bad_superblocks: set[int] = set()
        self._bad_blocks: set[int] = set()
        """What was counted already: a block of the journal stays as it is until the journal's tail has passed it."""
        self._stopped = asyncio.Event()
        self._debt_bytes = 0

    # -- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pass after pass until ``stop``."""
        while not self._stopped.is_set():
            try:
                await self.one_pass()
            except (DeviceFailed, Busy, Unavailable) as error:
                log.warning("scrub interrupted", extra={"fields": {"error": str(error)}})
                await self._pause(FAILURE_PAUSE_SECONDS)

    def stop(self) -> None:
        self._stopped.set()

    @property
    def newest_bad_block(self) -> int:
        """Highest number of a journal block found damaged; 0 if there is none."""
        return max(self._bad_blocks, default=0)

    @property
    def superblock_damaged(self) -> bool:
        """Whether a superblock was found damaged and could not be written again yet."""
        return bool(self._bad_superblocks)

    async def one_pass(self) -> None:
        """Everything once. Raises DeviceFailed, Busy, Unavailable."""
        self.progress.ratio = 0.0
        slabs = np.flatnonzero(self._index.table.slab_class != NO_CLASS).tolist()
        for done, slab in enumerate(slabs):
            await self._scrub_slab(slab)
            self.progress.ratio = 0.8 * (done + 1) / len(slabs)
            if self._stopped.is_set():
                return
        for copy in self._checkpointer.copies:
            await self._scrub_copy(copy)
        self.progress.ratio = 0.9
        await self._scrub_journal()
        await self._scrub_superblocks()
        # An empty device is done in no time: a pass takes at least a second.
        self._debt_bytes = max(self._debt_bytes, self._bytes_per_second)
        await self._pay(0)
        if not self._stopped.is_set():
            self.progress.ratio = 1.0
            self.progress.passes += 1
            self.progress.last_pass_at = self._clock()

    async def _pay(self, read_bytes: int) -> None:
        """Keep to the rate: wait as long as what was read is worth, in steps of a tenth of a second."""
        self.progress.bytes += read_bytes
        self._debt_bytes += read_bytes
        if self._debt_bytes * 10 >= self._bytes_per_second:
            seconds, self._debt_bytes = self._debt_bytes / self._bytes_per_second, 0
            await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return

    # -- slots ----------------------------------------------------------------------------------------------------

    async def _scrub_slab(self, slab: int) -> None:
        table = self._index.table
        generation = int(table.slab_generation[slab])
        turns = Turns(ROWS_AT_ONCE)  # a slot that there is nothing to do about takes no time at the device
        for row_id in table.row_ids_of_slab(slab).tolist():
            await turns.after()
            if self._stopped.is_set() or table.slab_generation[slab] != generation:
                return
            state = table.state(row_id)
            if state == SlotState.LIVE:
                await self._scrub_record(row_id)
            elif state == SlotState.FREE and not self._frozen():
                await self._scrub_free(row_id)

    async def _scrub_record(self, row_id: int) -> None:
        """Read a record as a client would; what fails is quarantined by the read path."""
        row = self._index.table.row(row_id)
        await self._pay(row.record_bytes)
        try:
            await self._read_path.verify(row_id, row)
        except EntryCorrupt:
            self.progress.damaged["record"] += 1
        except EntryUnreadable:
            self.progress.damaged["record"] += 1

    async def _scrub_free(self, row_id: int) -> None:
        """Make void what a put that never ended left in a free slot."""
        slots, table = self._index.slots, self._index.table
        slab, _ = table.place_of(row_id)
        generation = int(table.slab_generation[slab])
        size = self._index.geometry.block_bytes
        await self._pay(size)
        # Asked only now: while this waited for its rate, a put may have taken the slot and written to it, or the slab
        # may have been given to another class, whose slots lie elsewhere.
        if table.slab_generation[slab] != generation or table.state(row_id) != SlotState.FREE:
            return
        if not slots.is_idle(row_id) or row_id in slots.freed_unvoided:
            return
        slots.begin_voiding([row_id])
        try:
            buffer = await self._arena.acquire(size, 5.0)
            try:
                await self._device.read(table.slot_offset(row_id), buffer.view[:size])
                if buffer.view[:8] == RECORD_MAGIC:
                    buffer.view[:size] = bytes(size)
                    await self._device.write(table.slot_offset(row_id), buffer.view[:size])
                    self.progress.damaged["leftover"] += 1
            except ReadFailed:
                self.progress.damaged["leftover"] += 1  # a free slot that can't be read is found out by its next put
            finally:
                buffer.release()
        finally:
            slots.end_voiding([row_id])
            self._read_path.space.pulse()

    # -- structures -----------------------------------------------------------------------------------------------

    async def _scrub_copy(self, copy: CopyState) -> None:
        if copy.header is None or self._checkpointer.running:
            return
        geometry, number = self._index.geometry, copy.header.number
        size = geometry.block_bytes
        if not await self._holds(
            geometry.copy_offset(copy.copy),
            lambda block: decode_copy_header(block, self._superblock.uuid, copy=copy.copy, pages=geometry.pages),
        ):
            if not self._checkpointer.running:
                self._lose_copy(copy, number)
            return
        pages = np.flatnonzero(copy.directory["seq"] > 0).tolist()
        step = max(1, SPAN_BYTES // size)
        begin = 0
        while begin < len(pages):
            run = [p for p in pages[begin : begin + step] if p - pages[begin] < step]
            begin += len(run)
            await self._scrub_pages(copy, number, run)
            if self._stopped.is_set():
                return

    def _lose_copy(self, copy: CopyState, number: int) -> None:
        """A copy whose header is gone can't be used by a recovery: better written soon than trusted."""
        if copy.header is None or copy.header.number != number:
            return  # written since
        if not copy.damaged_header:
            copy.damaged_header = True
            self.progress.damaged["copy"] += 1
            log.warning("checkpoint copy damaged", extra={"fields": {"copy": copy.copy}})
        if not self._frozen():
            copy.header = None  # the next checkpoint goes there

    async def _scrub_pages(self, copy: CopyState, number: int, run: list[int]) -> None:
        geometry = self._index.geometry
        size = geometry.block_bytes
        total = (run[-1] - run[0] + 1) * size
        await self._pay(total)
        buffer = await self._arena.acquire(total, 5.0)
        try:
            for page in await self._bad_pages(copy, run, buffer, total):
                if copy.header is None or copy.header.number != number or self._checkpointer.running:
                    return  # the copy is being written: what was read may be half of each
                self.progress.damaged["page"] += 1
                copy.damaged_pages += 1
                log.warning("page of a copy damaged", extra={"fields": {"copy": copy.copy, "page": page}})
                copy.directory["seq"][page] = 0  # what lies there isn't known: written again when the copy is
        finally:
            buffer.release()

    async def _bad_pages(self, copy: CopyState, run: list[int], buffer: Buffer, total: int) -> list[int]:
        geometry = self._index.geometry
        size = geometry.block_bytes
        try:
            await self._device.read(geometry.page_offset(copy.copy, run[0]), buffer.view[:total])
        except ReadFailed:
            return run
        bad = []
        for page in run:
            block = buffer.view[(page - run[0]) * size : (page - run[0] + 1) * size]
            named = copy.directory[page]
            try:
                header = decode_page_header(block, self._superblock.uuid, copy=copy.copy, page=page)
            except Undecodable:
                bad.append(page)
                continue
            if header.seq != named["seq"] or int.from_bytes(block[8:12], "little") != named["checksum"]:
                bad.append(page)
        return bad

    async def _scrub_journal(self) -> None:
        geometry = self._index.geometry
        number = self._journal.tail
        self._bad_blocks = {block for block in self._bad_blocks if block >= number}
        while number <= self._journal.last_block and not self._stopped.is_set():
            number = max(number, self._journal.tail)
            await self._pay(geometry.block_bytes)
            position = number % geometry.journal_blocks
            good = await self._holds(
                geometry.journal_block_offset(number),
                lambda block, position=position: decode_journal_header(  # type: ignore[misc]
                    block, self._superblock.uuid, position=position, journal_blocks=geometry.journal_blocks
                ),
            )
            if not good and number >= self._journal.tail and number not in self._bad_blocks:
                self._bad_blocks.add(number)
                self.progress.damaged["journal"] += 1
                log.warning("journal block damaged", extra={"fields": {"block": number}})
            number += 1

    async def _scrub_superblocks(self) -> None:
        geometry = self._index.geometry
        for place, offset_bytes in enumerate(geometry.superblock_offsets):
            good = await self._holds(offset_bytes, lambda block, place=place: decode_superblock(block, place))  # type: ignore[misc]
            if not good and place not in self._bad_superblocks:
                self._bad_superblocks.add(place)
                self.progress.damaged["superblock"] += 1
                log.warning("superblock damaged", extra={"fields": {"place": place}})
            if not good and not self._frozen():
                await self._write_superblock(place, offset_bytes)
                good = True
            if good:
                self._bad_superblocks.discard(place)

    async def _write_superblock(self, place: int, offset_bytes: int) -> None:
        size = self._index.geometry.block_bytes
        buffer = await self._arena.acquire(size, 5.0)
        try:
            buffer.view[:size] = encode_superblock(self._superblock, place)
            await self._device.write(offset_bytes, buffer.view[:size])
        finally:
            buffer.release()

    async def _holds(self, offset_bytes: int, decode: Callable[[memoryview], object]) -> bool:
        """Read one block and decode it; False if it can't be read or does not decode."""
        size = round_up(1, self._index.geometry.block_bytes)
        buffer = await self._arena.acquire(size, 5.0)
        try:
            await self._device.read(offset_bytes, buffer.view[:size])
            decode(buffer.view[:size])
        except (ReadFailed, Undecodable):
            return False
        finally:
            buffer.release()
        return True
