"""Quotas: whether a namespace has room for a put, and which of its own entries make it (A2).

Decided when the put joins, against what is live and everything queued. A namespace with a quota has a queue of its
entries in the order they joined (``quota_queue``); over the quota its front goes, with a second chance for what was
read since, so that no search through other namespaces' entries is needed. Entries that are gone are dropped when met,
and those that are held go to its end. A queue is made before it is needed, by going through the table a few pages at a
time; entries that join meanwhile are noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from storage.errors import QuotaExceeded, SpaceHeld
from storage.format.geometry import LINE_BYTES
from storage.format.row import ACCESS_OFFSET, READS_MASK, Row, SlotState
from storage.index import Index
from storage.namespace_settings import QuotaMode
from storage.namespaces import Namespace
from storage.quota_queue import LOW, QuotaQueue, gather_members, members_now

SECOND_CHANCES_MAX = 64
"""Entries spared in one decision because they were read: behind that the front goes, read or not, so that a decision
stays within some 100 µs."""
TRIM_ENTRIES = 64
"""Entries that go in one step while a quota that was lowered is being reached."""

NEAR_SHARE = 16
"""A queue is made when less than one part in so many of the quota is free: puts that begin then find it when they
join."""

HELD_LOOKED_AT_MAX = 8192
"""Held entries met in one decision of a put: then it is refused, and the next one looks at others. Some 2 ms."""
USELESS_BEFORE_SKIMMING = 16
SKIMMED_AT_ONCE = 4096
"""After some members in a row that were of no use, the next ones are looked at as arrays: a tenth of the time."""

Victim = tuple[int, Row]


class Quotas:
    def __init__(self, index: Index, joined: Callable[[bytes], Victim | None]) -> None:
        self._index = index
        self._joined = joined
        self._queues: dict[int, QuotaQueue] = {}
        self._making: dict[int, QuotaQueue] = {}
        """Queues that are being made, with what joined since that began."""
        self._makers: dict[int, asyncio.Task[None]] = {}
        self._joining: dict[int, bytes] = {}
        """Row id to digest of puts that joined and are not published."""
        self.may_go: Callable[[int], bool] = lambda _: True
        """Whether a slot would become free by an eviction: one that is held would not (L3)."""
        self.holder: Callable[[], str] = lambda: ""
        """Who holds most; empty if nobody holds anything."""

    # -- keeping the queues ---------------------------------------------------------------------------------------

    def note_joined(self, namespace: Namespace, row_id: int, row: Row) -> None:
        """A put joined."""
        self._joining[row_id] = row.digest
        for queues in (self._queues, self._making):
            queue = queues.get(namespace.namespace_id)
            if queue is not None:
                queue.append(row_id, row.write_id)
                if queues is self._queues and _is_mostly_gone(queue, namespace):
                    self._make_soon(namespace)  # overwrites within the quota: nothing else would ever drop them (L1)

    def note_published(self, row_id: int) -> None:
        self._joining.pop(row_id, None)

    def forget_joining(self) -> None:
        """Everything queued was undone: victims that had left their queues are live again."""
        self._joining.clear()
        self._queues.clear()
        self._making.clear()

    def forget(self, namespace_id: int) -> None:
        """The namespace was wiped, or has another quota, or the queue misses some of its entries: it is made when it is
        next needed."""
        self._queues.pop(namespace_id, None)
        self._making.pop(namespace_id, None)

    # -- making them ----------------------------------------------------------------------------------------------

    def must_prepare(self, namespace: Namespace, entries: int, slot_bytes: int) -> bool:
        """Whether a put that begins now, and will add so much, should wait for ``prepare``: it is likely to need the
        queue when it joins. Sees to it that there is one before that is so."""
        settings = namespace.settings
        if settings.quota_mode is QuotaMode.HARD or namespace.namespace_id in self._queues:
            return False
        if any(namespace.over(1, slot_bytes)):
            return True
        near_entries, near_bytes = (
            (settings.quota_entries or 0) // NEAR_SHARE,
            (settings.quota_bytes or 0) // NEAR_SHARE,
        )
        if any(namespace.over(1 + near_entries, slot_bytes + near_bytes)):
            self._make_soon(namespace)
        return False

    async def prepare(self, namespace: Namespace) -> None:
        """Return when the namespace has its queue, or lost what was made of it to a failure of the journal."""
        if namespace.namespace_id not in self._queues:
            await asyncio.wait([self._make_soon(namespace)])

    def _make_soon(self, namespace: Namespace) -> asyncio.Task[None]:
        namespace_id = namespace.namespace_id
        maker = self._makers.get(namespace_id)
        if maker is None:
            maker = self._makers[namespace_id] = asyncio.get_running_loop().create_task(self._make(namespace_id))
            maker.add_done_callback(lambda done: self._made(namespace_id, done))
        return maker

    def _made(self, namespace_id: int, maker: asyncio.Task[None]) -> None:
        del self._makers[namespace_id]
        if not maker.cancelled():
            maker.result()

    async def _make(self, namespace_id: int) -> None:
        queue = self._making[namespace_id] = self._with_joining(namespace_id)
        try:
            members = await gather_members(self._index.table, namespace_id, queue)
            if self._making.get(namespace_id) is queue:  # else it was forgotten meanwhile
                queue.precede(members)
                self._queues[namespace_id] = queue
        finally:
            if self._making.get(namespace_id) is queue:
                del self._making[namespace_id]

    def _with_joining(self, namespace_id: int) -> QuotaQueue:
        """A queue of what has joined and is not published yet."""
        queue = QuotaQueue()
        for row_id, digest in self._joining.items():
            present = self._joined(digest)
            if present is not None and present[0] == row_id and present[1].namespace_id == namespace_id:
                queue.append(row_id, present[1].write_id)
        return queue

    def _queue(self, namespace: Namespace) -> QuotaQueue:
        """The namespace's queue. One that nobody saw coming is made at once."""
        queue = self._queues.get(namespace.namespace_id)
        if queue is None:
            queue = self._queues[namespace.namespace_id] = self._with_joining(namespace.namespace_id)
            queue.precede(members_now(self._index.table, namespace.namespace_id))
        return queue

    async def close(self) -> None:
        """End what is being made."""
        for maker in self._makers.values():
            maker.cancel()
        if self._makers:
            await asyncio.wait(self._makers.values())

    # -- decisions ------------------------------------------------------------------------------------------------

    def check(self, namespace: Namespace, slot_bytes: int, before_bytes: int) -> None:
        """Refuse early what would be refused when it joins; ``before_bytes`` is the slot that the put replaces.

        Raises QuotaExceeded.
        """
        settings = namespace.settings
        if settings.quota_bytes is not None and slot_bytes > settings.quota_bytes:
            raise QuotaExceeded(f"the value takes {slot_bytes} bytes, the quota is {settings.quota_bytes}")
        over = namespace.over(int(not before_bytes), slot_bytes - before_bytes)
        if settings.quota_mode is QuotaMode.HARD and any(over):
            raise _exceeded(namespace, *over)

    def victims(self, namespace: Namespace, entries: int, slot_bytes: int, spare: int = 0) -> list[Victim]:
        """The entries that must go so that so much more fits; ``spare`` is a row id that goes in any case.

        Raises QuotaExceeded for a hard quota, and where all the namespace has makes no room; SpaceHeld where it would
        if it were not held. Nothing has changed then.
        """
        over_entries, over_bytes = namespace.over(entries, slot_bytes)
        if not over_entries and not over_bytes:
            return []
        if namespace.settings.quota_mode is QuotaMode.HARD:
            raise _exceeded(namespace, over_entries, over_bytes)
        found, held = self._front(namespace, over_entries, over_bytes, spare, None)
        if found is None:
            if held and self.holder():
                raise SpaceHeld(f"{held} entries of {namespace.name} are held", holder=self.holder())
            raise _exceeded(namespace, over_entries, over_bytes)
        return found

    def trim(self, namespace: Namespace, passed: int) -> tuple[list[Victim], int | None]:
        """Some entries that must go because the quota was lowered, and how many held ones were passed in a row; None:
        there is nothing more to do, the quota is reached or all others are held.

        ``passed`` is what the call before returned, 0 in the first one.
        """
        over_entries, over_bytes = namespace.over()
        if not over_entries and not over_bytes:
            return [], None
        found, held = self._front(namespace, over_entries, over_bytes, 0, TRIM_ENTRIES)
        if found:
            return found, 0
        passed += held
        return [], passed if held and passed < len(self._queue(namespace)) else None

    def _front(
        self, namespace: Namespace, over_entries: int, over_bytes: int, spare: int, limit: int | None
    ) -> tuple[list[Victim] | None, int]:
        """Victims from the front of the queue, or None if there are too few; and how many were held.

        With a ``limit`` fewer will do.
        """
        queue = self._queue(namespace)
        found: list[Victim] = []
        held = in_a_row = spared = useless = 0
        while (over_entries > 0 or over_bytes > 0) and (limit is None or len(found) < limit):
            if useless >= USELESS_BEFORE_SKIMMING:
                useless = 0
                skimmed, found_any = self._skim(queue, spare)
                held, in_a_row = held + skimmed, 0 if found_any else in_a_row + skimmed
            # All that is left is held, or enough of it was looked at.
            member = queue.pop() if in_a_row < len(queue) and held <= HELD_LOOKED_AT_MAX else None
            if member is None:
                break
            victim = self._present(*member)
            if victim is None or victim[1].namespace_id != namespace.namespace_id:
                useless += 1
                continue
            row_id = victim[0]
            if row_id == spare or not self.may_go(row_id):
                queue.append(*member)
                held, in_a_row, useless = held + 1, in_a_row + 1, useless + 1
                continue
            in_a_row = 0
            if spared < SECOND_CHANCES_MAX and self._was_read(row_id):
                spared += 1
                queue.append(*member)
            else:
                found.append(victim)
                over_entries -= 1
                over_bytes -= self._index.table.slot_bytes(row_id)
        if (over_entries > 0 or over_bytes > 0) and limit is None:
            queue.put_back([(row_id, row.write_id & LOW) for row_id, row in found])
            return None, held
        return found, held

    def _skim(self, queue: QuotaQueue, spare: int) -> tuple[int, bool]:
        """Drop what is gone from the front of a queue, and move what is held to its end, until something is there that
        may go, or enough is moved; how many were moved, and whether something may go."""
        lines, slots = self._index.table.lines, self._index.slots
        joining = np.fromiter(self._joining, dtype=np.int64, count=len(self._joining))
        moved, left = 0, min(len(queue), HELD_LOOKED_AT_MAX)
        while moved < left and len(members := queue.take(SKIMMED_AT_ONCE)):
            row_ids = (members >> np.uint64(32)).astype(np.int64)
            present = lines["state"][row_ids] == SlotState.LIVE
            present &= lines["write_id"][row_ids] & np.uint64(LOW) == members & np.uint64(LOW)
            is_held = present & (slots.are_held(row_ids) | (row_ids == spare))
            may_go = (present | np.isin(row_ids, joining)) & ~is_held
            queue.give_back(members[may_go], members[is_held])
            moved += int(is_held.sum())
            if may_go.any():
                return moved, True
        return moved, False

    def _present(self, row_id: int, low_write_id: int) -> Victim | None:
        """The row a member of a queue stands for, if it still is what its key holds when all queued is durable."""
        row = self._index.table.row(row_id)
        if row.state == SlotState.LIVE and row.write_id & LOW == low_write_id:
            digest = row.digest
        elif row_id in self._joining:
            digest = self._joining[row_id]
        else:
            return None
        present = self._joined(digest)
        if present is None or present[0] != row_id or present[1].write_id & LOW != low_write_id:
            return None
        return present

    def _was_read(self, row_id: int) -> bool:
        """Whether the entry was read since it was last met; it gives one access away for that."""
        view, position = self._index.table.view, row_id * LINE_BYTES + ACCESS_OFFSET
        access = view[position]
        if access & READS_MASK:
            view[position] = access - 1
        return access & READS_MASK > 0


def _exceeded(namespace: Namespace, over_entries: int, over_bytes: int) -> QuotaExceeded:
    what = f"{over_entries} entries" if over_entries else f"{over_bytes} bytes of slots"
    return QuotaExceeded(f"{namespace.name} would be {what} above its quota", namespace=namespace.name)


def _is_mostly_gone(queue: QuotaQueue, namespace: Namespace) -> bool:
    return len(queue) > max(1024, 4 * namespace.joined_entries)
