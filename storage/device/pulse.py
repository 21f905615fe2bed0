"""Whether the device still answers: the question a watchdog asks (a loop that turns is not enough).

Two things tell it. Every operation the engine has under way is known with its age, so a write or a flush that never
ends shows, also while reads go on. And on an idle device a small read keeps asking, so that one that has died in
silence shows too. An operation that *fails* has ended: what to make of that is the engine's decision (R7), not a
reason to be killed.
"""

from __future__ import annotations

import asyncio

from storage.buffers import aligned_buffer
from storage.device.interface import BlockDevice


class DevicePulse:
    """On the loop's thread only."""

    def __init__(self, device: BlockDevice) -> None:
        self._device = device
        # Of its own: were it an arena's, values waiting for buffers would pass for a device that hangs.
        self._buffer = aligned_buffer(device.block_bytes)

    @property
    def waited_seconds(self) -> float:
        """Age of the oldest operation that has not ended; 0 if there is none."""
        return self._device.counters.oldest_pending_seconds()

    @property
    def completed(self) -> int:
        """Operations that have ended since the device was opened."""
        return self._device.counters.completed

    def beat(self) -> None:
        """Read the first block if nothing else is under way. For a device attached to the loop."""
        if not self._device.counters.pending:
            self._device.read(0, self._buffer).add_done_callback(_forget)


def _forget(done: asyncio.Future[None]) -> None:
    done.exception()  # counted where it happened; nobody waits for the outcome
