"""A block device in memory whose operations are done at once: what a replay measures is the engine, not a disk."""

from __future__ import annotations

import asyncio
import mmap

from storage.device.counters import IoCounters, OpKind
from storage.device.direct_read import DirectRead, DirectWrite, by_future
from storage.device.operations import IoFuture
from storage.device.read_batch import ReadBatch, Reads, read_each

BLOCK_BYTES = 4096


class MemoryDevice:
    """Implements BlockDevice. Memory is used for what was written."""

    path = "memory"
    block_bytes = BLOCK_BYTES
    direct_io = True
    io_engine = "memory"

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.counters = IoCounters()
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._loop: asyncio.AbstractEventLoop | None = None

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        buffer[:] = self._view[offset_bytes : offset_bytes + len(buffer)]
        self.counters.record(OpKind.READ, len(buffer), 0.0, 0)

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._view[offset_bytes : offset_bytes + len(buffer)] = buffer
        self.counters.record(OpKind.WRITE, len(buffer), 0.0, 0)

    def flush_now(self) -> None:
        self.counters.record(OpKind.FLUSH, 0, 0.0, 0)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def read(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        self.read_now(offset_bytes, buffer)
        return self._done()

    def read_many(self, reads: Reads) -> ReadBatch:
        return read_each(self, reads)

    def begin_read(self, read: DirectRead) -> None:
        by_future(self, read)

    def begin_write(self, write: DirectWrite) -> None:
        by_future(self, write)

    def write(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        self.write_now(offset_bytes, buffer)
        return self._done()

    def flush(self) -> asyncio.Future[None]:
        self.flush_now()
        return self._done()

    def _done(self) -> asyncio.Future[None]:
        future = IoFuture(loop=self._loop)
        future.set_result(None)
        return future

    async def stop(self) -> None:
        self._loop = None

    def close(self) -> None:
        self._view.release()
        self._memory.close()
