"""A block device in memory that remembers every write and flush, fails on request, and can be cut off at any moment.

It keeps the order of events: an operation is *issued* and later *done*. From them two kinds of crash images follow:

- **process crash**: writes that were done are there; writes under way are there, absent, or there in part;
- **power loss**: besides, any write that was not done before the last flush was issued may be absent or there in part.

"In part" is in sectors of 512 bytes, the unit a device writes whole.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from storage.device.counters import SHORT, IoCounters, OpKind
from storage.device.direct_read import DirectRead, DirectWrite, by_future
from storage.device.operations import IoFuture
from storage.device.read_batch import ReadBatch, Reads, read_each
from storage.errors import DeviceFailed, FlushFailed, ReadFailed, WriteFailed

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_BLANK = bytes(PAGE_BYTES)


class Image:
    """Sparse content of a device. ``copy`` shares pages, which are never changed in place."""

    def __init__(self, size_bytes: int, pages: dict[int, bytes] | None = None) -> None:
        self.size_bytes = size_bytes
        self.pages = {} if pages is None else pages

    def copy(self) -> Image:
        return Image(self.size_bytes, dict(self.pages))

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        first, skew = divmod(offset_bytes, PAGE_BYTES)
        last = -(-(offset_bytes + size_bytes) // PAGE_BYTES)
        content = b"".join([self.pages.get(page, _BLANK) for page in range(first, last)])
        return content if not skew and len(content) == size_bytes else content[skew : skew + size_bytes]

    def write(self, offset_bytes: int, content: bytes) -> None:
        assert offset_bytes >= 0
        assert offset_bytes + len(content) <= self.size_bytes
        position = 0
        while position < len(content):
            page, skew = divmod(offset_bytes + position, PAGE_BYTES)
            part = content[position : position + PAGE_BYTES - skew]
            if len(part) < PAGE_BYTES:
                old = self.pages.get(page, _BLANK)
                part_page = old[:skew] + part + old[skew + len(part) :]
            else:
                part_page = part
            self.pages[page] = part_page
            position += len(part)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Image):
            return NotImplemented
        pages = self.pages.keys() | other.pages.keys()
        return all(self.pages.get(page, _BLANK) == other.pages.get(page, _BLANK) for page in pages)

    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=False)
class Write:
    """A recorded write. ``issued`` and ``done`` are positions in the order of events; ``done`` -1: not done."""

    offset_bytes: int
    content: bytes
    issued: int
    done: int = -1
    failed: bool = False
    label: str = ""

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + len(self.content)


@dataclass(eq=False)
class Flush:
    """A recorded flush."""

    issued: int
    done: int = -1
    failed: bool = False


@dataclass(eq=False)
class Fault:
    """What befalls operations of a kind. ``at`` and ``number`` narrow it down; ``times`` is how often, -1 for ever."""

    kind: OpKind
    error: int
    """An errno, or SHORT for a transfer that ends early."""
    start_byte: int = 0
    stop_byte: int = 1 << 62
    number: int = -1
    """Only the operation with this number of its kind, counted from 0 since the device was made."""
    times: int = -1

    def hits(self, kind: OpKind, offset_bytes: int, size_bytes: int, number: int) -> bool:
        if kind is not self.kind or not self.times or self.number not in (-1, number):
            return False
        if kind is OpKind.FLUSH:
            return True
        return offset_bytes < self.stop_byte and offset_bytes + size_bytes > self.start_byte


@dataclass(eq=False)
class Pending:
    """An asynchronous operation that was issued and not yet done."""

    kind: OpKind
    offset_bytes: int
    view: memoryview
    future: IoFuture
    number: int
    record: Write | Flush | None


@dataclass(eq=False)
class SimulatedDevice:
    """Implements BlockDevice."""

    image: Image
    path: str = "simulated"
    block_bytes: int = 4096
    direct_io: bool = True
    io_engine: str = "simulated"
    order: random.Random | None = None
    """Given: operations under way complete in an order drawn from it. Else in the order issued."""
    faults: list[Fault] = field(default_factory=list)
    flips: dict[int, int] = field(default_factory=dict)
    """Byte offset → bits that a read finds flipped there, as a medium that lost them does."""
    hold: Callable[[OpKind, int, int], bool] | None = None
    """Operations for which it says True wait until ``release``. Called with kind, offset and size."""

    def __post_init__(self) -> None:
        self.size_bytes = self.image.size_bytes
        self.counters = IoCounters()
        self.base = self.image.copy()
        """The content before the first recorded event."""
        self.events: list[tuple[str, Write | Flush]] = []
        """("issued" | "done", operation), in order."""
        self.violations: list[str] = []
        """Breaches of the rules of buffers: memory that changed while the device still used it."""
        self.held: list[Pending] = []
        self._under_way: list[Pending] = []
        self._numbers = dict.fromkeys(OpKind, 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: IoFuture | None = None
        self.closed = False
        self.is_cut = False
        _made.add(self)

    # -- records --------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Position in the order of events: how many there were so far."""
        return len(self.events)

    @property
    def writes(self) -> list[Write]:
        return [record for what, record in self.events if what == "issued" and isinstance(record, Write)]

    @property
    def flushes(self) -> list[Flush]:
        return [record for what, record in self.events if what == "issued" and isinstance(record, Flush)]

    def forget(self) -> None:
        """Start recording anew from the present content. Nothing may be under way."""
        assert not self._under_way and not self.held
        self.base = self.image.copy()
        self.events.clear()

    def _issued(self, record: Write | Flush) -> None:
        if not self.is_cut:
            self.events.append(("issued", record))

    def _done(self, record: Write | Flush) -> None:
        record.done = len(self.events)
        self.events.append(("done", record))

    # -- blocking calls -------------------------------------------------------------------------------------------

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._check(offset_bytes, len(buffer))
        number = self._count(OpKind.READ)
        outcome = self._outcome(OpKind.READ, offset_bytes, len(buffer), number)
        if not outcome:
            self._fill(offset_bytes, buffer)
        self.counters.record(OpKind.READ, len(buffer), 0.0, outcome)
        if outcome:
            raise _failure(OpKind.READ, outcome, offset_bytes)

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._check(offset_bytes, len(buffer))
        number = self._count(OpKind.WRITE)
        record = Write(offset_bytes, bytes(buffer), len(self.events))
        self._issued(record)
        outcome = self._outcome(OpKind.WRITE, offset_bytes, len(buffer), number)
        if not outcome:
            self.image.write(offset_bytes, record.content)
        record.failed = bool(outcome)
        self._done(record)
        self.counters.record(OpKind.WRITE, len(buffer), 0.0, outcome)
        if outcome:
            raise _failure(OpKind.WRITE, outcome, offset_bytes)

    def flush_now(self) -> None:
        number = self._count(OpKind.FLUSH)
        record = Flush(len(self.events))
        self._issued(record)
        outcome = self._outcome(OpKind.FLUSH, 0, 0, number)
        record.failed = bool(outcome)
        self._done(record)
        self.counters.record(OpKind.FLUSH, 0, 0.0, outcome)
        if outcome:
            raise _failure(OpKind.FLUSH, outcome, 0)

    # -- asynchronous calls ---------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._loop is None, "attached already"
        self._loop = loop

    def read(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        self._check(offset_bytes, len(buffer))
        return self._submit(OpKind.READ, offset_bytes, buffer, None)

    def read_many(self, reads: Reads) -> ReadBatch:
        return read_each(self, reads)

    def begin_read(self, read: DirectRead) -> None:
        by_future(self, read)

    def begin_write(self, write: DirectWrite) -> None:
        by_future(self, write)

    def write(self, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        self._check(offset_bytes, len(buffer))
        record = Write(offset_bytes, bytes(buffer), len(self.events))
        self._issued(record)
        return self._submit(OpKind.WRITE, offset_bytes, buffer, record)

    def flush(self) -> asyncio.Future[None]:
        record = Flush(len(self.events))
        self._issued(record)
        return self._submit(OpKind.FLUSH, 0, memoryview(b""), record)

    async def stop(self) -> None:
        """Wait for what is under way. Held operations are the test's to release."""
        while self._under_way or self.held:
            self._idle = IoFuture(loop=asyncio.get_running_loop())
            await self._idle
        self._loop = None

    def close(self) -> None:
        self.closed = True

    def _submit(
        self, kind: OpKind, offset_bytes: int, view: memoryview, record: Write | Flush | None
    ) -> asyncio.Future[None]:
        loop = self._loop
        assert loop is not None, "not attached to a loop"
        if self.is_cut:
            gone = IoFuture(loop=loop)
            gone.set_exception(_failure(kind, errno.ENODEV, offset_bytes))
            gone.exception()
            return gone
        pending = Pending(kind, offset_bytes, view, IoFuture(loop=loop), self._count(kind), record)
        if self.hold is not None and self.hold(kind, offset_bytes, len(view)):
            self.held.append(pending)
        else:
            self._under_way.append(pending)
            loop.call_soon(self._tick)
        return pending.future

    def _tick(self) -> None:
        """One operation under way is done."""
        if self._under_way:
            position = self.order.randrange(len(self._under_way)) if self.order is not None else 0
            self._finish(self._under_way.pop(position))

    def release(self, pending: Pending, error: int = 0, *, lands: bool = True) -> None:
        """Let a held operation be done now, with an error if given."""
        self.held.remove(pending)
        self._finish(pending, error, lands=lands)

    def release_all(self) -> None:
        """Hold nothing any more, and let everything held be done."""
        self.hold = None
        while self.held:
            self.release(self.held[0])

    def _finish(self, pending: Pending, error: int = 0, *, lands: bool = False) -> None:
        outcome = error or self._outcome(pending.kind, pending.offset_bytes, len(pending.view), pending.number)
        record = pending.record
        if pending.kind is OpKind.READ and not outcome:
            self._fill(pending.offset_bytes, pending.view)
        elif isinstance(record, Write):
            if bytes(pending.view) != record.content:
                self.violations.append(f"the buffer of a write at {record.offset_bytes} changed under way")
            if not outcome or lands:
                self.image.write(record.offset_bytes, record.content)
        if record is not None:
            record.failed = bool(outcome)
            self._done(record)
        self.counters.record(pending.kind, len(pending.view), 0.0, outcome)
        if outcome:
            pending.future.set_exception(_failure(pending.kind, outcome, pending.offset_bytes))
        else:
            pending.future.set_result(None)
        if self._idle is not None and not self._idle.done() and not self._under_way and not self.held:
            self._idle.set_result(None)

    def cut(self) -> None:
        """The process is gone: nothing that its leftovers still do reaches the content or the records.

        Operations under way or held end without an effect, so that their waiters can be cancelled.
        """
        self.is_cut = True
        self.hold = None
        for pending in [*self._under_way, *self.held]:
            if not pending.future.done():
                pending.future.set_exception(_failure(pending.kind, errno.ENODEV, pending.offset_bytes))
                pending.future.exception()
        self._under_way.clear()
        self.held.clear()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # -- faults ---------------------------------------------------------------------------------------------------

    def _check(self, offset_bytes: int, size_bytes: int) -> None:
        assert not self.closed
        if offset_bytes % self.block_bytes or size_bytes % self.block_bytes or not size_bytes:
            raise ValueError(f"{size_bytes} bytes at {offset_bytes} are not whole blocks")
        if offset_bytes < 0 or offset_bytes + size_bytes > self.size_bytes:
            raise ValueError(f"{size_bytes} bytes at {offset_bytes}: beyond the end")

    def _count(self, kind: OpKind) -> int:
        self._numbers[kind] += 1
        return self._numbers[kind] - 1

    def operations(self, kind: OpKind) -> int:
        """How many operations of a kind were issued: the number of the next one."""
        return self._numbers[kind]

    def _outcome(self, kind: OpKind, offset_bytes: int, size_bytes: int, number: int) -> int:
        for fault in self.faults:
            if fault.hits(kind, offset_bytes, size_bytes, number):
                fault.times -= fault.times > 0
                return fault.error
        return 0

    def _fill(self, offset_bytes: int, buffer: memoryview) -> None:
        buffer[:] = self.image.read(offset_bytes, len(buffer))
        for at, bits in self.flips.items():
            if offset_bytes <= at < offset_bytes + len(buffer):
                buffer[at - offset_bytes] ^= bits

    def flip(self, offset_bytes: int, bits: int = 0x10) -> None:
        """Damage one byte of the content for good."""
        byte = self.image.read(offset_bytes, 1)[0]
        self.image.write(offset_bytes, bytes([byte ^ bits]))

    # -- crash images ---------------------------------------------------------------------------------------------

    def crash_image(
        self,
        moment: int | None = None,
        *,
        power_loss: bool = False,
        keep: Callable[[Write], Iterable[tuple[int, int]] | bool] | None = None,
    ) -> Image:
        """The content after a crash behind the first ``moment`` events (all of them by default).

        Writes that the crash may drop are kept as ``keep`` says: True whole, False not at all, else the
        (start, stop) ranges of bytes that arrived. By default none arrived.
        """
        moment = len(self.events) if moment is None else moment
        image = self.base.copy()
        for write in self.settled_writes(moment, power_loss=power_loss):
            image.write(write.offset_bytes, write.content)
        for write in self.loose_writes(moment, power_loss=power_loss):
            kept = keep(write) if keep is not None else False
            if kept is True:
                image.write(write.offset_bytes, write.content)
            elif kept is not False:
                for start, stop in kept:
                    image.write(write.offset_bytes + start, write.content[start:stop])
        return image

    def settled_writes(self, moment: int, *, power_loss: bool) -> list[Write]:
        """Writes that a crash behind the first ``moment`` events can't take back, in the order they were done."""
        limit = moment
        if power_loss:
            flushed = [
                f.issued for what, f in self.events[:moment] if what == "done" and isinstance(f, Flush) and not f.failed
            ]
            limit = max(flushed, default=0)
        return [w for what, w in self.events[:limit] if what == "done" and isinstance(w, Write) and not w.failed]

    def loose_writes(self, moment: int, *, power_loss: bool) -> list[Write]:
        """Writes that a crash behind the first ``moment`` events may drop or tear, in the order issued."""
        settled = {id(w) for w in self.settled_writes(moment, power_loss=power_loss)}
        return [
            w
            for what, w in self.events[:moment]
            if what == "issued" and isinstance(w, Write) and id(w) not in settled and not (w.failed and w.done < moment)
        ]


_made: weakref.WeakSet[SimulatedDevice] = weakref.WeakSet()


def cut_all() -> None:
    """Cut every device still there: a test that failed half-way leaves nothing that waits for ever."""
    for device in list(_made):
        device.cut()


def torn(rng: random.Random) -> Callable[[Write], Iterable[tuple[int, int]] | bool]:
    """Each loose write: whole, absent, cut at a sector's end, or any of its sectors."""

    def keep(write: Write) -> Iterable[tuple[int, int]] | bool:
        way = rng.randrange(4)
        if way < 2:
            return way == 1
        sectors = len(write.content) // SECTOR_BYTES
        if way == 2:
            return [(0, rng.randrange(sectors + 1) * SECTOR_BYTES)]
        return [(s * SECTOR_BYTES, (s + 1) * SECTOR_BYTES) for s in range(sectors) if rng.random() < 0.5]

    return keep


def _failure(kind: OpKind, outcome: int, offset_bytes: int) -> DeviceFailed:
    number = 0 if outcome == SHORT else outcome
    what = "nothing more transferred" if outcome == SHORT else os.strerror(outcome)
    error = {OpKind.READ: ReadFailed, OpKind.WRITE: WriteFailed, OpKind.FLUSH: FlushFailed}[kind]
    return error(f"simulated: {kind} at {offset_bytes}: {what}", errno=number, offset_bytes=offset_bytes)


def fail(kind: OpKind, error: int = errno.EIO, **fields: int) -> Fault:
    """A fault, for short: ``device.faults.append(fail(OpKind.WRITE, times=1))``."""
    return Fault(kind, error, **fields)
