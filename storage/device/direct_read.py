"""A read or write that tells the one who asked for it directly, from the callback in which the loop learns of its end.

One object for each, which is also what the ring hands back: no operation, no future, and no pass of the loop between
the end of a read and what is done with its bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from storage.device.counters import READ, WRITE, OpKind
from storage.device.operations import Operation
from storage.errors import DeviceFailed

if TYPE_CHECKING:
    from storage.device.interface import BlockDevice


class DirectIo:
    """Made by who wants to be told: a child of this class says in ``ended`` what is to be done then."""

    kind: ClassVar[OpKind]
    view: memoryview
    """Bytes, filled or written whole. The device's until ``ended``."""
    length: int
    """Of ``view``."""
    offset_bytes: int
    error: DeviceFailed | None = None

    def ended(self) -> None:
        """Called once, on the loop's thread, when the device is done with ``view``, and with ``error`` if it
        failed; never by ``begin_read`` or ``begin_write`` itself.

        What it raises goes to the loop's exception handler, and keeps no other from being told.
        """
        raise NotImplementedError

    def operation(self, block_bytes: int) -> Operation:
        """The same as an operation: for threads, and for what does not go through at once."""
        operation = Operation(self.kind, self.offset_bytes, self.view, block_bytes)
        operation.direct = self
        return operation


class DirectRead(DirectIo):
    """``view`` is filled."""

    kind = READ


class DirectWrite(DirectIo):
    """``view`` is written."""

    kind = WRITE


def by_future(device: BlockDevice, direct: DirectIo) -> None:
    """``begin_read`` and ``begin_write`` of a device that has only futures. On the loop's thread."""

    def tell(io: asyncio.Future[None]) -> None:
        error = io.exception()
        if error is not None and not isinstance(error, DeviceFailed):
            raise error
        direct.error = error
        direct.ended()

    operation = device.read if direct.kind is READ else device.write
    operation(direct.offset_bytes, direct.view).add_done_callback(tell)
