"""The journal's writer: units of rows, grouped into commits, written block after block into the ring.

A unit is what must become durable together; it lies in one block. All units that wait share one write (group commit).
One write is under way at a time, so block n + 1 is never issued before block n is written; a failed write is retried
at the same block, and if it stays failed, everything queued is undone and the journal is closed until a write succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from storage.buffers import Buffer
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import Durability
from storage.errors import DeviceFailed, JournalUnavailable
from storage.format.catalogue import CatalogueRecord, encode_record
from storage.format.geometry import Geometry
from storage.format.journal_block import JOURNAL, encode_journal_block
from storage.format.row import ROW_BYTES, Row
from storage.shared_tasks import heard

log = logging.getLogger("rawblockd.storage")

_JOURNAL = Durability.JOURNAL

WRITE_RETRIES = 3
RETRY_PAUSE_SECONDS = 0.05
REOPEN_SECONDS = 1.0
FULL = "the journal is full"
GROUP_BYTES = 256 * 1024
"""Largest single journal write: 64 blocks of 4 KiB carry 3,968 rows, more than clients can have in flight."""
PUBLISHED_AT_ONCE = 4
"""Blocks whose rows become the table's between two turns of the loop: up to 248 rows, some 2 ms."""
QUEUE_MAX_ROWS = 65536
"""Rows that may wait; beyond it mutations are refused rather than memory used."""
RESERVE_BLOCKS = 128
"""Blocks that only the engine's own bookkeeping may use, so that partial recovery can always be recorded and ended."""


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Where the journal goes on after a recovery."""

    last_block: int = 0
    last_checksum: int = 0
    tail: int = 1
    complete_since: int = 0
    flushed_through: int = 0
    next_seq: int = 1
    start_count: int = 1


class Unit:
    """Rows and records that become durable together. ``rows`` are (row id, encoded row)."""

    __slots__ = (
        "_shared",
        "_waiting",
        "after",
        "digest",
        "durability",
        "entries",
        "key",
        "last_seq",
        "makes_room",
        "namespace_id",
        "outcome",
        "privileged",
        "records",
        "rows",
        "size_bytes",
        "slot_bytes",
        "visible",
    )

    def __init__(
        self,
        rows: list[tuple[int, bytes]] | None = None,
        records: Sequence[CatalogueRecord] = (),
        *,
        durability: Durability = _JOURNAL,
        digest: bytes | None = None,
        key: bytes = b"",
        privileged: bool = False,
        makes_room: bool = False,
    ) -> None:
        self.rows = [] if rows is None else rows
        self.records = records
        self.durability = durability
        self.last_seq = 0
        self.digest = digest
        """The key the unit changes, if it changes one."""
        self.key = key
        """The same key in full, where whoever joined the unit knows it: for the event."""
        self.after: tuple[int, Row] | None = None
        """Row id and row that the key will have; None: it will be gone."""
        self.visible: tuple[int, Row] | None = None
        """What readers see meanwhile instead of the table, if a put at level ``none`` is waiting."""
        self.namespace_id = self.entries = self.slot_bytes = 0
        """By how much the unit changes the usage of the key's namespace."""
        self.privileged = privileged
        """May use the reserve."""
        self.makes_room = makes_room
        """Says again what the journal says already, so that its tail can move: written ahead of what waits for room."""
        self.size_bytes = 0
        """What the unit takes of a block; known from when it joins."""
        self.outcome: int | JournalUnavailable | None = None
        """Once written the number of the block the unit lies in, once undone why."""
        self._shared: asyncio.Future[int] | None = None
        self._waiting: list[Callable[[Unit], None]] | None = None

    def add(self, record: CatalogueRecord) -> None:
        self.records = [*self.records, record]

    @property
    def done(self) -> asyncio.Future[int]:
        """The outcome, for all who ask. Made when somebody does: most units have one waiter, or none."""
        if self._shared is None or self._shared.cancelled():  # by a task that awaited it and was cancelled
            self._shared = self.reached()
        return self._shared

    def reached(self) -> asyncio.Future[int]:
        """The outcome, for the caller alone, who may be cancelled as he waits: half the price of shielding ``done``."""
        future = asyncio.get_running_loop().create_future()
        if self.outcome is not None:
            _settle(future, self)
        else:
            self.when_settled(partial(_settle, future))
        return future

    def when_settled(self, told: Callable[[Unit], None]) -> None:
        """Call ``told`` with the unit once it is settled, in a turn of the loop of its own: no future for it."""
        if self._waiting is None:
            self._waiting = [told]
        else:
            self._waiting.append(told)

    def settle(self, outcome: int | JournalUnavailable) -> None:
        """Note the outcome, and tell it to all who wait for it."""
        self.outcome = outcome
        self.tell()

    def tell(self) -> None:
        """Tell the outcome, which is known, to all who wait for it."""
        while self._waiting:
            told = self._waiting.pop(0)
            told(self)


