"""One checkpoint after the other, each into the oldest copy, without stopping requests.

Order on the device (D4), each step after the one before it:

1. the journal is flushed: every row published so far is durable; ``seq`` is the last of them;
2. headers of slots freed before what will be the journal's tail are made void (``tail``, R1);
3. the pages that differ from the copy's directory (``pages``), then catalogue and directory (``streams``), are written;
4. flush; 5. the copy's header; 6. flush; 7. only now the journal's tail moves.

A page may hold rows later than ``seq``; step 4 makes their journal rows and payloads durable before the header can
name the page. Nothing here grows with the number of entries in one step of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from storage.buffers import BufferArena
from storage.checkpoint.copy_state import CopyState, newest_of, next_to_overwrite
from storage.checkpoint.pages import PageWriter
from storage.checkpoint.streams import StreamWriter
from storage.checkpoint.tail import FreedHeaders, NamedNamespaces
from storage.checkpoint.writing import Writing
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.errors import Draining
from storage.index import Index
from storage.journal import Journal, Unit


@dataclass(slots=True)
class CheckpointResult:
    copy: int
    seq: int
    pages: int
    bytes: int
    duration_seconds: float


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a checkpoint is complete up to, and from where on the journal is needed once it is written."""

    seq: int
    journal_block: int
    tail_seq: int
    tail: int


class Checkpointer:
    """Writes checkpoints, one at a time."""

    def __init__(
        self,
        *,
        device: BlockDevice,
        index: Index,
        journal: Journal,
        arena: BufferArena,
        uuid: bytes,
        counters: EngineCounters,
        clock: Callable[[], float],
        copies: list[CopyState],
        number: int,
        wait_timeout_seconds: float,
        renewal: Callable[[list[int]], Unit],
        settle: Callable[[], None],
        step: Callable[[str], None],
    ) -> None:
        self.copies = copies
        self.number = number
        """Number of the newest complete checkpoint."""
        self.last_duration_seconds = 0.0
        self.step = step
        """Told which step comes next: a place for tests to stop the process."""
        self._device = device
        self._index = index
        self._journal = journal
        self._counters = counters
        self._settle = settle
        self._writing = Writing(device, journal, arena, wait_timeout_seconds)
        self._pages = PageWriter(self._writing, index, journal, uuid)
        self._streams = StreamWriter(self._writing, index, journal, uuid, clock)
        self._freed_headers = FreedHeaders(self._writing, index, journal, renewal, settle)
        self._named_namespaces = NamedNamespaces(index, journal)
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def running(self) -> bool:
        return self._lock.locked()

    @property
    def newest(self) -> CopyState | None:
        return newest_of(self.copies)

    def dirty_pages(self) -> int:
        """Pages changed since the newest copy."""
        newest = self.newest
        if newest is None:
            return int((self._index.table.page_seq > 0).sum())
        return len(self._pages.differing(newest))

    async def run(self) -> CheckpointResult:
        """Write one checkpoint. Raises DeviceFailed, Busy; then the copy counts as holding none. Raises Draining."""
        async with self._lock:
            if self._closed:
                raise Draining
            result = await self._write(self._target())
            self.last_duration_seconds = result.duration_seconds
            self._counters.checkpoint_duration.observe(result.duration_seconds)
            self._counters.last_checkpoint_bytes = result.bytes
            return result

    def hurry(self) -> None:
        """No more pauses, also in a checkpoint under way: nobody is served any more."""
        self._writing.is_hurried = True

    async def close(self) -> None:
        """Wait for what a client asked for; no other one begins."""
        self.hurry()
        async with self._lock:
            self._closed = True

    def _target(self) -> CopyState:
        return next_to_overwrite(self.copies)

    async def _write(self, target: CopyState) -> CheckpointResult:
        """The steps in the order on the device."""
        journal, device, loop = self._journal, self._device, asyncio.get_running_loop()
        started = loop.time()
        self.step("checkpoint_begin")
        seq, journal_block = journal.published_seq, journal.last_block + 1
        await journal.flush()
        self.step("checkpoint_void")
        self._settle()
        cut = self._cut(target, seq, journal_block)
        await self._freed_headers.void(cut.tail_seq, self._tail(cut))
        await self._named_namespaces.renew(cut.tail_seq, self._tail(cut))
        self.step("checkpoint_pages")
        target.begin()
        pages = await self._pages.write(target)
        self.step("checkpoint_streams")
        header, stream_bytes = await self._streams.write(
            target, number=self.number + 1, seq=cut.seq, journal_block=cut.journal_block, tail=self._tail(cut)
        )
        self.step("checkpoint_flush")
        await device.flush()
        self.step("checkpoint_header")
        await self._streams.write_header(header)
        self.step("checkpoint_header_flush")
        await device.flush()
        self.step("checkpoint_tail")
        self.number = header.number
        target.complete(header)
        journal.move_tail(self._tail(cut), cut.tail_seq)
        self._index.namespaces.forget_wiped(journal.complete_since)
        self.step("checkpoint_done")
        size = self._index.geometry.block_bytes
        written = pages * size + stream_bytes + size
        return CheckpointResult(target.copy, cut.seq, pages, written, loop.time() - started)

    def _cut(self, target: CopyState, seq: int, journal_block: int) -> _Cut:
        """The copies that stay need the journal from their own cuts on."""
        others = [copy.header for copy in self.copies if copy.header is not None and copy is not target]
        return _Cut(
            seq,
            journal_block,
            tail_seq=min([seq, *(header.seq for header in others)]),
            tail=min([journal_block, *(header.journal_block for header in others)]),
        )

    def _tail(self, cut: _Cut) -> int:
        """The journal's tail once this checkpoint is written. A compaction may have moved it further meanwhile."""
        return max(cut.tail, self._journal.tail)
