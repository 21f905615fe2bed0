"""Room for records: where a put's slot comes from, and what is evicted so that the next put finds one.

In this order: a free slot of the class; a slab that no class needs; a free slot of a larger class; then eviction: of a
slab of a class that needs it less, of entries of the class itself, or, if it has nothing to give, of any other slab.
Eviction runs ahead: a class that had to wait once keeps a reserve of free slots, whose freeing rows are durable and
flushed before a put asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from storage.commit import Commit
from storage.counters import EngineCounters
from storage.errors import Busy, DeviceFailed, Full, SpaceHeld, Unavailable
from storage.eviction.admission import Admission
from storage.eviction.class_balance import ClassBalance
from storage.eviction.interface import CALLS_MAX
from storage.format.row import FreeReason, SlotState
from storage.index import Index
from storage.journal import Journal, Unit
from storage.options import AdmissionPolicy, EvictionPolicy
from storage.shared_tasks import heard
from storage.slab_choice import slab_to_empty
from storage.slot_table import RowIds
from storage.waiting import UNITS_AT_ONCE, wait_all

log = logging.getLogger("rawblockd.storage")

AHEAD_BYTES = 64 << 20
AHEAD_MAX_SLOTS = 2048
# What clients can fill during one flush (some 20 ms): 20,000 puts a second of 4 KiB are 400 slots, 1.6 GB/s are 32 MiB.
AHEAD_SHARE = 32
"""A reserve is at most one in so many slots of its class: what is kept free holds no entry that could be hit."""
SETTLED_AT_ONCE = 1024
"""Slots in limbo looked at between two turns of the loop: some 1 ms."""
LOOK_AGAIN_SECONDS = 0.05
"""A put that waits looks again at least this often: a slot in flight that became live is news nobody tells of."""
BORROW_RATIO_MAX = 4
"""A borrowed slot is at most this much larger than the class asked for, unless its class is mostly free."""


class Space:
    def __init__(
        self,
        index: Index,
        commit: Commit,
        journal: Journal,
        counters: EngineCounters,
        *,
        policy: EvictionPolicy,
        admission: AdmissionPolicy,
        write_budget_bytes_per_second: int,
        wait_timeout_seconds: float,
        write_slab_header: Callable[[int, int], Awaitable[int]],
        examine: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        self._index = index
        self._commit = commit
        self._journal = journal
        self._counters = counters
        self._policy = policy
        self._wait_timeout_seconds = wait_timeout_seconds
        self._write_slab_header = write_slab_header
        """Writes the header of a slab for a class under a new generation, which it returns."""
        self.examine = examine
        """After a journal gap: says whether a free slot may be used, and sets it aside if not (R4)."""
        self.examine_slab: Callable[[int], Awaitable[bool]] | None = None
        """After a journal gap: says whether a spare slab may be given; one that may not is kept back."""
        self.held_in: Callable[[int], bool] = lambda _: False
        """Whether a slot of a slab is held for long, so that the slab can't be emptied."""
        self.held_slots: Callable[[int], int] = lambda _: 0
        """How many slots of a class are held for long."""
        self.will_be_held: Callable[[int], bool] = lambda _: False
        """Whether a slot is about to be held for long."""
        self.wiped_rows: Callable[[int, int], Awaitable[list[int]]] = _no_rows
        """Rows of a class whose namespace was wiped: they go before any other."""
        self.holder: Callable[[], str] = lambda: ""
        """Who holds most slots for long; empty if nobody does."""
        self._all_held: set[int] = set()
        """Classes in which the last search for victims found only held ones."""
        self._drain_is_held = False
        self._eviction = index.eviction
        geometry = index.geometry
        per_slab = [geometry.slots_per_slab(kind) for kind in range(len(geometry.class_bytes))]
        self._balance = ClassBalance(geometry.class_bytes, geometry.slabs * geometry.slot_area_bytes, per_slab)
        self.hits = self._balance.hits
        """Reads of entries per slot class; readers count them up."""
        self._admission = Admission(
            admission, write_budget_bytes_per_second, self._eviction, asyncio.get_running_loop().time
        )
        self._changed: asyncio.Future[None] | None = None
        self._slab_giving: asyncio.Task[bool] | None = None
        self._evictors: dict[int, asyncio.Task[int]] = {}
        self._ahead = [0] * len(index.geometry.class_bytes)
        self._settler: asyncio.Task[None] | None = None
        self._settling: asyncio.Handle | None = None
        self._closed = False

    # -- reserving ------------------------------------------------------------------------------------------------

    def reserve_now(self, slot_class: int) -> int:
        """As ``reserve``, if there is a slot that can be had without waiting; else 0."""
        if self.examine is not None or self._all_held:
            return 0
        row_id = self._index.slots.take(slot_class)
        if row_id:
            self._balance.stored[slot_class] += 1
            if self._ahead[slot_class]:
                self._keep_ahead(slot_class)
        return row_id

    async def reserve(self, slot_class: int) -> int:
        """A free slot for a record of ``slot_class``, now in flight.

        Raises Full if nothing may be evicted, Busy if no slot came free within the time limit, JournalUnavailable.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_timeout_seconds
        self._all_held.discard(slot_class)
        self._balance.stored[slot_class] += 1
        while True:
            row_id = self._index.slots.take(slot_class) or await self._from_spare_slab(slot_class)
            row_id = row_id or self._borrow(slot_class)
            if row_id:
                if self.examine is not None and not await self._examined(row_id):
                    continue
                self._keep_ahead(slot_class)
                return row_id
            changed = self._next_change()
            if slot_class in self._all_held:
                self._all_held.discard(slot_class)
                raise SpaceHeld("all that could make room is held", holder=self.holder())
            if not self._make_room(slot_class):
                raise Full(f"no slot of {self._index.geometry.class_bytes[slot_class]} bytes is free")
            remaining = deadline - loop.time()
            if remaining <= 0:
                self._journal.check_available()
                raise Busy("no slot came free in time")
            await asyncio.wait([changed], timeout=min(remaining, LOOK_AGAIN_SECONDS))

    @property
    def is_choosy(self) -> bool:
        """Whether puts of new keys may be refused for what is known of their keys."""
        return self._admission.is_choosy

    @property
    def admits_all(self) -> bool:
        """Whether nothing is asked of a put: ``admit`` would do nothing."""
        return self._admission.admits_all

    def admit(self, slot_class: int, digest: bytes, size_bytes: int, *, is_new: bool) -> None:
        """Let a put that is about to reserve pass, and charge what it writes. Raises NotAdmitted, WriteBudgetSpent."""
        self._admission.check_budget()
        if is_new and self._is_full(slot_class):
            self._admission.judge(digest, sum(self._index.live))
        self._admission.spend(size_bytes)

    def _is_full(self, slot_class: int) -> bool:
        """Whether a put of the class will cost an entry: nothing is free but what is kept ahead of need."""
        slots = self._index.slots
        is_evicting = self._policy is not EvictionPolicy.NONE
        return is_evicting and not slots.unowned and slots.free_count(slot_class) <= self._reserve(slot_class)

    async def _examined(self, row_id: int) -> bool:
        """Whether the slot may be used. A slot neither used nor set aside goes back."""
        assert self.examine is not None
        examination = asyncio.ensure_future(self.examine(row_id))
        examination.add_done_callback(heard)
        try:
            return await asyncio.shield(examination)
        except asyncio.CancelledError:
            # The slot may be on its way to be set aside: what becomes of it is seen when that has ended.
            examination.add_done_callback(lambda _: self._return_if_free(row_id))
            raise
        except (Unavailable, DeviceFailed):
            self._return_if_free(row_id)
            raise

    def _return_if_free(self, row_id: int) -> None:
        if self._index.table.state(row_id) == SlotState.FREE:
            self._index.slots.give_back(row_id)

    def give_back(self, row_id: int) -> None:
        """The slot of a put that did not become live. Its header may verify, so it counts as one to be made void."""
        self._index.slots.freed_unvoided.add(row_id)
        self._index.slots.give_back(row_id)
        self.pulse()

    def let_go(self, row_id: int) -> None:
        """A reader is done with a slot."""
        if self._index.slots.let_go(row_id):
            self.pulse()

    def let_go_each(self, row_ids: Sequence[int]) -> None:
        """As ``let_go``, of many slots."""
        if self._index.slots.let_go_each(row_ids):
            self.pulse()

    def settle(self) -> None:
        """Free what limbo may give, after a flush; if that is much, the rest in the loop's next turns."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        freed, more = self._index.slots.settle(self._journal.flushed_through, SETTLED_AT_ONCE)
        if more and not self._closed:
            self._settling = asyncio.get_running_loop().call_soon(self.settle)
        if freed:
            self.pulse()

    def let_go_all(self, *row_ids: RowIds) -> None:
        """A snapshot or an import is done with its slots."""
        self._index.slots.let_go_all(*row_ids)
        self.settle()

    def trust_free_slots(self) -> None:
        """The loss was accepted, or there is none any more: free slots and slabs need no examination."""
        self.examine = self.examine_slab = None
        self._index.slots.release_kept_back()
        self.settle_and_look()

    def settle_and_look(self) -> None:
        """As ``settle``, and whoever waits looks again: slots that were made void can be had."""
        self.settle()
        self.pulse()

    def pulse(self) -> None:
        """Something became free: whoever waits looks again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def _next_change(self) -> asyncio.Future[None]:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _borrow(self, slot_class: int) -> int:
        """A free slot of a larger class, before a slab is taken from another class; 0 if none is near enough."""
        sizes, slots = self._index.geometry.class_bytes, self._index.slots
        for larger in range(slot_class + 1, len(sizes)):
            free = slots.free_count(larger)
            total = slots.slabs_of_class[larger] * self._index.geometry.slots_per_slab(larger)
            near = sizes[larger] <= BORROW_RATIO_MAX * sizes[slot_class]
            if free and (near or free * 3 > total):
                return slots.take(larger)
        return 0

    # -- slabs ----------------------------------------------------------------------------------------------------

    async def _from_spare_slab(self, slot_class: int) -> int:
        """Give a slab to the class if one is spare; several waiting puts share what it brings."""
        while True:
            if self._slab_giving is None:
                slab = self._index.slots.spare_slab(slot_class)
                if slab < 0:
                    return 0
                self._slab_giving = asyncio.get_running_loop().create_task(self._give(slab, slot_class))
                self._slab_giving.add_done_callback(heard)
            given = await asyncio.shield(self._slab_giving)
            row_id = self._index.slots.take(slot_class)
            if row_id or not given:
                return row_id

    async def _give(self, slab: int, slot_class: int) -> bool:
        given = kept_back = False
        try:
            if self.examine_slab is not None and not await self.examine_slab(slab):
                self._index.slots.keep_back(slab)
                kept_back = True
                return True  # look for another one
            # Like a payload before its row: the slab header is on the device before the journal speaks of it.
            generation = await self._write_slab_header(slab, slot_class)
            unit = self._commit.give_slab(slab, slot_class, generation)
            assert unit.done is not None
            await unit.done
            given = True
            return True
        finally:
            if not given and not kept_back:
                self._index.slots.return_slab(slab)
            self._slab_giving = None
            self.pulse()

    # -- eviction -------------------------------------------------------------------------------------------------

    def _make_room(self, slot_class: int) -> bool:
        """See to it that a slot comes free; False if nothing can be done."""
        if self._index.slots.limbo_count:
            if self._index.slots.awaits_flush:  # else all of it is held: a flush frees nothing, and time must pass
                self.settle_soon()
            if self._policy is EvictionPolicy.NONE:
                return True
        if self._policy is EvictionPolicy.NONE and not self._index.namespaces.dying:
            return self._index.slots.limbo_count > 0 or self._index.slots.is_voiding
        self._ahead[slot_class] = max(1, 2 * self._reserve(slot_class))
        self._evict_soon(slot_class)
        return slot_class in self._evictors or self._index.slots.limbo_count > 0 or bool(self._index.slots.in_flight)

    def _reserve(self, slot_class: int) -> int:
        """Free slots the class keeps ahead of need: never more than a part of what it has now, which may be less than
        when it had to wait. Else a class that lost slabs would evict what was just put."""
        slot_bytes = self._index.geometry.class_bytes[slot_class]
        slots = self._index.slots.slabs_of_class[slot_class] * self._index.geometry.slots_per_slab(slot_class)
        most = min(slots // AHEAD_SHARE, AHEAD_MAX_SLOTS, AHEAD_BYTES // slot_bytes)
        return min(self._ahead[slot_class], max(1, most))

    def _keep_ahead(self, slot_class: int) -> None:
        """Evict ahead of need once the class has had to wait, while no slab is spare."""
        ahead = self._reserve(slot_class)
        coming = self._index.slots.free_count(slot_class) + self._index.slots.limbo_of_class[slot_class]
        if ahead > 1 and coming < ahead // 2 and not self._index.slots.unowned:
            self._evict_soon(slot_class)

    async def relax(self) -> None:
        """Called now and then: a class that needs no reserve any more gives it up; puts that became live in a slab
        which is to change its class make way. Raises JournalUnavailable."""
        for slab in self._index.slots.draining:
            live = self._live_in(slab)
            for begin in range(0, len(live), UNITS_AT_ONCE):
                movable = [row_id for row_id in live[begin : begin + UNITS_AT_ONCE] if self.may_go(row_id)]
                await wait_all(self._free_all(movable))
        for slot_class, ahead in enumerate(self._ahead):
            if ahead and slot_class not in self._evictors:
                self._ahead[slot_class] = ahead // 2

    def _evict_soon(self, slot_class: int) -> None:
        if slot_class not in self._evictors and not self._journal.unavailable:
            task = asyncio.get_running_loop().create_task(self._evict(slot_class))
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
            self._all_held.add(slot_class)
        if error is not None or task.result() or slot_class in self._all_held:
            self.pulse()  # else nothing came free: who waits would only ask for the same again

    def _is_held_back(self, slot_class: int) -> bool:
        """Whether leases and snapshots are why nothing could go for a class."""
        held = self.held_slots(slot_class) > 0 or self._drain_is_held
        return held and not self._index.slots.in_flight

    async def _evict(self, slot_class: int) -> int:
        """Evict enough of one class for its reserve, durably and flushed; returns how many entries went."""
        coming = self._index.slots.limbo_of_class[slot_class]
        wanted = max(int(not coming), self._reserve(slot_class) - self._index.slots.free_count(slot_class) - coming)
        reason, victims = FreeReason.WIPED, await self.wiped_rows(slot_class, wanted)
        if wanted and not victims and self._policy is not EvictionPolicy.NONE:
            reason = FreeReason.EVICTED
            victims = self._take_slab(self._takeable(slot_class)) or await self._choose(slot_class, wanted)
            victims = victims or self._take_slab(self._others(slot_class))
        freed = coming
        for begin in range(0, len(victims), UNITS_AT_ONCE):
            units = self._free_all(victims[begin : begin + UNITS_AT_ONCE], reason)
            await wait_all(units)
            freed += len(units)
        await self._journal.flush()
        self.settle()
        return freed

    async def _choose(self, slot_class: int, wanted: int) -> list[int]:
        for _ in range(CALLS_MAX):
            victims = self._eviction.victims(slot_class, wanted, self.may_go)
            if victims or not self._eviction.length(slot_class):
                return victims
            await asyncio.sleep(0)  # others have their turn; the policy goes on where it stopped
        return []

    def _free_all(self, row_ids: list[int], reason: FreeReason = FreeReason.EVICTED) -> list[Unit]:
        """Join the freeing of victims that still are some: since they were chosen others may have had their turns, the
        slot may be held or have another entry."""
        units = []
        for row_id in row_ids:
            row = self._index.table.row(row_id)
            is_dead = row.namespace_id in self._index.namespaces.dying
            if not (is_dead if reason is FreeReason.WIPED else is_dead or self.may_go(row_id)):
                continue
            unit = self._commit.free(row_id, row.seq, reason)
            if unit is not None:
                units.append(unit)
        return units

    def may_go(self, row_id: int) -> bool:
        """Whether the slot would become free by an eviction: one that is held would not (L3)."""
        return not self._index.slots.is_held(row_id) and not self.will_be_held(row_id)

    def _take_slab(self, givers: Sequence[int]) -> list[int]:
        """Live row ids of a slab of one of these classes that is to change its class; its slots go to nobody else."""
        choice = slab_to_empty(self._index, givers, self.held_in)
        self._drain_is_held = choice.met_leases
        if choice.slab < 0 or any(not self.held_in(slab) for slab in self._index.slots.draining):
            return []  # one that is on its way already will do
        self._index.slots.drain(choice.slab)
        self._counters.slabs_taken += 1
        if self._index.slots.unowned:
            self.pulse()
        return self._live_in(choice.slab)

    def _live_in(self, slab: int) -> list[int]:
        row_ids = self._index.table.row_ids_of_slab(slab)
        live: list[int] = row_ids[self._index.table.lines["state"][row_ids] == SlotState.LIVE].tolist()
        return live

    def _takeable(self, slot_class: int) -> list[int]:
        """Classes that should give a slab to this one, although it has entries of its own to evict."""
        slots = self._index.slots
        self._balance.end_window(self._eviction, sum(self._index.live))
        if slots.unowned or slots.draining:
            return []
        return self._balance.may_take(slot_class, slots.slabs_of_class, self._eviction)

    def _others(self, slot_class: int) -> list[int]:
        """All classes that have slabs but this one, those first that need theirs least."""
        return [kind for kind in self._balance.givers(self._index.slots.slabs_of_class) if kind != slot_class]

    # -- limbo ----------------------------------------------------------------------------------------------------

    def settle_soon(self) -> None:
        """Flush what limbo waits for, in the background."""
        if self._settler is None:
            self._settler = asyncio.get_running_loop().create_task(self._settle())
            self._settler.add_done_callback(self._settled)

    async def _settle(self) -> None:
        await self._journal.flush()
        self.settle()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settler = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DeviceFailed):
            log.warning("flush failed", extra={"fields": {"error": str(error)}})
        elif error is not None:
            raise error
        self.pulse()

    async def close(self) -> None:
        """Wait for what runs in the background."""
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        if self._evictors:
            await asyncio.wait(self._evictors.values())
        if self._settler is not None:
            await asyncio.wait([self._settler])
        if self._slab_giving is not None:
            await asyncio.wait([self._slab_giving])


async def _no_rows(_class: int, _wanted: int) -> list[int]:
    return []
