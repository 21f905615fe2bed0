"""Reading many blocks where some may be unreadable: damage and a failing device are told apart (R7)."""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from storage.buffers import HUGE_PAGE_BYTES, prefer_huge_pages
from storage.device.interface import BlockDevice
from storage.errors import DeviceGone, ReadFailed

log = logging.getLogger("rawblockd.storage")

SPAN_BYTES = 1 << 20
RETRIES = 2
UNREADABLE_MIN = 8
"""Fewer unreadable blocks in a span are damage even where they outnumber the readable ones."""
GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EBADF, errno.ENOMEDIUM})


class BlockReader:
    """Blocking reads, most of them through one aligned buffer."""

    def __init__(self, device: BlockDevice, block_bytes: int) -> None:
        self._device = device
        self._block_bytes = block_bytes
        # Two spans on a huge page: a device fills contiguous memory two to four times as fast.
        self._memory = mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        prefer_huge_pages(self._memory)
        start = -np.frombuffer(self._memory, dtype=np.uint8).ctypes.data % HUGE_PAGE_BYTES
        self._view = memoryview(self._memory)[start : start + 2 * SPAN_BYTES]

    def span(self, offset_bytes: int, size_bytes: int) -> tuple[memoryview, list[int]]:
        """At most ``SPAN_BYTES`` from ``offset_bytes``, and the indexes of blocks that can't be read (they are zero).

        The view is valid until the next call. Raises DeviceGone when it is the device that fails.
        """
        view = self._view[:size_bytes]
        return view, self.into(offset_bytes, view)

    def into(self, offset_bytes: int, view: memoryview) -> list[int]:
        """Fill a page-aligned view; the indexes of blocks that can't be read (they are zero).

        Needs nothing of the reader's own buffer, so another thread may use that meanwhile. Raises DeviceGone.
        """
        try:
            self._device.read_now(offset_bytes, view)
        except ReadFailed as error:
            check_alive(error)
        else:
            return []
        unreadable = []
        count = len(view) // self._block_bytes
        for index in range(count):
            block = view[index * self._block_bytes : (index + 1) * self._block_bytes]
            if not self._read_block(offset_bytes + index * self._block_bytes, block):
                block[:] = bytes(len(block))
                unreadable.append(index)
        if len(unreadable) >= UNREADABLE_MIN and len(unreadable) * 2 > count:
            raise DeviceGone(f"{len(unreadable)} of {count} blocks at {offset_bytes} can't be read")
        return unreadable

    def read_ahead(self, reads: Iterable[tuple[int, memoryview]], ahead: int) -> Generator[list[int]]:
        """Do one read after the other as ``into`` does, on a thread of their own; yields what each returns.

        While a result is looked at, up to ``ahead`` further reads are done. To be closed. Raises DeviceGone.
        """
        waiting: deque[Future[list[int]]] = deque()
        with ThreadPoolExecutor(1, "rawblockd-reads") as thread:
            try:
                for offset_bytes, view in reads:
                    waiting.append(thread.submit(self.into, offset_bytes, view))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                thread.shutdown(cancel_futures=True)

    def spans(self, offset_bytes: int, size_bytes: int) -> Generator[tuple[memoryview, list[int]]]:
        """A large area span by span, as ``span`` returns them, the next one read meanwhile. To be closed."""
        places = range(0, size_bytes, SPAN_BYTES)
        halves = self._view[:SPAN_BYTES], self._view[SPAN_BYTES:]
        views = [halves[number % 2][: size_bytes - begin] for number, begin in enumerate(places)]
        reads = zip(range(offset_bytes, offset_bytes + size_bytes, SPAN_BYTES), views, strict=True)
        with contextlib.closing(self.read_ahead(reads, 1)) as read:
            yield from zip(views, read, strict=True)

    def _read_block(self, offset_bytes: int, block: memoryview) -> bool:
        for _ in range(RETRIES + 1):
            try:
                self._device.read_now(offset_bytes, block)
            except ReadFailed as error:
                check_alive(error)
            else:
                return True
        log.warning("block unreadable", extra={"fields": {"offset_bytes": offset_bytes}})
        return False

    def block(self, offset_bytes: int) -> bytes | None:
        """One block; None if it can't be read."""
        view, unreadable = self.span(offset_bytes, self._block_bytes)
        return None if unreadable else bytes(view)

    def whole(self, offset_bytes: int, size_bytes: int) -> tuple[bytearray, list[int]]:
        """Any number of blocks, copied, and the indexes of those that can't be read."""
        content = bytearray(size_bytes)
        unreadable: list[int] = []
        for begin in range(0, size_bytes, SPAN_BYTES):
            size = min(SPAN_BYTES, size_bytes - begin)
            view, bad = self.span(offset_bytes + begin, size)
            content[begin : begin + size] = view
            unreadable += [begin // self._block_bytes + index for index in bad]
        return content, unreadable

    def close(self) -> None:
        # While an error is on its way, its traceback may hold a view; the memory then goes with it.
        with contextlib.suppress(BufferError):
            self._view.release()
            self._memory.close()


def check_alive(error: ReadFailed) -> None:
    """Raises DeviceGone for errors that are the device's, not a block's."""
    if error.errno in GONE:
        raise DeviceGone(str(error), errno=error.errno, offset_bytes=error.offset_bytes) from error
