"""Checkpoints: the slot table and the catalogue written into the oldest copy, without stopping requests.

Order on the device (D4), each step after the one before it:

1. the journal is flushed: every row published so far is durable; ``seq`` is the last of them;
2. headers of slots freed before what will be the journal's tail are made void (R1);
3. the pages that differ from the copy's directory, then catalogue and directory, are written;
4. flush; 5. the copy's header; 6. flush; 7. only now the journal's tail moves.

Pages are copied while writers go on, so a page may hold rows later than ``seq``; step 4 makes their journal rows and
payloads durable before the header can name the page.

Nothing here grows with the number of entries in one step of the loop: pages, streams, freed slots and namespaces are
gone through some at a time. Nor does a checkpoint crowd out requests at the device: it has few and short writes under
way, with a pause between them, as long as the journal has room enough to wait for its end (L2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage.buffers import Buffer, BufferArena
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.errors import Draining
from storage.format.catalogue import (
    CatalogueRecord,
    CounterRecord,
    NamespaceWipedRecord,
    SlabRecord,
    SlotFailuresRecord,
    encode_record,
)
from storage.format.checkpoint_copy import (
    CATALOGUE_MAGIC,
    DIRECTORY_DTYPE,
    DIRECTORY_MAGIC,
    CopyHeader,
    Directory,
    encode_copy_header,
    encode_stream,
    stream_checksum,
    stream_room,
)
from storage.format.geometry import NO_CLASS
from storage.format.page import PAGE_DTYPE, PageHeaders, seal_pages
from storage.index import Index
from storage.journal import Journal, Unit
from storage.namespaces import namespace_record
from storage.turns import Turns

log = logging.getLogger("rawblockd.storage")

LOOKED_AT_ONCE = 512
RENEWED_AT_ONCE = 64
"""Slots and namespaces looked at between two turns of the loop: some 1 ms."""
SEARCHED_AT_ONCE = 1 << 20
"""Rows among which freed ones are searched between two turns of the loop: some 0.1 ms."""
ENCODED_AT_ONCE = 128
"""Records of the catalogue made between two turns of the loop: some 0.5 ms."""

VOIDS_AT_ONCE = 32
"""Headers made void in parallel: the queue depth from which 4 KiB writes gain nothing more."""
VOIDS_GENTLY = 8

WRITE_BYTES = 256 * 1024
"""Of pages and streams copied, sealed and written between two turns of the loop: some 0.15 ms. A read that meets such
a write at the device waits for no more than that."""
WRITES_AT_ONCE = 2
"""Writes of pages under way: with them a device of 1.6 GB/s is busy all the time, and its queue is short."""
PAUSE_SECONDS = 0.002
"""After each ``WRITE_BYTES``: a checkpoint takes a tenth of the loop's time instead of half of it, and goes on at
100 MB/s, which is a million entries in 0.8 s."""
HURRY_RATIO = 0.5
"""The journal's fill from which a checkpoint makes no pauses."""


@dataclass(slots=True)
class CopyState:
    """What is known of a copy on the device. ``header`` None: it holds no complete checkpoint.

    ``directory`` says what lies in its pages for certain: seq 0 where that isn't known.
    """

    copy: int
    header: CopyHeader | None
    directory: Directory
    damaged_header: bool = False
    damaged_pages: int = 0
    """What background verification found since the copy was written last."""

    @property
    def damaged(self) -> bool:
        return self.damaged_header or self.damaged_pages > 0


@dataclass(slots=True)
class CheckpointResult:
    copy: int
    seq: int
    pages: int
    bytes: int
    duration_seconds: float


