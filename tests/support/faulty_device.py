"""A simulated device on which one operation, or all from one on, goes wrong as system calls do.

A fault is a script of results, one per system call that an operation makes: a negative errno, or how many bytes were
transferred. The rules by which a device goes on after each are the real ones (``storage.device.operations``), and a
write that fails half-way leaves its first half behind.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass

from storage.device.counters import OpKind
from storage.device.operations import AGAIN, RETRIES_MAX, Operation
from tests.support.simulated_device import SECTOR_BYTES, Image, Pending, SimulatedDevice, Write, _failure

Script = Callable[[int], list[int]]
"""From the size of an operation to the results of its first system calls; the calls behind them succeed."""


@dataclass(frozen=True)
class Fault:
    """What befalls an operation. ``delay_seconds`` pass before it is done (asynchronous ones only)."""

    name: str
    script: Script
    delay_seconds: float = 0.0
    fails: bool = True
    """Whether the operation fails in the end."""


def _torn(size_bytes: int) -> list[int]:
    return [max(SECTOR_BYTES, size_bytes // 2 // SECTOR_BYTES * SECTOR_BYTES), -errno.EIO]


FAULTS = (
    Fault("EIO", lambda _: [-errno.EIO]),
    Fault("ENOSPC", lambda _: [-errno.ENOSPC]),
    Fault("EINTR once", lambda _: [-errno.EINTR], fails=False),
    Fault("EINTR for ever", lambda _: [-errno.EINTR] * (RETRIES_MAX + 1)),
    Fault("short transfer", lambda size: [size // 2 + 100, size // 4], fails=False),
    Fault("nothing transferred", lambda _: [0]),
    Fault("torn", _torn),
    Fault("slow", lambda _: [], delay_seconds=30.0, fails=False),
    Fault("slow and then EIO", lambda _: [-errno.EIO], delay_seconds=30.0),
)


class FaultyDevice(SimulatedDevice):
    """Operations are counted from 1, reads, writes and flushes together. The fault befalls ``first`` to ``last``."""

    def __init__(self, image: Image, fault: Fault | None = None, first: int = 0, last: int = 0) -> None:
        super().__init__(image)
        self.fault = fault
        self.first = first
        self.last = last
        self.total = 0
        self.hits: list[tuple[OpKind, int]] = []
        """Kind and offset of the operations that the fault befell."""

    def _count(self, kind: OpKind) -> int:
        super()._count(kind)
        self.total += 1
        return self.total

    def _is_hit(self, number: int) -> bool:
        return self.fault is not None and self.first <= number <= self.last

    # -- blocking ---------------------------------------------------------------------------------------------------

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._now(OpKind.READ, offset_bytes, buffer, super().read_now)

    def write_now(self, offset_bytes: int, buffer: memoryview) -> None:
        self._now(OpKind.WRITE, offset_bytes, buffer, super().write_now)

    def _now(
        self, kind: OpKind, offset_bytes: int, buffer: memoryview, plainly: Callable[[int, memoryview], None]
    ) -> None:
        if not self._is_hit(self.total + 1):
            plainly(offset_bytes, buffer)
            return
        number = self._count(kind)
        self._check(offset_bytes, len(buffer))
        assert self._is_hit(number)
        outcome = self._carry(kind, offset_bytes, buffer)
        self.counters.record(kind, len(buffer), 0.0, outcome)
        if outcome:
            raise _failure(kind, outcome, offset_bytes)

    # -- asynchronous -----------------------------------------------------------------------------------------------

    def _submit(
        self, kind: OpKind, offset_bytes: int, view: memoryview, record: Write | object | None
    ) -> asyncio.Future[None]:
        if self.is_cut or not self._is_hit(self.total + 1) or self.fault is None or not self.fault.delay_seconds:
            return super()._submit(kind, offset_bytes, view, record)  # type: ignore[arg-type]
        self.hold = lambda *_: True
        future = super()._submit(kind, offset_bytes, view, record)  # type: ignore[arg-type]
        self.hold = None
        asyncio.get_running_loop().call_later(self.fault.delay_seconds, self._late, self.held[-1])
        return future

    def _late(self, pending: Pending) -> None:
        if pending in self.held:
            self.release(pending, lands=False)

    def _finish(self, pending: Pending, error: int = 0, *, lands: bool = False) -> None:
        if error or not self._is_hit(pending.number):
            super()._finish(pending, error, lands=lands)
            return
        record = pending.record
        if isinstance(record, Write) and bytes(pending.view) != record.content:
            self.violations.append(f"the buffer of a write at {record.offset_bytes} changed under way")
        outcome = self._carry(pending.kind, pending.offset_bytes, pending.view)
        super()._finish(pending, outcome)

    def _carry(self, kind: OpKind, offset_bytes: int, view: memoryview) -> int:
        """Carry an operation through by the real rules: 0, SHORT, or an errno."""
        assert self.fault is not None
        self.hits.append((kind, offset_bytes))
        results = self.fault.script(len(view))
        if kind is OpKind.FLUSH:
            results = [min(result, 0) for result in results]
        operation = Operation(kind, offset_bytes, view, self.block_bytes)
        while True:
            rest, position = operation.rest(), operation.position()
            result = min(results.pop(0), len(rest)) if results else len(rest)
            if result > 0 and kind is OpKind.READ:
                rest[:result] = self.image.read(position, result)
            elif result > 0:
                self.image.write(position, bytes(rest[:result]))
            outcome = operation.advance(result)
            if outcome != AGAIN:
                return outcome
