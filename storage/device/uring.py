"""I/O through io_uring on the loop's own thread: the fast engine.

Small operations asked for in one pass of the loop go to the kernel with one system call, large ones at once, a batch of
reads by itself; completions are collected when the ring's descriptor turns readable. The package used here has no
flush operation, so flushes go to helper threads.

Every size goes through the ring. Measured with O_DIRECT on a 2 GiB file, virtio disk, 2 cores, uvloop, buffers on
huge pages, operations per second by ring / by threads (medians of 3; each coroutine awaits one operation at a time):

=========  ===========  ===========  ===========  ===========
           read, 1      read, 32     write, 1     write, 32
=========  ===========  ===========  ===========  ===========
4 KiB      15.5k/10.4k  58.7k/39.1k  11.2k/9.0k   30.8k/28.2k
64 KiB     13.3k/9.1k   33.2k/29.1k  10.8k/8.8k   25.4k/22.7k
256 KiB    8.1k/6.3k    14.2k/13.4k  9.6k/7.5k    19.3k/16.9k
1 MiB      3.2k/2.9k    3.8k/3.8k    5.5k/4.6k    6.5k/6.4k
=========  ===========  ===========  ===========  ===========

Handing large transfers of the ring engine to threads was 0-21 % slower at 256 KiB and 1 MiB. Collecting right after
submitting, COOP_TASKRUN and SINGLE_ISSUER made no difference beyond the noise of 5 %.

With a checksum and a copy of everything read, on the loop's thread, it depends on when a large read is asked for: 32
at once, MiB/s, medians of 5 on a busy machine, ring at once / ring at the end of the pass / threads:

=========  ====================
68 KiB     1231 / 1194 / 852
128 KiB    1741 / 1396 / 1158
260 KiB    2172 / 1772 / 1720
1028 KiB   2643 / 2030 / 2251
=========  ====================

CRC32C takes 2.3 µs for 64 KiB in the cache and 70 µs for 1 MiB that has just arrived (15 GB/s): no more than a hop to
a thread and back costs, so it stays on the loop's thread.

A flush is shared by all who wait for one, and not RWF_DSYNC of the journal's block. That takes 2.1 ms where a write and
fdatasync take 4.2 (medians, idle device; 168 and 196 µs on one that others write to), but where the device knows FUA
it makes that one block durable and not the payloads written before it, which the level ``flush`` promises.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from types import ModuleType
from typing import TYPE_CHECKING, Final

from storage.buffers import aligned_buffer
from storage.device.counters import FLUSH, READ
from storage.device.direct_read import DirectIo
from storage.device.io_engine import Finish, FinishDirect, FinishReads
from storage.device.operations import AGAIN, Operation
from storage.device.read_batch import ReadBatch
from storage.device.threads import ThreadsEngine

if TYPE_CHECKING:
    from uring_api import Ring

RING_ENTRIES: Final = 128
"""In the kernel at once; more wait in line here. The completion queue is twice as long, so it can't overflow."""
AT_ONCE_BYTES: Final = 32 << 10
"""An operation of this size is not kept for the end of the loop's pass, where one system call would take them all: the
checksums of all that was read before would run first, 50 µs for each MiB, while the device has nothing to do."""
AT_ONCE_COUNT: Final = 8
"""So many small ones aren't kept either: kept for the end, all that 32 askers want next was handed over at once, and
device and daemon worked in turns. Gets of the engine alone a second: 37k kept, 53k by 8 or 16, 47k by 4."""
FLUSH_THREADS: Final = 2
"""The journal's flush must not wait behind a checkpoint's."""
_SELF_TEST_SECONDS: Final = 10.0
_LATER: Final = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOMEM})
_LATER_SECONDS: Final = 0.001

_abandoned: Final[list[object]] = []
"""Rings whose self test never ended, with their buffers: the kernel may still write there, so nobody frees them."""


