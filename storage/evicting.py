"""Making room on a full device: which entries and slabs go, ahead of need where a class had to wait once.

Such a class keeps a reserve of free slots, whose freeing rows are durable and flushed before a put asks. What goes for
it, in this order: rows of wiped namespaces; a slab of a class that needs it less; entries of the class itself; if it
has nothing to give, any other slab.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from storage.commit import Commit
from storage.counters import EngineCounters
from storage.errors import DeviceFailed, Unavailable
from storage.eviction.class_balance import ClassBalance
from storage.eviction.interface import CALLS_MAX
from storage.format.row import FreeReason, SlotState
from storage.index import Index
from storage.journal import Journal, Unit
from storage.options import EvictionPolicy
from storage.settling import Settling
from storage.slab_choice import slab_to_empty
from storage.waiting import UNITS_AT_ONCE, wait_all

log = logging.getLogger("rawblockd.storage")

AHEAD_BYTES = 64 << 20
AHEAD_MAX_SLOTS = 2048
# What clients can fill during one flush (some 20 ms): 20,000 puts a second of 4 KiB are 400 slots, 1.6 GB/s are 32 MiB.
AHEAD_SHARE = 32
"""A reserve is at most one in so many slots of its class: what is kept free holds no entry that could be hit."""

Victims = list[tuple[int, int]]
"""Row ids, each with the seq of the row that is to go: a slot that has another row by then is spared."""


class Evicting:
    def __init__(
        self,
        index: Index,
        commit: Commit,
        journal: Journal,
        counters: EngineCounters,
        settling: Settling,
        balance: ClassBalance,
        policy: EvictionPolicy,
    ) -> None:
        self._index = index
        self._slots = index.slots
        self._commit = commit
        self._journal = journal
        self._counters = counters
        self._settling = settling
        self._balance = balance
        self._policy = policy
        self._eviction = index.eviction
        self.held_in: Callable[[int], bool] = lambda _: False
        """Whether a slot of a slab is held for long, so that the slab can't be emptied."""
        self.held_slots: Callable[[int], int] = lambda _: 0
        """How many slots of a class are held for long."""
        self.will_be_held: Callable[[int], bool] = lambda _: False
        """Whether a slot is about to be held for long."""
        self.wiped_rows: Callable[[int, int], Awaitable[list[int]]] = _no_rows
        """Rows of a class whose namespace was wiped: they go before any other."""
        self.all_held: set[int] = set()
        """Classes in which the last search for victims found only held ones."""
        self.ahead = [0] * len(index.geometry.class_bytes)
        """Slots that a class would keep free ahead of need; 0: it didn't have to wait of late."""
        self._drain_is_held = False
        self._evictors: dict[int, asyncio.Task[int]] = {}

    # -- when -----------------------------------------------------------------------------------------------------

    def make_room(self, slot_class: int) -> bool:
        """See to it that a slot comes free; False if nothing can be done."""
        slots = self._slots
        if slots.limbo_count:
            if slots.awaits_flush:  # else all of it is held: a flush frees nothing, and time must pass
                self._settling.settle_soon()
            if self._policy is EvictionPolicy.NONE:
                return True
        if self._policy is EvictionPolicy.NONE and not self._index.namespaces.dying:
            return slots.limbo_count > 0 or slots.is_voiding
        self.ahead[slot_class] = max(1, 2 * self.reserve(slot_class))
        self._evict_soon(slot_class)
        return slot_class in self._evictors or slots.limbo_count > 0 or bool(slots.in_flight)

    def is_full(self, slot_class: int) -> bool:
        """Whether a put of the class will cost an entry: nothing is free but what is kept ahead of need."""
        is_evicting = self._policy is not EvictionPolicy.NONE
        is_short = not self._slots.unowned and self._slots.free_count(slot_class) <= self.reserve(slot_class)
        return is_evicting and is_short

    def reserve(self, slot_class: int) -> int:
        """Free slots the class keeps ahead of need: never more than a part of what it has now, which may be less than
        when it had to wait. Else a class that lost slabs would evict what was just put."""
        slot_bytes = self._index.geometry.class_bytes[slot_class]
        most = min(self._slots.total(slot_class) // AHEAD_SHARE, AHEAD_MAX_SLOTS, AHEAD_BYTES // slot_bytes)
        return min(self.ahead[slot_class], max(1, most))

    def keep_ahead(self, slot_class: int) -> None:
        """Evict ahead of need once the class has had to wait, while no slab is spare."""
        ahead = self.reserve(slot_class)
        coming = self._slots.free_count(slot_class) + self._slots.limbo_of_class[slot_class]
        if ahead > 1 and coming < ahead // 2 and not self._slots.unowned:
            self._evict_soon(slot_class)

    async def relax(self) -> None:
        """Called now and then: a class that needs no reserve any more gives it up; puts that became live in a slab
        which is to change its class make way. Raises JournalUnavailable."""
        for slab in self._slots.draining:
            live = self._live_in(slab)
            for begin in range(0, len(live), UNITS_AT_ONCE):
                await wait_all(self._free_all(live[begin : begin + UNITS_AT_ONCE]))
        for slot_class, ahead in enumerate(self.ahead):
            if ahead and slot_class not in self._evictors:
                self.ahead[slot_class] = ahead // 2

    async def close(self) -> None:
        """Wait for what runs in the background."""
        if self._evictors:
            await asyncio.wait(self._evictors.values())

    # -- one eviction of a class ----------------------------------------------------------------------------------

    def _evict_soon(self, slot_class: int) -> None:
        if slot_class not in self._evictors and not self._journal.unavailable:
            task = asyncio.get_running_loop().create_task(self.evict(slot_class))
            self._evictors[slot_class] = task
            task.add_done_callback(lambda done: self._evicted(slot_class, done))

    def _evicted(self, slot_class: int, task: asyncio.Task[int]) -> None:
        del self._evictors[slot_class]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Unavailable | DeviceFailed):
            self._counters.eviction_failures += 1
            log.warning("eviction failed", extra={"fields": {"slot_class": slot_class, "error": str(error)}})
        elif error is not None:
            raise error
        elif not task.result() and self._is_held_back(slot_class):
            self.all_held.add(slot_class)
        if error is not None or task.result() or slot_class in self.all_held:
            self._settling.pulse()  # else nothing came free: who waits would only ask for the same again

    def _is_held_back(self, slot_class: int) -> bool:
        """Whether leases and snapshots are why nothing could go for a class."""
        held = self.held_slots(slot_class) > 0 or self._drain_is_held
        return held and not self._slots.in_flight

    async def evict(self, slot_class: int) -> int:
        """Evict enough of one class for its reserve, durably and flushed; returns how many entries went."""
        coming = self._slots.limbo_of_class[slot_class]
        wanted = max(int(not coming), self.reserve(slot_class) - self._slots.free_count(slot_class) - coming)
        reason, victims = FreeReason.WIPED, self._as_they_are(await self.wiped_rows(slot_class, wanted))
        if wanted and not victims and self._policy is not EvictionPolicy.NONE:
            reason = FreeReason.EVICTED
            victims = self.take_slab(self._takeable(slot_class)) or await self._choose(slot_class, wanted)
            victims = victims or self.take_slab(self._others(slot_class))
        freed = coming
        for begin in range(0, len(victims), UNITS_AT_ONCE):
            units = self._free_all(victims[begin : begin + UNITS_AT_ONCE], reason)
            await wait_all(units)
            freed += len(units)
        await self._journal.flush()
        self._settling.settle()
        return freed

    async def _choose(self, slot_class: int, wanted: int) -> Victims:
        for _ in range(CALLS_MAX):
            victims = self._eviction.victims(slot_class, wanted, self.may_go)
            if victims or not self._eviction.length(slot_class):
                return self._as_they_are(victims)
            await asyncio.sleep(0)  # others have their turn; the policy goes on where it stopped
        return []

    def _as_they_are(self, row_ids: list[int]) -> Victims:
        """Rows that were chosen in this same step."""
        seqs: list[int] = self._index.table.lines["seq"][row_ids].tolist() if row_ids else []
        return list(zip(row_ids, seqs, strict=True))

    def _free_all(self, victims: Victims, reason: FreeReason = FreeReason.EVICTED) -> list[Unit]:
        """Join the freeing of victims that still are some: since they were chosen others may have had their turns, the
        slot may be held or have another row."""
        units = []
        for row_id, seq in victims:
            is_dead = self._index.table.row(row_id).namespace_id in self._index.namespaces.dying
            if not (is_dead if reason is FreeReason.WIPED else is_dead or self.may_go(row_id)):
                continue
            unit = self._commit.free(row_id, seq, reason)
            if unit is not None:
                units.append(unit)
        return units

    def may_go(self, row_id: int) -> bool:
        """Whether the slot would become free by an eviction: one that is held would not (L3)."""
        return not self._slots.is_held(row_id) and not self.will_be_held(row_id)

    # -- slabs that change their class ----------------------------------------------------------------------------

    def take_slab(self, givers: Sequence[int]) -> Victims:
        """Live rows of a slab of one of these classes that is to change its class; its slots go to nobody else."""
        choice = slab_to_empty(self._index, givers, self.held_in)
        self._drain_is_held = choice.met_leases
        if choice.slab < 0 or any(not self.held_in(slab) for slab in self._slots.draining):
            return []  # one that is on its way already will do
        self._slots.drain(choice.slab)
        self._counters.slabs_taken += 1
        if self._slots.unowned:
            self._settling.pulse()
        return self._live_in(choice.slab)

    def _live_in(self, slab: int) -> Victims:
        row_ids = self._index.table.row_ids_of_slab(slab)
        return self._as_they_are(row_ids[self._index.table.lines["state"][row_ids] == SlotState.LIVE].tolist())

    def _takeable(self, slot_class: int) -> list[int]:
        """Classes that should give a slab to this one, although it has entries of its own to evict."""
        self._balance.end_window(self._eviction, sum(self._index.live))
        if self._slots.unowned or self._slots.draining:
            return []
        return self._balance.may_take(slot_class, self._slots.slabs_of_class, self._eviction)

    def _others(self, slot_class: int) -> list[int]:
        """All classes that have slabs but this one, those first that need theirs least."""
        return [kind for kind in self._balance.givers(self._slots.slabs_of_class) if kind != slot_class]


async def _no_rows(_class: int, _wanted: int) -> list[int]:
    return []
