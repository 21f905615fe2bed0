"""What the device really does: failed writes of requests, and a self test on a block that holds nothing (R7)."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque

from storage.buffers import BufferArena
from storage.device.interface import BlockDevice
from storage.errors import DeviceFailed, WriteFailed
from storage.format.geometry import Geometry

log = logging.getLogger("rawblockd.storage")

WINDOW_SECONDS = 10.0
FAILURES_MAX = 16
"""More failed requests than this within the window, and the daemon only reads until the window has passed."""
SELF_TEST_SECONDS = 30.0


class DeviceHealth:
    """Read-only while requests' I/O fails at a rate, or while the last self test failed."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX + 1)
        self._why = ""
        self.self_test_failure = ""
        self.self_tests = {"passed": 0, "failed": 0}

    def note(self, why: str) -> None:
        """A read or write of a request failed."""
        self._failures.append(time.monotonic())
        self._why = why

    @property
    def why(self) -> str:
        return self.self_test_failure or self._why

    @property
    def failing(self) -> bool:
        if self.self_test_failure:
            return True
        return len(self._failures) > FAILURES_MAX and time.monotonic() - self._failures[0] < WINDOW_SECONDS

    async def answers(self, device: BlockDevice, geometry: Geometry, arena: BufferArena) -> bool:
        """Whether the device reads elsewhere: then one slot that does not is damage, else it is the device (R7)."""
        if self.failing:
            return False
        size = geometry.block_bytes
        buffer = await arena.acquire(size, WINDOW_SECONDS)
        try:
            await device.read(geometry.scratch_offset, buffer.view[:size])
        except DeviceFailed as error:
            self.note(str(error))
            return False
        finally:
            buffer.release()
        return True

    async def self_test(self, device: BlockDevice, geometry: Geometry, arena: BufferArena) -> None:
        """Write, read back and compare the scratch block. The outcome is kept; the device's faults are not raised.

        Raises Busy when there is no buffer.
        """
        size = geometry.block_bytes
        buffer = await arena.acquire(size, WINDOW_SECONDS)
        try:
            pattern = hashlib.shake_128(str(time.time_ns()).encode()).digest(size)
            buffer.view[:size] = pattern
            await device.write(geometry.scratch_offset, buffer.view[:size])
            buffer.view[:size] = bytes(size)
            await device.read(geometry.scratch_offset, buffer.view[:size])
            if buffer.view[:size] != pattern:
                raise WriteFailed("the scratch block reads back different bytes", offset_bytes=geometry.scratch_offset)
        except DeviceFailed as error:
            if not self.self_test_failure:
                log.error("self test failed: the daemon only reads", extra={"fields": {"error": str(error)}})
            self.self_test_failure = f"self test: {error}"
            self.self_tests["failed"] += 1
        else:
            if self.self_test_failure:
                log.warning("self test passed again", extra={"fields": {}})
            self.self_test_failure = ""
            self.self_tests["passed"] += 1
        finally:
            buffer.release()
