"""Checkpoints: the slot table and the catalogue written into the oldest copy, without stopping requests.

Order on the device (D4), each step after the one before it:

1. the journal is flushed: every row published so far is durable; ``seq`` is the last of them;
2. headers of slots freed before what will be the journal's tail are made void (R1);
3. the pages that differ from the copy's directory, then catalogue and directory, are written;
4. flush; 5. the copy's header; 6. flush; 7. only now the journal's tail moves.

Pages are copied while writers go on, so a page may hold rows later than ``seq``; step 4 makes their journal rows and
payloads durable before the header can name the page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.buffers import Buffer, BufferArena
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.format.catalogue import (
    CatalogueRecord,
    CounterRecord,
    NamespaceRecord,
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
)
from storage.format.geometry import NO_CLASS
from storage.format.layout import round_up
from storage.format.page import PageHeader, seal_page
from storage.index import Index
from storage.journal import Journal, Unit
from storage.limits import TRANSFER_MAX_BYTES
from storage.namespaces import namespace_record

log = logging.getLogger("rawblockd.storage")

LOOKED_AT_ONCE = 1024
RENEWED_AT_ONCE = 64
"""Slots and namespaces looked at between two turns of the loop: some 2 ms."""

VOIDS_AT_ONCE = 32
"""Headers made void in parallel: the queue depth from which 4 KiB writes gain nothing more."""


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
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
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

    def _pages_to_write(self, copy: CopyState) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.flatnonzero(self.index.table.page_seq > copy.directory["seq"])

    async def run(self) -> CheckpointResult:
        """Write one checkpoint. Raises DeviceFailed, Busy; then the copy counts as holding none."""
        async with self._lock:
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

    async def _renew_namespaces(self, tail_seq: int, tail: int) -> None:
        """The journal names every namespace, and every wiped one of which there still are slots: where all copies are
        lost, their record headers alone would not tell which of two ids has a name, and which is dead (R1)."""
        namespaces = self.index.namespaces.by_id.values()
        records: list[NamespaceRecord | NamespaceWipedRecord] = [*map(namespace_record, namespaces)]
        records += self._dying_records()
        named = {(record.namespace_id, record.seq) for record in records}
        self._named_in = {key: block for key, block in self._named_in.items() if key in named and block >= tail}
        due = [r for r in records if r.seq <= tail_seq and (r.namespace_id, r.seq) not in self._named_in]
        for begin in range(0, len(due), RENEWED_AT_ONCE):
            part = due[begin : begin + RENEWED_AT_ONCE]
            units = [Unit(records=[record], privileged=True, makes_room=True) for record in part]
            for record, done in [(r, self.journal.join(unit)) for r, unit in zip(part, units, strict=True)]:
                self._named_in[record.namespace_id, record.seq] = await done

    # -- headers of freed slots -----------------------------------------------------------------------------------

    async def _void_freed_headers(self, tail_seq: int, tail: int) -> None:
        """Before freeing rows up to ``tail_seq`` leave the journal, their slots' headers are made void (R1).

        A slot in limbo (a reader holds it) or in flight (a put has it and may yet leave it as it is) keeps its header;
        its freeing row is journaled once more instead, unless it stands in block ``tail`` or behind it already.
        """
        due = self._due(tail_seq)
        if not due:
            return
        size = self.index.geometry.block_bytes
        zeros = await self.arena.acquire(size, self.wait_timeout_seconds)
        try:
            zeros.view[:size] = bytes(size)
            for begin in range(0, len(due), LOOKED_AT_ONCE):
                part = due[begin : begin + LOOKED_AT_ONCE]
                await self._renew_used(part, tail_seq, tail)
                idle = self._idle(part, tail_seq)
                for first in range(0, len(idle), VOIDS_AT_ONCE):
                    batch = idle[first : first + VOIDS_AT_ONCE]
                    await self._renew_used(batch, tail_seq, tail)  # what was taken meanwhile
                    await self._void(self._idle(batch, tail_seq), zeros)
                await asyncio.sleep(0)
        finally:
            zeros.release()

    def _due(self, tail_seq: int) -> list[int]:
        unvoided = self.index.slots.freed_unvoided
        row_ids = np.fromiter(unvoided, dtype=np.int64, count=len(unvoided))
        due: list[int] = row_ids[self.index.table.lines["seq"][row_ids] <= tail_seq].tolist()
        return due

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

    async def _write_pages(self, target: CopyState) -> int:
        """Write the pages that differ, in runs of neighbours, two transfers at a time; returns how many."""
        geometry = self.index.geometry
        pages = self._pages_to_write(target)
        per_transfer = TRANSFER_MAX_BYTES // geometry.block_bytes
        waiting: list[asyncio.Future[None]] = []
        complete = False
        try:
            for run in _runs(pages, per_transfer):
                size = len(run) * geometry.block_bytes
                buffer = await self.arena.acquire(size, self.wait_timeout_seconds)
                self._copy_pages(buffer.view, target, run)
                write = self.device.write(geometry.page_offset(target.copy, run[0]), buffer.view[:size])
                buffer.hold_for(write)
                buffer.release()
                waiting.append(write)
                if len(waiting) > 1:
                    await waiting.pop(0)
            while waiting:
                await waiting.pop(0)
            complete = True
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)
            if not complete:
                target.directory["seq"][pages] = 0  # what they hold now isn't known: written again next time
        return len(pages)

    def _copy_pages(self, out: memoryview, target: CopyState, run: list[int]) -> None:
        """Copy pages as they are now; their seq is that of the last row published."""
        geometry, table = self.index.geometry, self.index.table
        size = geometry.block_bytes
        seq = self.journal.published_seq
        out[: len(run) * size] = table.view[run[0] * size : (run[-1] + 1) * size]
        for position, page in enumerate(run):
            slab, page_in_slab = divmod(page, geometry.pages_per_slab)
            header = PageHeader(
                copy=target.copy,
                slot_class=int(table.slab_class[slab]),
                page=page,
                slab=slab,
                generation=int(table.slab_generation[slab]),
                first_slot=page_in_slab * geometry.rows_per_page,
                seq=seq,
            )
            checksum = seal_page(out[position * size : (position + 1) * size], self.uuid, header)
            target.directory[page] = (seq, checksum, 0)

    # -- catalogue, directory, header -----------------------------------------------------------------------------

    async def _write_streams(self, target: CopyState, seq: int, block: int, tail: int) -> tuple[CopyHeader, int]:
        geometry = self.index.geometry
        number = self.number + 1
        content = b"".join(encode_record(record) for record in self.catalogue())
        catalogue = encode_stream(
            CATALOGUE_MAGIC, content, uuid=self.uuid, copy=target.copy, number=number, block_bytes=geometry.block_bytes
        )
        assert len(catalogue) <= geometry.catalogue_blocks * geometry.block_bytes
        directory = encode_stream(
            DIRECTORY_MAGIC,
            target.directory.tobytes(),
            uuid=self.uuid,
            copy=target.copy,
            number=number,
            block_bytes=geometry.block_bytes,
        )
        await self._write_bytes(geometry.directory_offset(target.copy), directory)
        await self._write_bytes(geometry.catalogue_offset(target.copy), catalogue)
        header = CopyHeader(
            copy=target.copy,
            number=number,
            seq=seq,
            journal_block=block,
            start_count=self.journal.start_count,
            pages=geometry.pages,
            directory_checksum=stream_checksum(directory),
            catalogue_checksum=stream_checksum(catalogue),
            catalogue_bytes=len(content),
            written_ms=int(self.clock() * 1000),
            entries=self.index.keys.entries,
            tail=tail,
        )
        return header, len(catalogue) + len(directory)

    def catalogue(self) -> list[CatalogueRecord]:
        """The catalogue as records, each with the seq it came into force."""
        table, namespaces = self.index.table, self.index.namespaces
        records: list[CatalogueRecord] = [CounterRecord(0, self.journal.start_count, namespaces.next_id)]
        for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
            slot_class, generation = int(table.slab_class[slab]), int(table.slab_generation[slab])
            records.append(SlabRecord(int(table.slab_seq[slab]), slab, slot_class, generation))
        records += [namespace_record(n) for n in namespaces.by_id.values()]
        records += self._dying_records()
        records += [
            SlotFailuresRecord(0, slab, slot, failures)
            for (slab, slot), failures in self.index.evidence.failures.items()
        ]
        return records

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
        view = memoryview(content)
        size = min(TRANSFER_MAX_BYTES, round_up(len(view), self.index.geometry.block_bytes))
        buffer = await self.arena.acquire(size, self.wait_timeout_seconds)
        try:
            for begin in range(0, len(view), size):
                part = view[begin : begin + size]
                buffer.view[: len(part)] = part
                await self.device.write(offset_bytes + begin, buffer.view[: len(part)])
        finally:
            buffer.release()


def empty_directory(pages: int) -> Directory:
    """A directory that knows of no page."""
    return np.zeros(pages, dtype=DIRECTORY_DTYPE)


def _number(copy: CopyState) -> int:
    return copy.header.number if copy.header is not None else 0


def _runs(pages: np.ndarray[tuple[int], np.dtype[np.int64]], longest: int) -> list[list[int]]:
    """Neighbouring pages together, at most ``longest`` in a run."""
    runs: list[list[int]] = []
    for page in pages.tolist():
        if runs and runs[-1][-1] + 1 == page and len(runs[-1]) < longest:
            runs[-1].append(page)
        else:
            runs.append([page])
    return runs