@dataclass(slots=True)
class Checkpointer:
    """Writes checkpoints, one at a time."""

    device: BlockDevice
    index: Index
    journal: Journal
    arena: BufferArena
    uuid: bytes
    counters: EngineCounters
    clock: Callable[[], float]
    copies: list[CopyState]
    number: int
    """Number of the newest complete checkpoint."""
    wait_timeout_seconds: float
    renewal: Callable[[list[int]], Unit]
    """Makes a unit that journals rows once more, unchanged."""
    settle: Callable[[], None]
    """Lets go what was in limbo only for want of a flush."""
    last_duration_seconds: float = 0.0
    step: Callable[[str], None] = lambda _: None
    """Told which step comes next: a place for tests to stop the process."""
    is_hurried: bool = False
    """Set where nobody is served any more: no pauses then."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False
    _renewed_in: npt.NDArray[np.uint64] | None = None
    """Journal block in which a row was journaled once more, per row; made when the first one is."""
    _named_in: dict[tuple[int, int], int] = field(default_factory=dict)
    """The same of the records of namespaces, by id and seq."""

    @property
    def running(self) -> bool:
        return self._lock.locked()

    @property
    def newest(self) -> CopyState | None:
        valid = [c for c in self.copies if c.header is not None]
        return max(valid, key=_number) if valid else None

    def dirty_pages(self) -> int:
        """Pages changed since the newest copy."""
        newest = self.newest
        if newest is None:
            return int((self.index.table.page_seq > 0).sum())
        return len(self._pages_to_write(newest))

    def _target(self) -> CopyState:
        """The copy to overwrite: one that holds no checkpoint, else the oldest; never the newest (D4)."""
        return min(self.copies, key=_number)

    def _pages_to_write(self, copy: CopyState) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.index.table.page_seq > copy.directory["seq"])

    async def run(self) -> CheckpointResult:
        """Write one checkpoint. Raises DeviceFailed, Busy; then the copy counts as holding none. Raises Draining."""
        async with self._lock:
            if self._closed:
                raise Draining
            loop = asyncio.get_running_loop()
            started = loop.time()
            target = self._target()
            self.step("checkpoint_begin")
            seq, block = self.journal.published_seq, self.journal.last_block + 1
            await self.journal.flush()
            self.step("checkpoint_void")
            self.settle()
            others = [c.header for c in self.copies if c.header is not None and c is not target]
            tail = min([block, *(header.journal_block for header in others)])
            tail_seq = min([seq, *(header.seq for header in others)])
            await self._void_freed_headers(tail_seq, max(tail, self.journal.tail))
            await self._renew_namespaces(tail_seq, max(tail, self.journal.tail))
            self.step("checkpoint_pages")
            target.header = None
            written = await self._write_pages(target)
            self.step("checkpoint_streams")
            header, stream_bytes = await self._write_streams(target, seq, block, max(tail, self.journal.tail))
            self.step("checkpoint_flush")
            await self.device.flush()
            self.step("checkpoint_header")
            await self._write_header(target, header)
            self.step("checkpoint_header_flush")
            await self.device.flush()
            self.step("checkpoint_tail")
            self.number = header.number
            target.header = header
            target.damaged_header, target.damaged_pages = False, 0
            self.journal.move_tail(max(tail, self.journal.tail), tail_seq)
            self.index.namespaces.forget_wiped(self.journal.complete_since)
            self.step("checkpoint_done")
            size = self.index.geometry.block_bytes
            duration = self.last_duration_seconds = loop.time() - started
            result = CheckpointResult(target.copy, seq, written, written * size + stream_bytes + size, duration)
            self.counters.checkpoint_duration.observe(duration)
            self.counters.last_checkpoint_bytes = result.bytes
            return result

    async def close(self) -> None:
        """Wait for what a client asked for; no other one begins."""
        self.is_hurried = True
        async with self._lock:
            self._closed = True

    async def _renew_namespaces(self, tail_seq: int, tail: int) -> None:
        """The journal names every namespace, and every wiped one of which there still are slots: where all copies are
        lost, their record headers alone would not tell which of two ids has a name, and which is dead (R1)."""
        named = {(n.namespace_id, n.seq): n for n in self.index.namespaces.by_id.values()}
        dying = {(record.namespace_id, record.seq): record for record in self._dying_records()}
        self._named_in = {
            key: block for key, block in self._named_in.items() if block >= tail and (key in named or key in dying)
        }
        due = [key for key in (*named, *dying) if key[1] <= tail_seq and key not in self._named_in]
        for begin in range(0, len(due), RENEWED_AT_ONCE):
            part = due[begin : begin + RENEWED_AT_ONCE]
            records = [dying[key] if key in dying else namespace_record(named[key]) for key in part]
            units = [Unit(records=[record], privileged=True, makes_room=True) for record in records]
            for record, done in [(r, self.journal.join(unit)) for r, unit in zip(records, units, strict=True)]:
                self._named_in[record.namespace_id, record.seq] = await done

    # -- headers of freed slots -----------------------------------------------------------------------------------

    async def _void_freed_headers(self, tail_seq: int, tail: int) -> None:
        """Before freeing rows up to ``tail_seq`` leave the journal, their slots' headers are made void (R1).

        A slot in limbo (a reader holds it) or in flight (a put has it and may yet leave it as it is) keeps its header;
        its freeing row is journaled once more instead, unless it stands in block ``tail`` or behind it already.
        """
        if not len(self.index.slots.freed_unvoided):
            return
        size = self.index.geometry.block_bytes
        zeros = await self.arena.acquire(size, self.wait_timeout_seconds)
        try:
            zeros.view[:size] = bytes(size)
            for part in self._due(tail_seq):
                await self._renew_used(part, tail_seq, tail)
                idle = self._idle(part, tail_seq)
                depth = VOIDS_GENTLY if self._has_time else VOIDS_AT_ONCE
                for first in range(0, len(idle), depth):
                    batch = idle[first : first + depth]
                    await self._renew_used(batch, tail_seq, tail)  # what was taken meanwhile
                    await self._void(self._idle(batch, tail_seq), zeros)
                await asyncio.sleep(0)
        finally:
            zeros.release()

    def _due(self, tail_seq: int) -> Iterator[list[int]]:
        """Freed slots whose freeing rows are about to leave the journal, some at a time, perhaps none.

        What is freed while others are being made void has a later seq than ``tail_seq``.
        """
        seqs = self.index.table.lines["seq"]
        for begin in range(0, len(seqs), SEARCHED_AT_ONCE):
            row_ids = self.index.slots.freed_unvoided.between(begin, begin + SEARCHED_AT_ONCE)
            yield []
            for first in range(0, len(row_ids), LOOKED_AT_ONCE):
                part = row_ids[first : first + LOOKED_AT_ONCE]
                yield part[seqs[part] <= tail_seq].tolist()

    def _still_due(self, row_ids: list[int], tail_seq: int) -> list[int]:
        """Meanwhile a slot may have got a record of its own, or even have been freed once more."""
        unvoided, table = self.index.slots.freed_unvoided, self.index.table
        return [r for r in row_ids if r in unvoided and table.row(r).seq <= tail_seq]

    def _idle(self, row_ids: list[int], tail_seq: int) -> list[int]:
        return sorted(r for r in self._still_due(row_ids, tail_seq) if not self.index.slots.is_in_use(r))

    async def _renew_used(self, row_ids: list[int], tail_seq: int, tail: int) -> None:
        """Journal the freeing rows of slots in use once more. Afterwards, in the same step, none is without."""
        step = self.index.geometry.rows_per_journal_block
        while in_use := [r for r in self._still_due(row_ids, tail_seq) if self._must_renew(r, tail)]:
            units = [self.renewal(sorted(in_use)[begin : begin + step]) for begin in range(0, len(in_use), step)]
            for unit, done in [(unit, self.journal.join(unit)) for unit in units]:
                block = await done
                for row_id, _ in unit.rows:
                    self._renewals()[row_id] = block

    def _must_renew(self, row_id: int, tail: int) -> bool:
        return self.index.slots.is_in_use(row_id) and self._renewals()[row_id] < tail

    def _renewals(self) -> npt.NDArray[np.uint64]:
        if self._renewed_in is None:
            self._renewed_in = np.zeros(len(self.index.table.lines), dtype=np.uint64)
        return self._renewed_in

    async def _void(self, row_ids: list[int], zeros: Buffer) -> None:
        slots, table, size = self.index.slots, self.index.table, self.index.geometry.block_bytes
        if not row_ids:
            return
        slots.begin_voiding(row_ids)
        writes = [self.device.write(table.slot_offset(r), zeros.view[:size]) for r in row_ids]
        for write in writes:
            zeros.hold_for(write)
        results = await asyncio.gather(*writes, return_exceptions=True)
        slots.end_voiding(row_ids)
        self.settle()
        slots.freed_unvoided.difference_update(r for r, e in zip(row_ids, results, strict=True) if e is None)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    # -- pages ----------------------------------------------------------------------------------------------------

    @property
    def _has_time(self) -> bool:
        return not self.is_hurried and self.journal.used_ratio < HURRY_RATIO

    async def _write_pages(self, target: CopyState) -> int:
        """Write the pages that differ, neighbours together; returns how many."""
        geometry = self.index.geometry
        pages = self._pages_to_write(target)
        waiting: list[asyncio.Future[None]] = []
        since_pause = 0
        complete = False
        try:
            for first, count in _runs(pages, max(1, WRITE_BYTES // geometry.block_bytes)):
                size = count * geometry.block_bytes
                if since_pause + size > WRITE_BYTES and self._has_time:
                    since_pause = 0
                    await asyncio.sleep(PAUSE_SECONDS)
                since_pause += size
                buffer = await self.arena.acquire(size, self.wait_timeout_seconds)
                self._copy_pages(buffer.view[:size], target, first, count)
                write = self.device.write(geometry.page_offset(target.copy, first), buffer.view[:size])
                buffer.hold_for(write)
                buffer.release()
                waiting.append(write)
                if len(waiting) >= WRITES_AT_ONCE:
                    await waiting.pop(0)
            while waiting:
                await waiting.pop(0)
            complete = True
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)
            if not complete:
                target.directory["seq"][pages] = 0  # what they hold now isn't known: written again next time
        return len(pages)

    def _copy_pages(self, out: memoryview, target: CopyState, first: int, count: int) -> None:
        """Copy neighbouring pages as they are now; their seq is that of the last row published."""
        geometry, table = self.index.geometry, self.index.table
        size = geometry.block_bytes
        out[:] = table.view[first * size : (first + count) * size]
        headers: PageHeaders = np.zeros(count, dtype=PAGE_DTYPE)
        pages = np.arange(first, first + count)
        slabs, pages_in_slab = np.divmod(pages, geometry.pages_per_slab)
        headers["copy"], headers["seq"] = target.copy, self.journal.published_seq
        headers["page"], headers["slab"] = pages, slabs
        headers["slot_class"], headers["generation"] = table.slab_class[slabs], table.slab_generation[slabs]
        headers["first_slot"] = pages_in_slab * geometry.rows_per_page
        entries = target.directory[first : first + count]
        entries["checksum"], entries["reserved"] = seal_pages(out, self.uuid, headers), 0
        entries["seq"] = self.journal.published_seq

    # -- catalogue, directory, header -----------------------------------------------------------------------------

    async def _write_streams(self, target: CopyState, seq: int, block: int, tail: int) -> tuple[CopyHeader, int]:
        geometry = self.index.geometry
        number = self.number + 1
        content = await self._encoded_catalogue()
        assert -(-len(content) // stream_room(geometry.block_bytes)) <= geometry.catalogue_blocks
        directory_checksum, directory_bytes = await self._write_stream(
            DIRECTORY_MAGIC, target.directory.data.cast("B"), geometry.directory_offset(target.copy), target, number
        )
        catalogue_checksum, catalogue_bytes = await self._write_stream(
            CATALOGUE_MAGIC, memoryview(content), geometry.catalogue_offset(target.copy), target, number
        )
        header = CopyHeader(
            copy=target.copy,
            number=number,
            seq=seq,
            journal_block=block,
            start_count=self.journal.start_count,
            pages=geometry.pages,
            directory_checksum=directory_checksum,
            catalogue_checksum=catalogue_checksum,
            catalogue_bytes=len(content),
            written_ms=int(self.clock() * 1000),
            entries=self.index.keys.entries,
            tail=tail,
        )
        return header, catalogue_bytes + directory_bytes

    async def _write_stream(
        self, magic: bytes, content: memoryview, offset_bytes: int, target: CopyState, number: int
    ) -> tuple[int, int]:
        """Write a stream, some blocks at a time; its checksum, and how many bytes it takes."""
        size = self.index.geometry.block_bytes
        at_once = max(1, WRITE_BYTES // size)
        step = at_once * stream_room(size)
        checksum = written = 0
        for begin in range(0, len(content), step):
            blocks = encode_stream(
                magic,
                content[begin : begin + step],
                uuid=self.uuid,
                copy=target.copy,
                number=number,
                block_bytes=size,
                first_index=begin // step * at_once,
            )
            checksum = stream_checksum(blocks, checksum)
            await self._write_bytes(offset_bytes + written, blocks)
            written += len(blocks)
            if self._has_time and begin + step < len(content):
                await asyncio.sleep(PAUSE_SECONDS)
        return checksum, written

    async def _encoded_catalogue(self) -> bytes:
        """The catalogue's records. Those made later may come from a later moment, which the journal repeats, as with
        the pages."""
        turns = Turns(ENCODED_AT_ONCE)
        encoded: list[bytes] = []
        for record in self.catalogue():
            encoded.append(encode_record(record))
            await turns.after()
        return b"".join(encoded)

    def catalogue(self) -> Iterator[CatalogueRecord]:
        """The catalogue as records, each with the seq it came into force. Things may change between two of them."""
        table, namespaces = self.index.table, self.index.namespaces
        yield CounterRecord(0, self.journal.start_count, namespaces.next_id)
        for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
            slot_class, generation = int(table.slab_class[slab]), int(table.slab_generation[slab])
            yield SlabRecord(int(table.slab_seq[slab]), slab, slot_class, generation)
        yield from (namespace_record(n) for n in list(namespaces.by_id.values()))
        yield from self._dying_records()
        for (slab, slot), failures in list(self.index.evidence.failures.items()):
            yield SlotFailuresRecord(0, slab, slot, failures)

    def _dying_records(self) -> list[NamespaceWipedRecord]:
        """The wipes of namespaces that still have rows."""
        namespaces = self.index.namespaces
        return [NamespaceWipedRecord(namespaces.wiped[i], i) for i in sorted(namespaces.dying)]

    async def _write_header(self, target: CopyState, header: CopyHeader) -> None:
        geometry = self.index.geometry
        await self._write_bytes(
            geometry.copy_offset(target.copy), encode_copy_header(header, self.uuid, geometry.block_bytes)
        )

    async def _write_bytes(self, offset_bytes: int, content: bytes) -> None:
        """Write up to ``WRITE_BYTES``, or one block, whichever is more."""
        buffer = await self.arena.acquire(len(content), self.wait_timeout_seconds)
        try:
            buffer.view[: len(content)] = content
            await self.device.write(offset_bytes, buffer.view[: len(content)])
        finally:
            buffer.release()


def empty_directory(pages: int) -> Directory:
    """A directory that knows of no page."""
    return np.zeros(pages, dtype=DIRECTORY_DTYPE)


def _number(copy: CopyState) -> int:
    return copy.header.number if copy.header is not None else 0


def _runs(pages: npt.NDArray[np.int64], longest: int) -> Iterator[tuple[int, int]]:
    """Neighbouring pages together, at most ``longest``: the first one, and how many."""
    starts = np.flatnonzero(np.diff(pages, prepend=-2, append=-2) != 1).tolist()
    for start, end in pairwise(starts):
        first = int(pages[start])
        for begin in range(0, end - start, longest):
            yield first + begin, min(longest, end - start - begin)
