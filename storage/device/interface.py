"""What the engine knows of a device.

Offsets and sizes are bytes and multiples of ``block_bytes``; buffers of a device opened with O_DIRECT start at a
page boundary (``storage.buffers`` gives such). Anything else is a programming error (ValueError) before the
operating system is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from storage.device.counters import IoCounters

if TYPE_CHECKING:
    from storage.device.direct_read import DirectRead, DirectWrite
    from storage.device.read_batch import ReadBatch


class BlockDevice(Protocol):
    """An open device. The blocking calls may be made on any thread, the asynchronous ones on the loop's thread."""

    path: str
    size_bytes: int
    block_bytes: int
    """Required alignment of offsets and sizes: the logical block, at least 512."""
    direct_io: bool
    """False: O_DIRECT was refused and buffered I/O was allowed."""
    io_engine: str
    """"uring" or "threads"; may fall from uring to threads when ``start`` finds that no ring can be had."""
    counters: IoCounters

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        """Fill the whole buffer. Blocks. Raises ReadFailed."""

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        """Write the whole buffer. Blocks. Raises WriteFailed."""

    def flush_now(self) -> None:
        """Make everything written durable. Blocks. Raises FlushFailed."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attach the asynchronous engine to the loop; called on the loop's thread."""

    def read(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        """Fill the whole buffer; the future raises ReadFailed.

        The future can't be cancelled: a cancelled task that awaits it gets its CancelledError when the I/O has ended,
        so the buffer is never given up while the kernel uses it. Who waits in another way (``asyncio.wait`` with
        a timeout, ``shield``, ``gather``) calls ``Buffer.hold_for(future)`` first.
        """

    def read_many(self, reads: Sequence[tuple[int, memoryview]]) -> ReadBatch:
        """Fill many whole buffers, bytes each, at their offsets. As ``read``, but one future, for when all have ended,
        and a failure is found in the batch. Raises Busy."""

    def begin_read(self, read: DirectRead) -> None:
        """As ``read``, for one who is told of the end directly. Raises Busy."""

    def write(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        """Write the whole buffer; the future raises WriteFailed. Otherwise as ``read``."""

    def begin_write(self, write: DirectWrite) -> None:
        """As ``write``, for one who is told of the end directly. Raises Busy."""

    def flush(self) -> asyncio.Future[None]:
        """Make every write that had completed before this call durable; the future raises FlushFailed."""

    async def stop(self) -> None:
        """Wait for all I/O in flight, then detach from the loop. The blocking calls still work."""

    def close(self) -> None:
        """Give up the device and its locks. Idempotent."""
