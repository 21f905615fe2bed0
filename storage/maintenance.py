"""What happens without being asked: flushes, expiry, checkpoints, journal compaction.

====================  =====================================================================================
task                  when
====================  =====================================================================================
flush                 a written journal block is older than ``flush_interval_seconds``
expiry                every ``expiry_interval_seconds``: entries, leases, and rows of wiped namespaces
checkpoint            the newest is older than ``checkpoint_interval_seconds`` and something changed,
                      or the journal since it exceeds 1/(N+1) of the ring (L2), or a block since is damaged
compaction            checkpoints are frozen and the journal is half full (R4)
self test             at start and every ``SELF_TEST_SECONDS``
scrubbing             always, at ``scrub_bytes_per_second``
====================  =====================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from storage.checkpoint.checkpointer import Checkpointer
from storage.commit import Commit
from storage.compaction import Compactor
from storage.counters import EngineCounters
from storage.errors import Busy, DeviceFailed, Unavailable
from storage.expiry import expire
from storage.health import SELF_TEST_SECONDS
from storage.holds import Holds
from storage.index import Index
from storage.journal import Journal
from storage.namespace_changes import NamespaceChanges
from storage.options import EngineOptions
from storage.scrubber import Scrubber
from storage.space import Space

log = logging.getLogger("rawblockd.storage")

TICK_SECONDS = 0.25
RELAX_SECONDS = 10.0
CHECKPOINT_RETRY_SECONDS = 5.0
OVERDUE_INTERVALS = 2
"""Due for so many intervals, a checkpoint is overdue: the newest is three intervals old then, or more."""
COMPACT_RATIO = 0.5
NEARLY_FULL_RATIO = 0.875


@dataclass(slots=True)
class Maintenance:
    index: Index
    commit: Commit
    journal: Journal
    space: Space
    checkpointer: Checkpointer
    compactor: Compactor
    counters: EngineCounters
    options: EngineOptions
    clock: Callable[[], float]
    self_test: Callable[[], Awaitable[None]]
    scrubber: Scrubber
    namespaces: NamespaceChanges
    holds: Holds
    frozen: Callable[[], bool]
    """Whether checkpoints are frozen (R4)."""
    checkpoint_failed: str = ""
    due_since: float | None = None
    """When the next checkpoint became due; None while none is. Seconds since 1970."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._checkpoints())]
        if self.options.background:
            self._tasks += [
                loop.create_task(self._every(self.options.flush_interval_seconds, self.flush)),
                loop.create_task(self._every(self.options.expiry_interval_seconds, self.expire)),
                loop.create_task(self._every(RELAX_SECONDS, self._relax)),
                loop.create_task(self._every(SELF_TEST_SECONDS, self.self_test)),
            ]
            if self.options.scrub_bytes_per_second:
                self._tasks.append(loop.create_task(self.scrubber.run()))

    def journal_grew(self) -> None:
        """Wake the checkpoint task if the journal's fill makes it time."""
        if self._fill_due() or (self.frozen() and self.journal.used_ratio > COMPACT_RATIO):
            self._wake.set()

    async def stop(self) -> None:
        """End the tasks between two of their steps: what is under way comes to its end."""
        self._stopped.set()
        self.scrubber.stop()
        self._wake.set()
        for task in self._tasks:
            await task

    async def _every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        following = loop.time() + seconds
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), max(0.0, following - loop.time()))
            if not self._stopped.is_set():
                following = loop.time() + seconds
                try:
                    await step()
                except (Unavailable, DeviceFailed) as error:
                    log.warning("background step failed", extra={"fields": {"error": str(error)}})

    async def flush(self) -> None:
        """Flush what is written and free what limbo may give."""
        if self.journal.flushed_through < self.journal.content_through:
            await self.journal.flush()
        self.space.settle()
        await self.journal.mark_flushed()

    async def expire(self) -> None:
        self.holds.end_expired()
        self.namespaces.free_soon()
        await expire(self.index, self.commit, self.clock)

    async def _relax(self) -> None:
        await self.space.relax()

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        newest = self.checkpointer.newest
        if newest is None or newest.header is None:
            return True
        if self._fill_due() or self.scrubber.newest_bad_block >= newest.header.journal_block:
            return True  # a crash now would lose what only a damaged block tells
        age = self.clock() - newest.header.written_ms / 1000
        changed = self.journal.published_seq > newest.header.seq
        return self.options.background and changed and age >= self.options.checkpoint_interval_seconds

    @property
    def checkpoint_overdue(self) -> bool:
        """Whether a checkpoint does not get to its end. A quiet time before it was due does not count."""
        if self.due_since is None or not self.options.background:
            return False
        return self.clock() - self.due_since > OVERDUE_INTERVALS * self.options.checkpoint_interval_seconds

    def _fill_due(self) -> bool:
        newest = self.checkpointer.newest
        first = self.journal.tail if newest is None or newest.header is None else newest.header.journal_block
        geometry = self.index.geometry
        since_newest = (self.journal.last_block + 1 - first) * (geometry.copies + 1)
        # Nearly full although the newest is young: after a crash between two checkpoints the tail may lag behind.
        return since_newest > geometry.journal_blocks or self.journal.used_ratio > NEARLY_FULL_RATIO

    async def _checkpoints(self) -> None:
        """Checkpoints and compactions, one after the other."""
        while await self._woken():
            try:
                if self.frozen():
                    if self.journal.used_ratio > COMPACT_RATIO and not self.journal.unavailable:
                        await self.compactor.run()
                elif self.checkpoint_due():
                    self.due_since = self.clock() if self.due_since is None else self.due_since
                    await self.checkpoint()
            except (Unavailable, DeviceFailed, Busy) as error:
                log.error("checkpoint failed", extra={"fields": {"error": str(error)}})
                await self._pause()

    async def _woken(self) -> bool:
        """Wait for the journal or the next tick; False when it is time to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), TICK_SECONDS)
        self._wake.clear()
        return not self._stopped.is_set()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), CHECKPOINT_RETRY_SECONDS)

    async def checkpoint(self) -> None:
        """One checkpoint, counted. Raises DeviceFailed, Unavailable."""
        try:
            result = await self.checkpointer.run()
        except (Unavailable, DeviceFailed) as error:
            self.counters.checkpoints["failed"] += 1
            self.checkpoint_failed = str(error)
            raise
        self.counters.checkpoints["success"] += 1
        self.checkpoint_failed = ""
        self.due_since = None
        self.space.settle()
        log.info(
            "checkpoint written",
            extra={
                "fields": {
                    "copy": result.copy,
                    "seq": result.seq,
                    "pages": result.pages,
                    "bytes": result.bytes,
                    "duration_seconds": round(result.duration_seconds, 4),
                }
            },
        )
