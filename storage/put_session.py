"""One put under way, from its reservation to its end: record written, row joined, level reached.

One step calls the next: a coroutine for each cost more than the steps. What has to be waited for in the rare case (a
condition that does not hold yet, an earlier put of the key, a device flush) goes on in a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from storage.commit import PutUnit
from storage.entries import Conditions, Durability, PutResult
from storage.errors import DeviceFailed, PreconditionFailed, RawblockdError, Unavailable
from storage.journal import Unit
from storage.put_record import PutRecord
from storage.row_changes import PutIntent

if TYPE_CHECKING:
    from storage.write_path import WritePath

_NONE, _FLUSH = Durability.NONE, Durability.FLUSH
"""Global names: looking a member of an enumeration up takes ten times as long (0.2 µs), and every put does."""

Ended = Callable[[PutResult | RawblockdError], None]
"""Told once how a put ended, on the loop's thread. What it raises goes to the loop's exception handler."""


class PutSession(PutRecord):
    """Exactly one of ``commit``, ``commit_soon`` and ``abort`` ends it; ``abort`` after one of the others gives up what
    has not joined the journal yet."""

    __slots__ = (
        "_detached",
        "_done",
        "_earlier",
        "_joined",
        "_replaced",
        "_staged",
        "conditions",
        "durability",
        "known",
    )

    def __init__(
        self,
        path: WritePath,
        key: bytes,
        packed_map: bytes,
        header_bytes: int,
        payload_bytes: int,
        slot_class: int,
        expires_at: int,
        durability: Durability,
        conditions: Conditions,
    ) -> None:
        PutRecord.__init__(self, path, key, packed_map, header_bytes, payload_bytes, slot_class, expires_at)
        self.durability = durability
        self.conditions = conditions
        self.known: tuple[int, str] | None = None
        """When it is stored (ms since 1970) and its content type, if listings will want to know."""
        self._staged = False
        self._detached = False
        """The answer was given before the end (level ``none``)."""
        self._done: Ended | None = None
        self._replaced = 0
        self._joined: asyncio.Future[None] | None = None
        self._earlier: asyncio.Future[None] | None = None

    # -- ending ---------------------------------------------------------------------------------------------------

    async def commit(self) -> PutResult:
        """Finish. Raises LengthMismatch, PreconditionFailed, QuotaExceeded, SpaceHeld, NamespaceWiped, WriteFailed,
        JournalUnavailable, FlushFailed."""
        if self.lacks_defaults:
            await self.append_defaults()
        future: asyncio.Future[PutResult] = self._path.loop.create_future()
        self.commit_soon(partial(_settle, future))
        return await future

    def commit_soon(self, done: Ended) -> None:
        """As ``commit``, for one who is told of the end: later, or at once at level ``none``. Raises LengthMismatch and
        Busy at once: then it is to be aborted.

        After an error that is told everything is given back already. A put that is aborted before it has joined tells
        nobody.
        """
        if self.lacks_defaults:
            self._path.go_on(self._append_and_commit(done))
            return
        self.seal()
        self._done = done
        if self.durability is _NONE:
            self._tell(self._path.finish_later(self))

    async def _append_and_commit(self, done: Ended) -> None:
        try:
            await self.append_defaults()
            if self._open:
                self.commit_soon(done)
        except RawblockdError as error:
            self._done = done
            self._fail(error)

    def stage(self) -> None:
        """Complete the record and start its last writes; its memory goes back when they end. For ``commit_many``.

        Raises LengthMismatch, Busy.
        """
        self._staged = True
        self.seal()

    # -- the record is written ------------------------------------------------------------------------------------

    def _is_written(self) -> None:
        if self._staged:
            return
        if self._failure is not None:
            self._fail(self._failure)
            return
        path = self._path
        path.step("put_payload_written")
        if not self._detached:
            self._earlier = path.behind(self.digest)
        if self._earlier is None or self._earlier.done():
            self._join()
        else:
            self._earlier.add_done_callback(self._join_behind)

    @property
    def is_written(self) -> bool:
        """Whether the device has the whole record, and no write of it failed."""
        return not self._writes_under_way and self._failure is None

    async def written(self) -> None:
        """Wait until the device has the whole record. Raises WriteFailed."""
        while self._writes_under_way:
            await self._written_more()
        if self._failure is not None:
            raise self._failure

    # -- joining --------------------------------------------------------------------------------------------------

    def _join_behind(self, _earlier: asyncio.Future[None]) -> None:
        """The put of the key that was acknowledged before this one has joined, or never will."""
        if self._open:
            self._join()

    def _join(self) -> None:
        assert self.intent is not None
        try:
            unit = self._path.commit.put(self.intent, self.conditions, self.durability)
        except PreconditionFailed:
            self._path.go_on(self._join_when_decided(self.intent))
        except RawblockdError as error:
            self._fail(error)
        else:
            self._has_unit(unit)

    async def _join_when_decided(self, intent: PutIntent) -> None:
        """Refused only once what the condition was decided against is durable (D3); until then it may come to hold."""
        commit = self._path.commit
        try:
            while True:
                await commit.wait_for_conditions(self.digest, self.conditions)
                if not self._open:
                    return
                try:
                    unit = commit.put(intent, self.conditions, self.durability)
                    break
                except PreconditionFailed:
                    continue
        except RawblockdError as error:
            self._fail(error)
            return
        self._has_unit(unit)

    def _has_unit(self, unit: PutUnit | None) -> None:
        self.hand_over()
        if unit is None:  # the journal fails, and the put waits in memory
            self._end(PutResult(self.write_id, True, _NONE))
        else:
            self._replaced = unit.replaced
            unit.when_settled(self._settled)

    def hand_over(self) -> None:
        """The put has joined: the slot is the index's now."""
        self._open = False
        if self.known is not None:
            self._path.remember_key(self.row_id, self.write_id, self._key, self.known)
        if self._detached:
            self._has_joined()

    # -- its level is reached -------------------------------------------------------------------------------------

    def _settled(self, unit: Unit) -> None:
        block = unit.outcome
        assert block is not None
        if not isinstance(block, int):
            self._reached(block)
        elif self.durability is _FLUSH:
            self._path.go_on(self._flush(block))
        else:
            self._reached(None)

    async def _flush(self, block: int) -> None:
        try:
            await self._path.flush_through(block)
        except (Unavailable, DeviceFailed) as error:
            self._reached(error)
        else:
            self._reached(None)

    def _reached(self, error: RawblockdError | None) -> None:
        if self._path.count(self._replaced, self.durability, failed=error is not None):
            self._end(PutResult(self.write_id, not self._replaced, self.durability))
        elif error is not None:
            self._end(error)

    # -- telling, and giving back ---------------------------------------------------------------------------------

    def _tell(self, outcome: PutResult | RawblockdError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def _end(self, outcome: PutResult | RawblockdError) -> None:
        if self._detached:
            self._path.end_background(self)
        self._tell(outcome)

    def _fail(self, error: RawblockdError) -> None:
        """The put won't join."""
        if self._detached:
            self._path.count_lost()
            if self._earlier is not None and not self._earlier.done():
                # Whoever waits for this put must not join before the one that it waited for.
                self._earlier.add_done_callback(self._end_behind)
            else:
                self._end_behind()
        elif self._open:
            self.release()
            self._tell(error)

    def _end_behind(self, _earlier: asyncio.Future[None] | None = None) -> None:
        self.release()
        self._path.end_background(self)

    def abort(self) -> None:
        """Give everything back, unless the put has joined, or was answered. Idempotent."""
        if self._open and not self._detached:
            self._done = None
            self.release()

    def release(self) -> None:
        self._has_joined()
        super().release()

    # -- level none -----------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """The answer is given now: from here on only ``release`` ends the session."""
        self._detached = True
        self._earlier = self._path.behind(self.digest)

    def joined(self) -> asyncio.Future[None]:
        """Of a detached put: done once it has joined, or never will."""
        if self._joined is None:
            self._joined = self._path.loop.create_future()
        return self._joined

    def _has_joined(self) -> None:
        if self._detached:
            self._path.forget_behind(self)
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)


def _settle(future: asyncio.Future[PutResult], outcome: PutResult | RawblockdError) -> None:
    if future.done():
        return  # who waited has left
    if isinstance(outcome, RawblockdError):
        future.set_exception(outcome)
        future.exception()  # a waiter that leaves now does not make this an unretrieved error
    else:
        future.set_result(outcome)
