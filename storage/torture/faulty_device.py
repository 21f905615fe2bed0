"""An open device whose operations fail now and then, as drawn from a seed.

Only the asynchronous operations are touched: the blocking ones are the recovery's, which has tests of its own for each
block. A write that fails may have arrived, in part or not at all.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections import Counter
from dataclasses import dataclass

from storage.device.counters import IoCounters, OpKind
from storage.device.direct_read import DirectRead, DirectWrite, by_future
from storage.device.interface import BlockDevice
from storage.device.operations import IoFuture
from storage.device.read_batch import ReadBatch, Reads, read_each
from storage.errors import DeviceFailed, FlushFailed, ReadFailed, WriteFailed
from storage.torture.closed_device import SECTOR_BYTES

log = logging.getLogger("rawblockd.storage")

INJECTED = "fault injected"
"""The event in the log, once for each fault."""

_ERRORS = {OpKind.READ: ReadFailed, OpKind.WRITE: WriteFailed, OpKind.FLUSH: FlushFailed}
SLOW_SECONDS = 0.2
BURST_MAX = 12
"""Operations in a row that fail once one does in a burst: enough to use up every retry."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Shares of the operations, 0 to 1."""

    failing: float = 0.03
    slow: float = 0.02
    burst: float = 0.1
    """Of the failing ones: those that begin a burst."""


class FaultyDevice:
    """Implements BlockDevice over another one. ``injected`` counts the faults by name."""

    def __init__(self, device: BlockDevice, seed: str, rates: FaultRates) -> None:
        self._device = device
        self._random = random.Random(seed)
        self._rates = rates
        self._burst_left = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Future[None]] = set()
        self.injected: Counter[str] = Counter()
        self.path = device.path
        self.size_bytes = device.size_bytes
        self.block_bytes = device.block_bytes
        self.direct_io = device.direct_io
        self.io_engine = device.io_engine
        self.counters: IoCounters = device.counters

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._device.read_now(offset_bytes, buffer)

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._device.write_now(offset_bytes, buffer)

    def flush_now(self) -> None:
        self._device.flush_now()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._device.start(loop)
        self.io_engine = self._device.io_engine

    def read(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._submit(OpKind.READ, offset_bytes, buffer)

    def read_many(self, reads: Reads) -> ReadBatch:
        return read_each(self, reads)

    def begin_read(self, read: DirectRead) -> None:
        by_future(self, read)

    def begin_write(self, write: DirectWrite) -> None:
        by_future(self, write)

    def write(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._submit(OpKind.WRITE, offset_bytes, buffer)

    def flush(self) -> asyncio.Future[None]:
        return self._submit(OpKind.FLUSH, 0, memoryview(b""))

    async def stop(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._device.stop()

    def close(self) -> None:
        self._device.close()

    def _submit(self, kind: OpKind, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        fault = self._draw(kind)
        if not fault:
            return self._plainly(kind, offset_bytes, buffer)
        assert self._loop is not None
        self.injected[fault] += 1
        log.warning(INJECTED, extra={"fields": {"fault": fault, "op": kind.value, "offset_bytes": offset_bytes}})
        outcome = IoFuture(loop=self._loop)
        task = self._loop.create_task(self._carry(fault, kind, offset_bytes, buffer, outcome))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return outcome

    def _plainly(self, kind: OpKind, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        if kind is OpKind.READ:
            return self._device.read(offset_bytes, buffer)
        return self._device.write(offset_bytes, buffer) if kind is OpKind.WRITE else self._device.flush()

    def _draw(self, kind: OpKind) -> str:
        """The name of the fault that befalls the next operation; empty for none."""
        rng, rates = self._random, self._rates
        chance = rng.random()
        if self._burst_left:
            self._burst_left -= 1
        elif chance < rates.failing:
            if rng.random() < rates.burst:
                self._burst_left = rng.randrange(1, BURST_MAX)
        else:
            return "slow" if chance < rates.failing + rates.slow else ""
        names = {OpKind.READ: ("EIO", "short"), OpKind.WRITE: ("EIO", "ENOSPC", "short"), OpKind.FLUSH: ("EIO",)}
        return rng.choice(names[kind])

    async def _carry(self, fault: str, kind: OpKind, offset_bytes: int, buffer: memoryview, outcome: IoFuture) -> None:
        try:
            if fault == "slow":
                await asyncio.sleep(SLOW_SECONDS * self._random.random())
                await self._plainly(kind, offset_bytes, buffer)
                outcome.set_result(None)
                return
            if kind is OpKind.WRITE and self._random.random() < 0.5:
                await self._write_part(offset_bytes, buffer)
        except DeviceFailed as error:
            outcome.set_exception(error)
            return
        number = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short": 0}[fault]
        outcome.set_exception(_ERRORS[kind](f"injected: {fault}", errno=number, offset_bytes=offset_bytes))

    async def _write_part(self, offset_bytes: int, buffer: memoryview) -> None:
        """The first blocks of a write arrive, whatever is answered."""
        blocks = self._random.randrange(len(buffer) // self.block_bytes + 1)
        if blocks and self.block_bytes % SECTOR_BYTES == 0:
            await self._device.write(offset_bytes, buffer[: blocks * self.block_bytes])
