"""How a checkpoint writes: into memory of the engine's own, and at a pace that leaves the device to requests.

It has few and short writes under way, with a pause between them, as long as the journal has room enough to wait for
its end (L2).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from storage.buffers import Buffer, BufferArena
from storage.device.interface import BlockDevice
from storage.journal import Journal

WRITE_BYTES = 256 * 1024
"""Of pages and streams copied, sealed and written between two turns of the loop: some 0.15 ms. A read that meets such
a write at the device waits for no more than that."""
PAUSE_SECONDS = 0.002
"""After each ``WRITE_BYTES``: a checkpoint takes a tenth of the loop's time instead of half of it, and goes on at
100 MB/s, which is a million entries in 0.8 s."""
HURRY_RATIO = 0.5
"""The journal's fill from which a checkpoint makes no pauses."""


@dataclass(slots=True)
class Writing:
    """The device, memory and pace that all parts of a checkpoint share."""

    device: BlockDevice
    journal: Journal
    arena: BufferArena
    wait_timeout_seconds: float
    is_hurried: bool = False
    """Set where nobody is served any more: no pauses then."""

    @property
    def has_time(self) -> bool:
        return not self.is_hurried and self.journal.used_ratio < HURRY_RATIO

    def blocks_at_once(self, block_bytes: int) -> int:
        """Blocks written between two pauses."""
        return max(1, WRITE_BYTES // block_bytes)

    async def pause(self) -> None:
        """After ``WRITE_BYTES``; nothing where there is no time."""
        if self.has_time:
            await asyncio.sleep(PAUSE_SECONDS)

    async def buffer(self, size_bytes: int) -> Buffer:
        """Raises Busy."""
        return await self.arena.acquire(size_bytes, self.wait_timeout_seconds)

    async def write(self, offset_bytes: int, content: bytes) -> None:
        """Write up to ``WRITE_BYTES``, or one block, whichever is more. Raises DeviceFailed, Busy."""
        buffer = await self.buffer(len(content))
        try:
            buffer.view[: len(content)] = content
            await self.device.write(offset_bytes, buffer.view[: len(content)])
        finally:
            buffer.release()
