"""Room for records: where a put's slot comes from.

In this order: a free slot of the class; what waits for a flush, if that is half of the class or more; a slab that no
class needs; a free slot of a larger class; then what eviction frees (``evicting``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from storage.commit import Commit
from storage.counters import EngineCounters
from storage.errors import Busy, DeviceFailed, Full, SpaceHeld, Unavailable
from storage.evicting import Evicting
from storage.eviction.admission import Admission
from storage.eviction.class_balance import ClassBalance
from storage.format.row import SlotState
from storage.index import Index
from storage.journal import Journal
from storage.options import AdmissionPolicy, EvictionPolicy
from storage.settling import Settling
from storage.shared_tasks import heard

LOOK_AGAIN_SECONDS = 0.05
"""A put that waits looks again at least this often: a slot in flight that became live is news nobody tells of."""
FLUSH_WAIT_SECONDS = 1.0
"""So long a put waits for a flush before it takes what others may need."""
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
        self._slots = index.slots
        self._commit = commit
        self._journal = journal
        self._wait_timeout_seconds = wait_timeout_seconds
        self._write_slab_header = write_slab_header
        """Writes the header of a slab for a class under a new generation, which it returns."""
        self.examine = examine
        """After a journal gap: says whether a free slot may be used, and sets it aside if not (R4)."""
        self.examine_slab: Callable[[int], Awaitable[bool]] | None = None
        """After a journal gap: says whether a spare slab may be given; one that may not is kept back."""
        self.holder: Callable[[], str] = lambda: ""
        """Who holds most slots for long; empty if nobody does."""
        geometry = index.geometry
        per_slab = [geometry.slots_per_slab(kind) for kind in range(len(geometry.class_bytes))]
        balance = ClassBalance(geometry.class_bytes, geometry.slabs * geometry.slot_area_bytes, per_slab)
        self._stored = balance.stored
        self.hits = balance.hits
        """Reads of entries per slot class; readers count them up."""
        self._admission = Admission(
            admission, write_budget_bytes_per_second, index.eviction, asyncio.get_running_loop().time
        )
        self.settling = Settling(index.slots, journal)
        self._limbo_of_class, self._flush_above = index.slots.limbo_of_class, self.settling.flush_above
        self.let_go, self.let_go_each = self.settling.let_go, self.settling.let_go_each
        self.let_go_all, self.pulse = self.settling.let_go_all, self.settling.pulse
        self.settle, self.settle_and_look = self.settling.settle, self.settling.settle_and_look
        self.evicting = Evicting(index, commit, journal, counters, self.settling, balance, policy)
        self.may_go, self.relax = self.evicting.may_go, self.evicting.relax
        self._slab_giving: asyncio.Task[bool] | None = None

    # -- reserving ------------------------------------------------------------------------------------------------

    def reserve_now(self, slot_class: int) -> int:
        """As ``reserve``, if there is a slot that can be had without waiting; else 0."""
        if self.examine is not None or self.evicting.all_held:
            return 0
        row_id = self._slots.take(slot_class)
        if row_id:
            self._stored[slot_class] += 1
            if self._limbo_of_class[slot_class] > self._flush_above[slot_class]:
                self.settling.flush_ahead(slot_class)
            if self.evicting.ahead[slot_class]:
                self.evicting.keep_ahead(slot_class)
        return row_id

    async def reserve(self, slot_class: int) -> int:
        """A free slot for a record of ``slot_class``, now in flight.

        Raises Full if nothing may be evicted, Busy if no slot came free within the time limit, JournalUnavailable.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_timeout_seconds
        all_held = self.evicting.all_held
        all_held.discard(slot_class)
        self._stored[slot_class] += 1
        flush_until = loop.time() + min(self._wait_timeout_seconds, FLUSH_WAIT_SECONDS)
        while True:
            row_id = self._slots.take(slot_class)
            if not row_id and self.settling.is_mostly_limbo(slot_class) and loop.time() < flush_until:
                await self.settling.flush_and_settle(flush_until - loop.time())
                continue
            row_id = row_id or await self._from_spare_slab(slot_class) or self._borrow(slot_class)
            if row_id:
                if self.examine is not None and not await self._examined(row_id):
                    continue
                self.settling.flush_ahead(slot_class)
                self.evicting.keep_ahead(slot_class)
                return row_id
            changed = self.settling.next_change()
            if slot_class in all_held:
                all_held.discard(slot_class)
                raise SpaceHeld("all that could make room is held", holder=self.holder())
            if not self.evicting.make_room(slot_class):
                raise Full(f"no slot of {self._index.geometry.class_bytes[slot_class]} bytes is free")
            remaining = deadline - loop.time()
            if remaining <= 0:
                self._journal.check_available()
                raise Busy("no slot came free in time")
            await asyncio.wait([changed], timeout=min(remaining, LOOK_AGAIN_SECONDS))

    def give_back(self, row_id: int) -> None:
        """The slot of a put that did not become live. Its header may verify, so it counts as one to be made void."""
        self._slots.freed_unvoided.add(row_id)
        self._slots.give_back(row_id)
        self.pulse()

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
            self._slots.give_back(row_id)

    def trust_free_slots(self) -> None:
        """The loss was accepted, or there is none any more: free slots and slabs need no examination."""
        self.examine = self.examine_slab = None
        self._slots.release_kept_back()
        self.settle_and_look()

    def _borrow(self, slot_class: int) -> int:
        """A free slot of a larger class, before a slab is taken from another class; 0 if none is near enough."""
        sizes, slots = self._index.geometry.class_bytes, self._slots
        for larger in range(slot_class + 1, len(sizes)):
            free = slots.free_count(larger)
            near = sizes[larger] <= BORROW_RATIO_MAX * sizes[slot_class]
            if free and (near or free * 3 > slots.total(larger)):
                return slots.take(larger)
        return 0

    # -- whether a put may have a slot at all ---------------------------------------------------------------------

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
        if is_new and self.evicting.is_full(slot_class):
            self._admission.judge(digest, sum(self._index.live))
        self._admission.spend(size_bytes)

    # -- slabs ----------------------------------------------------------------------------------------------------

    async def _from_spare_slab(self, slot_class: int) -> int:
        """Give a slab to the class if one is spare; several waiting puts share what it brings."""
        while True:
            if self._slab_giving is None:
                slab = self._slots.spare_slab(slot_class)
                if slab < 0:
                    return 0
                self._slab_giving = asyncio.get_running_loop().create_task(self._give(slab, slot_class))
                self._slab_giving.add_done_callback(heard)
            given = await asyncio.shield(self._slab_giving)
            row_id = self._slots.take(slot_class)
            if row_id or not given:
                return row_id

    async def _give(self, slab: int, slot_class: int) -> bool:
        given = kept_back = False
        try:
            if self.examine_slab is not None and not await self.examine_slab(slab):
                self._slots.keep_back(slab)
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
                self._slots.return_slab(slab)
            self._slab_giving = None
            self.pulse()

    async def close(self) -> None:
        """Wait for what runs in the background."""
        self.settling.cancel()
        await self.evicting.close()
        await self.settling.close()
        if self._slab_giving is not None:
            await asyncio.wait([self._slab_giving])