def _settle(future: asyncio.Future[int], unit: Unit) -> None:
    outcome = unit.outcome
    assert outcome is not None
    if future.done():
        return  # the waiter left
    if isinstance(outcome, int):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
        future.exception()  # a waiter that leaves later does not make this an unretrieved error


class Journal:
    def __init__(
        self,
        device: BlockDevice,
        geometry: Geometry,
        uuid: bytes,
        position: JournalPosition,
        buffer: Buffer,
        counters: EngineCounters,
        *,
        publish: Callable[[Unit, int], None],
        undo: Callable[[list[Unit]], None],
        need_room: Callable[[], None],
        reopened: Callable[[], None],
        wait_timeout_seconds: float,
    ) -> None:
        self._device = device
        self._geometry = geometry
        self._block_room = geometry.block_bytes - JOURNAL.size_bytes
        self._uuid = uuid
        self._buffer = buffer
        self._counters = counters
        self._publish = publish
        self._undo = undo
        self._need_room = need_room
        """Told whenever the journal grew or is short of room; whoever makes room decides whether it is time."""
        self._reopened = reopened
        self._wait_timeout_seconds = wait_timeout_seconds
        self.last_block = position.last_block
        self._last_checksum = position.last_checksum
        self.tail = position.tail
        self.complete_since = position.complete_since
        self.flushed_through = position.flushed_through
        self.start_count = position.start_count
        self._next_seq = position.next_seq
        self.published_seq = position.next_seq - 1
        self.unavailable = ""
        """Why no row can be taken now; empty while the journal works."""
        self._is_full = False
        """It is unavailable for want of room alone: what makes room is written all the same, into the reserve."""
        self.marked_through = position.flushed_through
        """Highest ``flushed_through`` that a written block carries."""
        self._encoded_through = position.flushed_through
        """The one in the blocks encoded last: a flush that ends while they are being written is not in them."""
        self.content_through = position.last_block
        """Highest block that carries rows or records."""
        self._queue: deque[Unit] = deque()
        self._ahead: deque[Unit] = deque()
        """Units that make room. Their rows keep their seqs, so their place in the order of the journal is free."""
        self._queued_rows = 0
        self._settled: deque[Unit] = deque()
        """Units whose outcome is known, and of which those who wait are to be told."""
        self._telling = False
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.Task[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._reopener: asyncio.Task[None] | None = None
        self._tail_moved: asyncio.Future[None] | None = None
        self._closed = False
        self.step: Callable[[str], None] = lambda _: None
        """Told what was done: a place for tests to stop the process."""

    # -- joining --------------------------------------------------------------------------------------------------

    def draw_seq(self) -> int:
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def check_available(self) -> None:
        """Raises JournalUnavailable if a row joined now would be refused."""
        if self._closed:
            raise JournalUnavailable("the engine stops")
        if self.unavailable:
            raise JournalUnavailable(self.unavailable)
        if self._queued_rows >= QUEUE_MAX_ROWS:
            raise JournalUnavailable(f"{self._queued_rows} rows wait")

    def join(self, unit: Unit) -> asyncio.Future[int]:
        """As ``queue``; returns the unit's ``done``."""
        self.queue(unit)
        return unit.done

    def queue(self, unit: Unit) -> None:
        """Queue a unit; its rows' seqs were drawn in this same step. Raises JournalUnavailable: nothing is queued."""
        if not ((self._is_full or self._closed) and unit.makes_room):
            self.check_available()
        rows = len(unit.rows)
        unit.size_bytes = rows * ROW_BYTES
        if unit.records:
            unit.size_bytes += sum(len(encode_record(record)) for record in unit.records)
        assert unit.size_bytes <= self._block_room, "a unit lies in one block"
        (self._ahead if unit.makes_room else self._queue).append(unit)
        self._queued_rows += rows
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_queue())
        elif unit.makes_room:
            self._stir()

    @property
    def idle(self) -> bool:
        return self._writer is None and not self._queue and not self._ahead

    @property
    def used_blocks(self) -> int:
        return self.last_block + 1 - self.tail

    @property
    def used_ratio(self) -> float:
        return self.used_blocks / self._geometry.journal_blocks

    # -- writing --------------------------------------------------------------------------------------------------

    async def _write_queue(self) -> None:
        try:
            while self._ahead or self._queue:
                await self._write_blocks(self._pack(self._ahead or self._queue))
        finally:
            self._writer = None

    async def _write_blocks(self, blocks: list[list[Unit]], behind: list[Unit] | None = None) -> None:
        """Write one group and publish it; if that fails, undo it, the group ``behind`` it and all that is queued."""
        units = [unit for block in blocks for unit in block]
        if not await self._room(len(blocks), units):
            if not self.unavailable:  # else it was undone with the group that was to make room
                self._fail(FULL, units + (behind or []))
                self._is_full = True
            elif units[0].makes_room:  # joined although the journal was full
                self._refuse(units)
            self._need_room()
            return
        checksum = self._encode(blocks)
        try:
            await self._write_group(len(blocks))
        except DeviceFailed as error:
            self._counters.journal_failures += 1
            self._fail(f"the journal can't be written: {error}", units + (behind or []))
            self._start_reopening()
            return
        self.step("journal_written")
        self._last_checksum = checksum
        # Between two parts of a large group the journal looks as if the first had been written alone: blocks stand on
        # the device from which nothing follows yet, which is as if they were written later.
        for begin in range(0, len(blocks), PUBLISHED_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            self._accept(blocks[begin : begin + PUBLISHED_AT_ONCE])

    def _pack(self, queue: deque[Unit]) -> list[list[Unit]]:
        """Take units from a queue, in order, into as many blocks as one write carries."""
        room = self._block_room
        blocks_max = max(1, GROUP_BYTES // self._geometry.block_bytes)
        blocks: list[list[Unit]] = []
        used = room
        while queue:
            unit = queue[0]
            used += unit.size_bytes
            if used > room or not blocks:
                if len(blocks) == blocks_max:
                    break
                blocks.append([])
                used = unit.size_bytes
            blocks[-1].append(queue.popleft())
            self._queued_rows -= len(unit.rows)
        return blocks

    def _encode(self, blocks: list[list[Unit]]) -> int:
        """Encode a group into the journal's buffer; returns the checksum of its last block."""
        size = self._geometry.block_bytes
        self._encoded_through = self.flushed_through
        checksum = self._last_checksum
        for index, units in enumerate(blocks):
            checksum = encode_journal_block(
                self._buffer.view[index * size : (index + 1) * size],
                uuid=self._uuid,
                start_count=self.start_count,
                number=self.last_block + 1 + index,
                previous=checksum,
                flushed_through=self.flushed_through,
                tail=self.tail,
                complete_since=self.complete_since,
                rows=[encoded for unit in units for _, encoded in unit.rows],
                records=b"".join([encode_record(record) for unit in units for record in unit.records]),
            )
        return checksum

    async def _write_group(self, count: int) -> None:
        """Write ``count`` blocks behind the last one, in order; each write is retried at its place."""
        size, ring = self._geometry.block_bytes, self._geometry.journal_blocks
        done = 0
        while done < count:
            number = self.last_block + 1 + done
            run = min(count - done, ring - number % ring)
            view = self._buffer.view[done * size : (done + run) * size]
            for attempt in range(WRITE_RETRIES + 1):
                try:
                    await self._device.write(self._geometry.journal_block_offset(number), view)
                    break
                except DeviceFailed:
                    if attempt == WRITE_RETRIES:
                        raise
                    await asyncio.sleep(RETRY_PAUSE_SECONDS)
            done += run

    def _accept(self, blocks: list[list[Unit]]) -> None:
        """The group is written: publish its units in order, then wake who waits for them."""
        self.marked_through = self._encoded_through
        self._counters.journal_blocks += len(blocks)
        publish, rows, number = self._publish, 0, self.last_block
        for units in blocks:
            number += 1
            self.last_block = number
            for unit in units:
                rows += len(unit.rows)
                if unit.rows or unit.records:
                    self.content_through = number
                publish(unit, number)
                if unit.last_seq > self.published_seq:
                    self.published_seq = unit.last_seq
        self._counters.journal_rows += rows
        self.step("journal_published")
        number -= len(blocks)
        for units in blocks:
            number += 1
            for unit in units:
                unit.outcome = number
            self._settled.extend(units)
        self._tell_soon()
        self._need_room()

    def _fail(self, why: str, group: list[Unit]) -> None:
        """The group and everything queued behind it is undone (D3)."""
        if not self.unavailable:
            log.error("journal unavailable", extra={"fields": {"reason": why}})
        self.unavailable = why
        units = group + list(self._ahead) + list(self._queue)
        self._ahead.clear()
        self._queue.clear()
        self._queued_rows = 0
        self._undo(units)
        self._refuse(units)

    def _refuse(self, units: list[Unit]) -> None:
        for unit in units:
            unit.outcome = JournalUnavailable(self.unavailable)
        self._settled.extend(units)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        """Tell who waits for units, in the units' order. What one of them raises keeps no other from being told, nor
        the journal from being written: this is a turn of its own."""
        self._telling = False
        settled = self._settled
        try:
            while settled:
                settled[0].tell()
                settled.popleft()
        finally:
            if settled:
                self._tell_soon()

    # -- room -----------------------------------------------------------------------------------------------------

    async def _room(self, blocks: int, units: list[Unit]) -> bool:
        """Wait until ``blocks`` fit before the tail; False if they do not within the time limit.

        Units that make room are written meanwhile: who moves the tail waits for them.
        """
        privileged = any(unit.privileged for unit in units)
        limit = self._geometry.journal_blocks - (0 if privileged else RESERVE_BLOCKS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_timeout_seconds
        while self.used_blocks + blocks > limit:
            if self._ahead and not privileged:
                await self._write_blocks(self._pack(self._ahead), units)
                if self.unavailable:
                    return False
                continue
            self._need_room()
            if self._tail_moved is None:
                self._tail_moved = loop.create_future()
            await asyncio.wait([self._tail_moved], timeout=max(0.0, deadline - loop.time()))
            if loop.time() >= deadline:
                break
        return self.used_blocks + blocks <= limit

    def _stir(self) -> None:
        """Let the writer look again whether there is room, or something that makes room."""
        if self._tail_moved is not None and not self._tail_moved.done():
            self._tail_moved.set_result(None)
        self._tail_moved = None

    def move_tail(self, tail: int, complete_since: int) -> None:
        """Blocks before ``tail`` are not needed: from it on, every slot changed after ``complete_since`` is here."""
        assert self.tail <= tail <= self.last_block + 1
        self.tail = tail
        self.complete_since = max(self.complete_since, complete_since)
        self._stir()
        if self.unavailable and self._reopener is None:
            self._start_reopening()

    # -- flushing -------------------------------------------------------------------------------------------------

    async def flush_through(self, block: int) -> None:
        """Return when block ``block`` and everything written before it is durable. Raises FlushFailed.

        Waiters share flushes: one that starts after a block was written covers it.
        """
        while self.flushed_through < block:
            if self._flusher is None:
                self._flusher = asyncio.get_running_loop().create_task(self._flush())
                self._flusher.add_done_callback(heard)
            await asyncio.shield(self._flusher)

    async def flush(self) -> None:
        """Make everything written so far durable."""
        await self.flush_through(self.last_block)

    async def _flush(self) -> None:
        target = self.last_block
        try:
            await self._device.flush()
            self._counters.flushes += 1
            self.flushed_through = max(self.flushed_through, target)
        finally:
            self._flusher = None

    async def mark_flushed(self) -> None:
        """Write a block that says how far the journal is flushed, if no block says it yet.

        Without it damage to the last flushed blocks of a quiet journal could pass for a torn tail (R3).
        """
        unmarked = self.marked_through < self.content_through <= self.flushed_through
        if unmarked and self.idle and not self.unavailable:
            await self.join(Unit(privileged=True))

    # -- failing and coming back ----------------------------------------------------------------------------------

    def _start_reopening(self) -> None:
        if self._reopener is None and not self._closed:
            self._reopener = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        """Try an empty block at the place that failed until it is written; then take rows again."""
        try:
            while self.unavailable and not self._closed:
                if self._writer is not None:  # it may still write what makes room, to that very block
                    await asyncio.wait([self._writer])
                    continue
                if self.used_blocks >= self._geometry.journal_blocks - RESERVE_BLOCKS:
                    # Whoever makes room may write; this is begun again when the tail moves.
                    self.unavailable, self._is_full = FULL, True
                    self._need_room()
                    return
                self._is_full = False
                checksum = self._encode([[]])
                try:
                    await self._write_group(1)
                except DeviceFailed:
                    await asyncio.sleep(REOPEN_SECONDS)
                    continue
                self._last_checksum = checksum
                self.unavailable = ""
                self._accept([[]])
                log.warning("journal available again", extra={"fields": {"block": self.last_block}})
                self._reopened()
                return
        finally:
            self._reopener = None

    async def close(self) -> None:
        """Wait until the queue is written or undone, and stop trying to reopen. From now on only the last checkpoint's
        own units join: long work of clients may still be between two of its steps."""
        self._closed = True
        while self._writer is not None:
            await asyncio.wait([self._writer])
        if self._reopener is not None:
            self._reopener.cancel()
            await asyncio.wait([self._reopener])
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
