"""Many puts as one: each was received and written on its own, and all join the journal one right after the other.

Nothing of a batch is visible before that, so a batch that breaks while it is uploaded leaves nothing behind; and one
write of the journal carries the rows of all, or few writes those of a large batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from storage.commit import Commit, PutUnit
from storage.entries import Durability, PutResult
from storage.errors import DeviceFailed, JournalUnavailable, PreconditionFailed, RawblockdError, Unavailable
from storage.journal import Unit
from storage.put_session import PutSession
from storage.turns import ROWS_CHANGED_AT_ONCE, Turns
from storage.write_path import WritePath

_NONE, _FLUSH = Durability.NONE, Durability.FLUSH

Outcome = PutResult | RawblockdError


class Refusal(NamedTuple):
    """A put of a batch whose condition does not hold, and the queued unit that decided so, if one did."""

    position: int
    error: PreconditionFailed
    against: Unit | None


class BatchWrites:
    def __init__(self, path: WritePath, commit: Commit) -> None:
        self._path = path
        self._commit = commit

    async def commit(self, puts: Sequence[PutSession]) -> list[Outcome]:
        """Finish staged puts, in this order; each put's result or its error. None of them fails another.

        A later put of a key replaces an earlier one of the same batch.
        """
        outcomes: list[Outcome | None] = [None] * len(puts)
        units: list[tuple[int, PutUnit]] = []
        try:
            await self._await_written(puts, outcomes)
            self._path.step("batch_written")
            refused = await self._join_all(puts, outcomes, units)
            self._path.step("batch_joined")
            for refusal in refused:
                await self._refuse(puts[refusal.position], refusal, outcomes, units)
        finally:
            for put in puts:
                put.release()  # does nothing for those that joined
        await self._reach_all(puts, outcomes, units)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _await_written(self, puts: Sequence[PutSession], outcomes: list[Outcome | None]) -> None:
        for position, put in enumerate(puts):
            if put.is_written:
                continue
            try:
                await put.written()
            except DeviceFailed as error:
                outcomes[position] = error
        # Once, for what was acknowledged by now: puts of these keys that still come are beside this batch, and of what
        # is beside one another either may join first. Waiting for them, too, could go on for ever (L1).
        earlier = [io for put in puts if (io := self._path.behind(put.digest)) is not None]
        if earlier:
            await asyncio.wait(earlier)

    async def _join_all(
        self, puts: Sequence[PutSession], outcomes: list[Outcome | None], units: list[tuple[int, PutUnit]]
    ) -> list[Refusal]:
        """Join all. Returns those whose condition does not hold: against what, must become durable."""
        refused = []
        # Whole blocks of the journal between two turns: what its writer then takes leaves none half empty.
        per_block = self._path.rows_per_journal_block
        turns = Turns(max(1, ROWS_CHANGED_AT_ONCE // per_block) * per_block)
        for position, put in enumerate(puts):
            if outcomes[position] is None:
                try:
                    self._join(put, position, outcomes, units)
                except PreconditionFailed as error:
                    refused.append(Refusal(position, error, self._commit.pending(put.digest)))
                except RawblockdError as error:
                    outcomes[position] = error
            await turns.after()
        return refused

    def _join(
        self, put: PutSession, position: int, outcomes: list[Outcome | None], units: list[tuple[int, PutUnit]]
    ) -> None:
        assert put.intent is not None
        unit = self._commit.put(put.intent, put.conditions, put.durability)
        put.hand_over()
        if unit is None:
            outcomes[position] = PutResult(put.write_id, True, _NONE)
        else:
            units.append((position, unit))

    async def _refuse(
        self, put: PutSession, refusal: Refusal, outcomes: list[Outcome | None], units: list[tuple[int, PutUnit]]
    ) -> None:
        """Refuse once what the condition was decided against is durable (D3), whatever became of the key since: a later
        put of the batch must not be what lets an earlier one pass. If that was undone, decide again."""
        if refusal.against is not None:
            await asyncio.wait([refusal.against.done])
            if isinstance(refusal.against.outcome, JournalUnavailable):
                try:
                    await self._commit.wait_for_conditions(put.digest, put.conditions)
                    self._join(put, refusal.position, outcomes, units)
                except RawblockdError as error:
                    outcomes[refusal.position] = error
                return
        outcomes[refusal.position] = refusal.error

    async def _reach_all(
        self, puts: Sequence[PutSession], outcomes: list[Outcome | None], units: list[tuple[int, PutUnit]]
    ) -> None:
        """Wait until each put has reached its level; level ``none`` is reached already.

        One wait for all: units settle in the order in which they joined, so once the last one has, all have.
        """
        waited_for = [unit for position, unit in units if puts[position].durability is not _NONE]
        if waited_for:
            await asyncio.wait([waited_for[-1].done])
        turns = Turns(ROWS_CHANGED_AT_ONCE)
        for position, unit in units:
            await turns.after()
            put = puts[position]
            error: RawblockdError | None = None
            if put.durability is not _NONE and not isinstance(unit.outcome, int):
                error = unit.outcome
            if put.durability is _FLUSH and isinstance(unit.outcome, int):
                error = await self._flush(unit.outcome)
            if self._path.count(unit.replaced, put.durability, failed=error is not None) or error is None:
                outcomes[position] = PutResult(put.write_id, unit.replaced == 0, put.durability)
            else:
                outcomes[position] = error

    async def _flush(self, block: int) -> RawblockdError | None:
        """Why the device could not be flushed through a block of the journal; None if it was."""
        try:
            await self._path.flush_through(block)
        except (Unavailable, DeviceFailed) as error:
            return error
        return None
