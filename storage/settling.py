"""What was freed becomes free: slots in limbo once a flush covers them and nobody holds them; who waits hears of it.

Settling goes in steps, so that a million slots let go of at once keep nobody waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from storage.errors import DeviceFailed
from storage.journal import Journal
from storage.slot_table import RowIds
from storage.slots import Slots

log = logging.getLogger("rawblockd.storage")

SETTLED_AT_ONCE = 1024
"""Slots in limbo looked at between two turns of the loop: some 1 ms."""

FLUSH_AHEAD = 3
"""Eighths of a class's slots: so many in limbo are flushed before the class runs dry, which is at four or more."""


class Settling:
    def __init__(self, slots: Slots, journal: Journal) -> None:
        self._slots = slots
        self._journal = journal
        self.flush_above = [0] * len(slots.limbo_of_class)
        """Slots of a class in limbo from which on ``flush_ahead`` is to be called; 0: not known yet."""
        self._failed_at = -1
        """What had been flushed when a flush failed."""
        self._changed: asyncio.Future[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._rest: asyncio.Handle | None = None
        self._closed = False

    # -- slots that become free -----------------------------------------------------------------------------------

    def let_go(self, row_id: int) -> None:
        """A reader is done with a slot."""
        if self._slots.let_go(row_id):
            self.pulse()

    def let_go_each(self, row_ids: Sequence[int]) -> None:
        """As ``let_go``, of many slots."""
        if self._slots.let_go_each(row_ids):
            self.pulse()

    def let_go_all(self, *row_ids: RowIds) -> None:
        """A snapshot or an import is done with its slots."""
        self._slots.let_go_all(*row_ids)
        self.settle()

    def settle(self) -> None:
        """Free what limbo may give, after a flush; if that is much, the rest in the loop's next turns."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        freed, more = self._slots.settle(self._journal.flushed_through, SETTLED_AT_ONCE)
        if more and not self._closed:
            self._rest = asyncio.get_running_loop().call_soon(self.settle)
        if freed:
            self.pulse()

    def settle_and_look(self) -> None:
        """As ``settle``, and whoever waits looks again: slots that were made void can be had."""
        self.settle()
        self.pulse()

    # -- flushing for it ------------------------------------------------------------------------------------------

    # A class whose slots mostly wait for a flush makes one before it takes a slab, or a slot of another class: else a
    # few keys that are overwritten without pause would in the end have every slab, and other classes none. So it has at
    # most about twice what it holds. For puts not to wait the flush begins a little earlier.

    def is_mostly_limbo(self, slot_class: int) -> bool:
        """Whether a flush, if there can be one, gives the class half of its slots back."""
        return self._slots.limbo_of_class[slot_class] * 2 > self._slots.total(slot_class) and not self._has_failed

    def flush_ahead(self, slot_class: int) -> None:
        """Flush in the background if that will soon be needed."""
        self.flush_above[slot_class] = self._slots.total(slot_class) * FLUSH_AHEAD // 8
        if self._slots.limbo_of_class[slot_class] > self.flush_above[slot_class] and not self._has_failed:
            self.settle_soon()

    async def flush_and_settle(self, timeout_seconds: float) -> None:
        """Wait for a flush of what limbo waits for. It may fail: that is not told."""
        self.settle_soon()
        assert self._flusher is not None
        await asyncio.wait([self._flusher], timeout=timeout_seconds)

    @property
    def _has_failed(self) -> bool:
        """Whether the last flush failed: then it's not this one's turn to try again."""
        return self._failed_at == self._journal.flushed_through

    def settle_soon(self) -> None:
        """Flush what limbo waits for, in the background."""
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())
            self._flusher.add_done_callback(self._flushed)

    async def _flush(self) -> None:
        await self._journal.flush()
        self.settle()

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flusher = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DeviceFailed):
            self._failed_at = self._journal.flushed_through
            log.warning("flush failed", extra={"fields": {"error": str(error)}})
        elif error is not None:
            raise error
        self.pulse()

    # -- who waits ------------------------------------------------------------------------------------------------

    def pulse(self) -> None:
        """Something became free: whoever waits looks again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def next_change(self) -> asyncio.Future[None]:
        """Done with the next ``pulse``. Shared: not to be cancelled."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def cancel(self) -> None:
        """Leave what is in steps as it is: the engine stops."""
        self._closed = True
        if self._rest is not None:
            self._rest.cancel()

    async def close(self) -> None:
        """Wait for what runs in the background."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
