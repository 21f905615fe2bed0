"""One read, write or flush on its way: progress, continuation of short transfers, and its future.

Both I/O engines and the blocking calls share these rules:

- a transfer that was cut short goes on from the last whole block (O_DIRECT takes no unaligned rest);
- a transfer that makes no progress of even one block ends as SHORT: the end of the file, or a full file system
  that says so only by writing less;
- EINTR and EAGAIN are asked again, at most ``RETRIES_MAX`` times.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from typing import TYPE_CHECKING, Final

from storage.device.counters import FLUSH, READ, SHORT, WRITE, OpKind
from storage.errors import DeviceFailed, FlushFailed, ReadFailed, WriteFailed

if TYPE_CHECKING:
    from storage.device.direct_read import DirectIo
    from storage.device.read_batch import ReadBatch

RETRIES_MAX: Final = 100
"""EAGAIN comes from a kernel short of requests for a moment; a device that says it 100 times in a row has failed."""
_RETRY_PAUSE_SECONDS: Final = 0.001

AGAIN: Final = -2
"""``Operation.advance``: ask for the rest."""


class IoFuture(asyncio.Future[None]):
    """The future of an I/O, done exactly when the kernel is done with the buffer.

    It can't be cancelled, because the kernel's I/O can't be: ``cancel`` returns False, so a cancelled task that
    awaits it plainly gets its CancelledError only after the completion. Everything that hangs on "the I/O is over"
    (``Buffer.hold_for``, a ``finally`` that releases a buffer) is right without knowing about cancellation.
    """

    __slots__ = ()

    def cancel(self, msg: object | None = None) -> bool:
        return False


class Operation:
    """State of one operation. ``view`` is the caller's whole buffer; a flush has an empty one.

    It ends in its ``future``, as the read ``index`` of a ``batch``, or as a ``direct`` one; a blocking call has none of
    these.
    """

    __slots__ = (
        "batch",
        "block_bytes",
        "direct",
        "done_bytes",
        "future",
        "index",
        "kind",
        "length",
        "offset_bytes",
        "retries",
        "started_at",
        "view",
    )

    def __init__(
        self, kind: OpKind, offset_bytes: int, view: memoryview, block_bytes: int, future: IoFuture | None = None
    ) -> None:
        self.kind = kind
        self.offset_bytes = offset_bytes
        self.view = view
        self.length = len(view)
        self.block_bytes = block_bytes
        self.future = future
        self.batch: ReadBatch | None = None
        self.direct: DirectIo | None = None
        self.index = 0
        self.done_bytes = 0
        self.retries = 0
        self.started_at = time.perf_counter()

    def rest(self) -> memoryview:
        """What is still to be transferred."""
        return self.view[self.done_bytes :] if self.done_bytes else self.view

    def position(self) -> int:
        return self.offset_bytes + self.done_bytes

    def advance(self, result: int) -> int:
        """Take a system call's result (bytes, or a negative errno): 0 done, AGAIN, SHORT, or an errno."""
        if result == self.length - self.done_bytes:
            return 0
        if result < 0:
            if -result in (errno.EAGAIN, errno.EINTR) and self.retries < RETRIES_MAX:
                self.retries += 1
                return AGAIN
            return -result
        whole = result - result % self.block_bytes
        self.done_bytes += whole
        return AGAIN if whole else SHORT

    def failure(self, path: str, outcome: int) -> DeviceFailed:
        """The error for an outcome that isn't 0."""
        if outcome == SHORT:
            what = f"nothing transferred after {self.done_bytes} of {self.length} bytes"
            number = 0
        else:
            what = os.strerror(outcome)
            number = outcome
        if self.kind is FLUSH:
            return FlushFailed(f"{path}: flush: {what}", errno=number)
        error = ReadFailed if self.kind is READ else WriteFailed
        where = f"{self.length} bytes at {self.offset_bytes}"
        return error(f"{path}: {self.kind} of {where}: {what}", errno=number, offset_bytes=self.offset_bytes)


def run_blocking(fd: int, operation: Operation) -> int:
    """Carry the operation through on this thread: 0, SHORT, or an errno."""
    while True:
        try:
            result = _system_call(fd, operation)
        except OSError as error:
            result = -(error.errno or errno.EIO)
        outcome = operation.advance(result)
        if outcome != AGAIN:
            return outcome
        if result == -errno.EAGAIN:
            time.sleep(_RETRY_PAUSE_SECONDS)


def _system_call(fd: int, operation: Operation) -> int:
    if operation.kind is READ:
        return os.preadv(fd, [operation.rest()], operation.position())
    if operation.kind is WRITE:
        return os.pwrite(fd, operation.rest(), operation.position())
    os.fdatasync(fd)
    return 0
