"""The small interface of the two I/O engines, and the choice between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from storage.device.direct_read import DirectIo
from storage.device.operations import Operation
from storage.device.read_batch import ReadBatch

ENGINE_CHOICES: Final = ("auto", "uring", "threads")

IN_FLIGHT_MAX: Final = 1 << 17
"""Operations a device takes at once, queued ones included (L1). Every read and write needs its own buffer of at
least 4 KiB, so 512 MiB of buffers can't fill it; reaching it is Busy."""

Finish: TypeAlias = Callable[[Operation, int], None]
"""Called on the loop's thread, once for each operation, with 0, SHORT, or an errno."""
FinishReads: TypeAlias = Callable[[ReadBatch], None]
"""Called on the loop's thread for a batch with reads that ended well (``ReadBatch.fresh``)."""
FinishDirect: TypeAlias = Callable[[list[DirectIo]], None]
"""Called on the loop's thread for direct reads and writes that ended well, at the end of what the engine has to do."""


class IoEngine(Protocol):
    """Carries operations through off the loop. All methods are called on the loop's thread."""

    name: str

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attach to the loop. Raises OSError when the system denies what the engine needs."""

    def submit(self, operation: Operation) -> None:
        """Take an operation; never blocks and never calls back before it returns."""

    def submit_reads(self, batch: ReadBatch) -> None:
        """Take all reads of a batch; as ``submit``."""

    def submit_direct(self, direct: DirectIo) -> None:
        """Take a direct read or write; as ``submit``."""

    def stop(self) -> None:
        """Detach; nothing is in flight any more."""
