"""The bound on what all batches under way hold together outside the engine's buffers (L1)."""

from __future__ import annotations

from types import TracebackType

from storage.errors import Busy


class BatchMemory:
    """So many bytes for everybody; a batch takes its part as it grows and gives it back at its end."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.used_bytes = 0

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def take(self, size_bytes: int) -> None:
        """Raises Busy if it isn't there."""
        if self.used_bytes + size_bytes > self._total_bytes:
            raise Busy(f"batches under way hold {self.used_bytes} bytes already")
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes


class MemoryShare:
    """What one batch has taken, from ``with`` to its end."""

    __slots__ = ("_memory", "_taken_bytes")

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory
        self._taken_bytes = 0

    def __enter__(self) -> MemoryShare:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._memory.give(self._taken_bytes)
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Raises Busy."""
        self._memory.take(size_bytes)
        self._taken_bytes += size_bytes