class UringEngine:
    """Implements IoEngine."""

    name = "uring"

    def __init__(
        self, fd: int, block_bytes: int, finish: Finish, finish_reads: FinishReads, finish_direct: FinishDirect
    ) -> None:
        self._fd = fd
        self._block_bytes = block_bytes
        self._finish = finish
        self._finish_reads = finish_reads
        self._finish_direct = finish_direct
        self._flushers = ThreadsEngine(fd, block_bytes, finish, FLUSH_THREADS)
        self._waiting: deque[Operation | DirectIo | tuple[ReadBatch, int]] = deque()
        self._in_ring = 0
        self._unsubmitted = 0
        self._submit_scheduled = False
        self._ring: Ring
        self._loop: asyncio.AbstractEventLoop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ring = _uring_module().Ring(RING_ENTRIES, auto_submit=False)
        self._loop = loop
        loop.add_reader(self._ring.fd, self._collect)
        self._flushers.start(loop)

    def submit(self, operation: Operation) -> None:
        if operation.kind is FLUSH:
            self._flushers.submit(operation)
        elif self._in_ring >= RING_ENTRIES:
            self._waiting.append(operation)
        else:
            self._prepare(operation)
            self._submit_soon(operation.length)

    def submit_direct(self, direct: DirectIo) -> None:
        if self._in_ring >= RING_ENTRIES:
            self._waiting.append(direct)
            return
        prepare = self._ring.prepare_read if direct.kind is READ else self._ring.prepare_write
        prepare(self._fd, direct.view, direct.offset_bytes, direct)
        self._in_ring += 1
        self._unsubmitted += 1
        self._submit_soon(direct.length)

    def submit_reads(self, batch: ReadBatch) -> None:
        reads, fd, prepare = batch.reads, self._fd, self._ring.prepare_read
        count = min(len(reads), RING_ENTRIES - self._in_ring)
        for index in range(count):
            offset_bytes, view = reads[index]
            prepare(fd, view, offset_bytes, (batch, index))
        self._in_ring += count
        self._unsubmitted += count
        self._waiting.extend((batch, index) for index in range(count, len(reads)))
        if self._unsubmitted:
            self._submit()

    def stop(self) -> None:
        self._loop.remove_reader(self._ring.fd)
        self._ring.close()
        self._flushers.stop()

    def _prepare(self, operation: Operation) -> None:
        prepare = self._ring.prepare_read if operation.kind is READ else self._ring.prepare_write
        prepare(self._fd, operation.rest(), operation.position(), operation)
        self._in_ring += 1
        self._unsubmitted += 1

    def _submit_soon(self, length: int) -> None:
        if length >= AT_ONCE_BYTES or self._unsubmitted >= AT_ONCE_COUNT:
            self._submit()
        elif not self._submit_scheduled:
            self._submit_scheduled = True
            self._loop.call_soon(self._submit_at_end)

    def _submit_at_end(self) -> None:
        self._submit_scheduled = False
        if self._unsubmitted:
            self._submit()

    def _submit(self) -> None:
        """Hand everything prepared to the kernel; what it doesn't take now is offered again."""
        try:
            self._unsubmitted -= self._ring.submit()
        except OSError as error:
            if error.errno not in _LATER:
                raise
        if self._unsubmitted and not self._submit_scheduled:
            self._submit_scheduled = True
            self._loop.call_later(_LATER_SECONDS, self._submit_at_end)

    def _collect(self) -> None:
        direct = self._reap()
        self._take_waiting()
        if direct:
            self._finish_direct(direct)

    def _reap(self) -> list[DirectIo]:
        """Take what has ended; the direct ones that ended well are still to be told.

        No completion outlives this call. One that the garbage collector comes upon, because the frame of a callback
        that raised refers to it, ends the process: the package can't clear it.
        """
        direct: list[DirectIo] = []
        while completions := self._ring.wait(0):
            self._in_ring -= len(completions)
            batches: list[ReadBatch] = []
            for completion in completions:
                asked, result = completion.user_data, completion.res
                if isinstance(asked, DirectIo):
                    if result == asked.length:
                        direct.append(asked)
                        continue
                    asked = asked.operation(self._block_bytes)
                elif type(asked) is tuple:
                    batch, index = asked
                    if result == len(batch.reads[index][1]):
                        if not batch.fresh:
                            batches.append(batch)
                        batch.fresh += 1
                        batch.fresh_bytes += result
                        continue
                    asked = batch.operation(index)
                self._advance(asked, result)
            for batch in batches:
                self._finish_reads(batch)
        return direct

    def _advance(self, operation: Operation, result: int) -> None:
        outcome = operation.advance(result)
        if outcome == AGAIN:
            self._prepare(operation)
        else:
            self._finish(operation, outcome)

    def _take_waiting(self) -> None:
        """Let into the ring what there is room for now."""
        while self._waiting and self._in_ring < RING_ENTRIES:
            waiting = self._waiting.popleft()
            if isinstance(waiting, Operation):
                self._prepare(waiting)
                continue
            if isinstance(waiting, DirectIo):
                self.submit_direct(waiting)
                continue
            batch, index = waiting
            offset_bytes, view = batch.reads[index]
            self._ring.prepare_read(self._fd, view, offset_bytes, waiting)
            self._in_ring += 1
            self._unsubmitted += 1
        if self._unsubmitted and not self._submit_scheduled:
            self._submit()


def why_no_ring(fd: int, size_bytes: int, block_bytes: int) -> str | None:
    """Try a ring of its own on the device: None if it works, else the reason in words.

    The self test reads the first block through the ring and by ``pread``; both must give the same. Blocks.
    """
    try:
        module = _uring_module()
        ring = module.Ring(2, auto_submit=False)
    except (ImportError, RuntimeError) as error:
        # RuntimeError: the package without its native part imports, and says so at the first ring.
        return f"the package is not usable: {error}"
    except OSError as error:
        # EPERM: forbidden (a container's seccomp, kernel.io_uring_disabled); ENOSYS: not built in; ENOMEM: memlock.
        return f"the kernel refuses it: {error.strerror}"
    length = min(block_bytes, size_bytes)
    if not length:
        ring.close()
        return None
    by_ring, by_call = aligned_buffer(length), aligned_buffer(length)
    ring.prepare_read(fd, by_ring, 0, None)
    try:
        ring.submit()
        completions = ring.wait(_SELF_TEST_SECONDS)
    except OSError as error:
        _abandoned.append((ring, by_ring))
        return f"the kernel refuses it: {error.strerror}"
    if not completions:
        _abandoned.append((ring, by_ring))
        return f"a read through it did not end within {_SELF_TEST_SECONDS:.0f} s"
    result = completions[0].res
    ring.close()
    try:
        expected = os.preadv(fd, [by_call], 0)
    except OSError as error:
        expected = -(error.errno or errno.EIO)
    # A device that can't read its first block fails both ways alike; that is not the ring's fault.
    if result != expected or by_ring != by_call:
        return f"a read through it gave {result} where a plain read gave {expected}, or other bytes"
    return None


def _uring_module() -> ModuleType:
    """The package, imported only where it's wanted: it is optional. Raises ImportError."""
    import uring_api

    return uring_api
