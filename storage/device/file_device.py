"""An open device: descriptor, I/O engine, counters and locks joined to what ``interface.BlockDevice`` asks."""

from __future__ import annotations

import asyncio
import os
import time
from types import TracebackType
from typing import Final

from storage.device.counters import IoCounters, OpKind
from storage.device.io_engine import IN_FLIGHT_MAX, IoEngine
from storage.device.locking import DeviceLocks
from storage.device.operations import IoFuture, Operation, run_blocking
from storage.device.probe import DeviceFacts
from storage.device.threads import ThreadsEngine
from storage.device.uring import UringEngine
from storage.errors import Busy

_NOTHING: Final = memoryview(b"")


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
        self._idle: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> int:
        """Asynchronous operations that have not ended."""
        return self._in_flight

    def fileno(self) -> int:
        """The descriptor, for calls this class does not have."""
        return self._fd

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._run_now(self._operation(OpKind.READ, offset_bytes, buffer))

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._run_now(self._operation(OpKind.WRITE, offset_bytes, buffer))

    def flush_now(self) -> None:
        self._run_now(self._operation(OpKind.FLUSH, 0, _NOTHING))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attach to the loop. Falls from the ring to threads when the system denies a ring by now."""
        if self._engine is not None:
            raise RuntimeError("the device is attached to a loop already")
        self._loop = loop
        if self.io_engine == UringEngine.name:
            ring = UringEngine(self._fd, self._finish)
            try:
                ring.start(loop)
            except OSError:
                # The self test at opening got a ring; memory or a limit has run out since. Threads need neither.
                self.io_engine = ThreadsEngine.name
            else:
                self._engine = ring
                return
        self._engine = ThreadsEngine(self._fd, self._finish)
        self._engine.start(loop)

    def read(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._submit(OpKind.READ, offset_bytes, buffer)

    def write(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._submit(OpKind.WRITE, offset_bytes, buffer)

    def flush(self) -> asyncio.Future[None]:
        return self._submit(OpKind.FLUSH, 0, _NOTHING)

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
        if offset_bytes < 0 or offset_bytes % block or length % block or (not length and kind is not OpKind.FLUSH):
            raise ValueError(f"{kind} of {length} bytes at {offset_bytes}: not in whole blocks of {block}")
        if kind is OpKind.WRITE and offset_bytes + length > self.size_bytes:
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
        self.counters.record(operation.kind, operation.length, time.perf_counter() - operation.started_at, outcome)
        self._in_flight -= 1
        del self.counters.pending[operation]
        future = operation.future
        assert future is not None
        if outcome:
            future.set_exception(operation.failure(self.path, outcome))
        else:
            future.set_result(None)
        if not self._in_flight and self._idle is not None:
            self._idle.set_result(None)
