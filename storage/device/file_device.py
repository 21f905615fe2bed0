"""An open device: descriptor, I/O engine, counters and locks joined to what ``interface.BlockDevice`` asks."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from storage.device.counters import FLUSH, READ, WRITE, IoCounters, OpKind
from storage.device.direct_read import DirectIo, DirectRead, DirectWrite
from storage.device.io_engine import IN_FLIGHT_MAX, IoEngine
from storage.device.locking import DeviceLocks
from storage.device.operations import IoFuture, Operation, run_blocking
from storage.device.probe import DeviceFacts
from storage.device.read_batch import ReadBatch
from storage.device.threads import ThreadsEngine
from storage.device.uring import UringEngine
from storage.errors import Busy, ReadFailed

_NOTHING: Final = memoryview(b"")
READ_AT_ONCE_BYTES: Final = 1 << 20
"""Of what was read so much is told of in one pass of the loop. Who is told checks and sends it, 200 µs a MiB: told
of 32 values of 1 MiB at once, all would be done before the next request is looked at, and the device had nothing to
do. With 32 connections that get 1 MiB the median is 17 instead of 25 ms, for the same processor time."""


class FileDevice:
    """Implements BlockDevice. Made by ``opening.open_device``; owns the descriptor and the locks."""

    def __init__(
        self, fd: int, facts: DeviceFacts, *, direct_io: bool, writable: bool, io_engine: str, locks: DeviceLocks
    ) -> None:
        self.path = facts.path
        self.size_bytes = facts.size_bytes
        self.block_bytes = facts.logical_block_bytes
        self.facts = facts
        self.direct_io = direct_io
        self.writable = writable
        self.io_engine = io_engine
        self.counters = IoCounters()
        self._fd = fd
        self._locks = locks
        self._engine: IoEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight = 0
        self._ended: deque[DirectIo] = deque()
        """Direct reads and writes that have ended, whose askers are to be told."""
        self._tells_soon = False
        """Whether they are told in the loop's next pass."""
        self._idle: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> int:
        """Asynchronous operations that have not ended."""
        return self._in_flight

    def fileno(self) -> int:
        """The descriptor, for calls this class does not have."""
        return self._fd

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._run_now(self._operation(READ, offset_bytes, buffer))

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._run_now(self._operation(WRITE, offset_bytes, buffer))

    def flush_now(self) -> None:
        self._run_now(self._operation(FLUSH, 0, _NOTHING))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attach to the loop. Falls from the ring to threads when the system denies a ring by now."""
        if self._engine is not None:
            raise RuntimeError("the device is attached to a loop already")
        self._loop = loop
        if self.io_engine == UringEngine.name:
            ring = UringEngine(self._fd, self.block_bytes, self._finish, self._finish_reads, self._finish_direct)
            try:
                ring.start(loop)
            except OSError:
                # The self test at opening got a ring; memory or a limit has run out since. Threads need neither.
                self.io_engine = ThreadsEngine.name
            else:
                self._engine = ring
                return
        self._engine = ThreadsEngine(self._fd, self.block_bytes, self._finish)
        self._engine.start(loop)

    def read(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._submit(READ, offset_bytes, buffer)

    def read_many(self, reads: Sequence[tuple[int, memoryview]]) -> ReadBatch:
        if self._engine is None or self._loop is None:
            raise RuntimeError("the device is not attached to a loop")
        if self._in_flight + len(reads) > IN_FLIGHT_MAX:
            raise Busy(f"{self._in_flight} device operations are in flight")
        block = self.block_bytes
        for offset_bytes, view in reads:
            if offset_bytes < 0 or offset_bytes % block or len(view) % block or not view or view.itemsize != 1:
                raise ValueError(f"read of {view.nbytes} bytes at {offset_bytes}: not in whole blocks of {block}")
        batch = ReadBatch(reads, block, self._loop)
        if reads:
            self._in_flight += len(reads)
            self.counters.pending[batch] = batch.started_at
            self._engine.submit_reads(batch)
        else:
            batch.note_ended(0)
        return batch

    def begin_read(self, read: DirectRead) -> None:
        self._begin(read)

    def begin_write(self, write: DirectWrite) -> None:
        if write.offset_bytes + write.length > self.size_bytes:
            # A file would silently grow.
            raise ValueError(f"write of {write.length} bytes at {write.offset_bytes}: the device has {self.size_bytes}")
        self._begin(write)

    def _begin(self, direct: DirectIo) -> None:
        engine, block, length, offset_bytes = self._engine, self.block_bytes, direct.length, direct.offset_bytes
        if engine is None:
            raise RuntimeError("the device is not attached to a loop")
        if self._in_flight >= IN_FLIGHT_MAX:
            raise Busy(f"{IN_FLIGHT_MAX} device operations are in flight")
        if length % block or offset_bytes % block or not length or offset_bytes < 0:
            raise ValueError(f"{direct.kind} of {length} bytes at {offset_bytes}: not in whole blocks of {block}")
        self._in_flight += 1
        self.counters.pending[direct] = time.perf_counter()
        engine.submit_direct(direct)

    def write(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._submit(WRITE, offset_bytes, buffer)

    def flush(self) -> asyncio.Future[None]:
        return self._submit(FLUSH, 0, _NOTHING)

    async def stop(self) -> None:
        """Wait for what is in flight, then detach. New operations are refused from the call on. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._in_flight:
            assert self._loop is not None
            self._idle = IoFuture(loop=self._loop)
            await self._idle
            self._idle = None
        engine.stop()
        self._loop = None

    def close(self) -> None:
        """Give up descriptor and locks. Idempotent. RuntimeError before ``stop``: the descriptor's number could be
        given to another file while a thread still writes to it."""
        if self._engine is not None or self._in_flight:
            raise RuntimeError("the device is attached to a loop; stop() it first")
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._locks.release()

    def __enter__(self) -> FileDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _operation(
        self, kind: OpKind, offset_bytes: int, buffer: memoryview, future: IoFuture | None = None
    ) -> Operation:
        """Check what only a programming error can get wrong. A read behind the end is the device's to fail."""
        block = self.block_bytes
        if buffer.itemsize != 1 or buffer.ndim != 1:
            buffer = buffer.cast("B")
        length = buffer.nbytes
        if offset_bytes < 0 or offset_bytes % block or length % block or (not length and kind is not FLUSH):
            raise ValueError(f"{kind} of {length} bytes at {offset_bytes}: not in whole blocks of {block}")
        if kind is WRITE and offset_bytes + length > self.size_bytes:
            # A file would silently grow.
            raise ValueError(f"write of {length} bytes at {offset_bytes}: the device has {self.size_bytes}")
        if self._fd < 0:
            raise RuntimeError("the device is closed")
        return Operation(kind, offset_bytes, buffer, block, future)

    def _run_now(self, operation: Operation) -> None:
        outcome = run_blocking(self._fd, operation)
        self.counters.record(operation.kind, operation.length, time.perf_counter() - operation.started_at, outcome)
        if outcome:
            raise operation.failure(self.path, outcome)

    def _submit(self, kind: OpKind, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        if self._engine is None:
            raise RuntimeError("the device is not attached to a loop")
        if self._in_flight >= IN_FLIGHT_MAX:
            raise Busy(f"{IN_FLIGHT_MAX} device operations are in flight")
        future = IoFuture(loop=self._loop)
        operation = self._operation(kind, offset_bytes, buffer, future)
        self._in_flight += 1
        self.counters.pending[operation] = operation.started_at
        self._engine.submit(operation)
        return future

    def _finish(self, operation: Operation, outcome: int) -> None:
        """An engine's last word on an operation, on the loop's thread."""
        if operation.direct is not None:
            self._finish_odd(operation, operation.direct, outcome)
            return
        self.counters.record(operation.kind, operation.length, time.perf_counter() - operation.started_at, outcome)
        batch, future = operation.batch, operation.future
        if batch is not None:
            if outcome:
                error = operation.failure(self.path, outcome)
                assert isinstance(error, ReadFailed)
                batch.failures[operation.index] = error
            self._note_ended(batch, 1)
            return
        assert future is not None
        del self.counters.pending[operation]
        if outcome:
            future.set_exception(operation.failure(self.path, outcome))
        else:
            future.set_result(None)
        self._in_flight -= 1
        self._note_idle()

    def _finish_direct(self, ended: list[DirectIo]) -> None:
        """Direct ones that ended well, at the end of what the engine has to do: their askers are told at once."""
        now, pop = time.perf_counter(), self.counters.pending.pop
        for kind in (READ, WRITE):
            mine = [direct for direct in ended if direct.kind is kind]
            if mine:
                self.counters.record_each(kind, [now - pop(one) for one in mine], sum([one.length for one in mine]))
        self._ended.extend(ended)
        if not self._tells_soon:  # else in their turn, behind what earlier passes left
            self._tell_ended()

    def _finish_odd(self, operation: Operation, direct: DirectIo, outcome: int) -> None:
        """A direct one that an engine carried through as an operation: its asker is told in the next pass."""
        seconds = time.perf_counter() - self.counters.pending.pop(direct)
        self.counters.record(direct.kind, direct.length, seconds, outcome)
        if outcome:
            direct.error = operation.failure(self.path, outcome)
        self._ended.append(direct)
        self._tell_soon()

    def _tell_ended(self) -> None:
        """Tell the askers of direct ones that these have ended. One that raises keeps no other from being told."""
        self._tells_soon = False
        ended, room = self._ended, READ_AT_ONCE_BYTES
        try:
            while ended and room > 0:
                direct = ended.popleft()
                self._in_flight -= 1
                if direct.kind is READ:
                    room -= direct.length
                direct.ended()
        finally:
            if ended:
                self._tell_soon()
            self._note_idle()

    def _tell_soon(self) -> None:
        if not self._tells_soon:
            assert self._loop is not None
            self._tells_soon = True
            self._loop.call_soon(self._tell_ended)

    def _finish_reads(self, batch: ReadBatch) -> None:
        """Some reads of a batch have ended well, on the loop's thread."""
        count, batch.fresh = batch.fresh, 0
        total_bytes, batch.fresh_bytes = batch.fresh_bytes, 0
        self.counters.record_reads(count, total_bytes, time.perf_counter() - batch.started_at)
        self._note_ended(batch, count)

    def _note_ended(self, batch: ReadBatch, count: int) -> None:
        if batch.note_ended(count):
            del self.counters.pending[batch]
        self._in_flight -= count
        self._note_idle()

    def _note_idle(self) -> None:
        """Let ``stop`` go on once nothing is in flight."""
        if not self._in_flight and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
