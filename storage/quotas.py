"""Quotas: whether a namespace has room for a put, and which of its own entries make it (A2).

Decided when the put joins, against what is live and everything queued. A namespace with a quota has a queue of its
entries in the order they joined, 8 bytes each; over the quota its front goes, with a second chance for what was read
since, so that no search through other namespaces' entries is needed. Entries that are gone are dropped when met.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from storage.errors import QuotaExceeded, SpaceHeld
from storage.format.geometry import LINE_BYTES
from storage.format.row import ACCESS_OFFSET, READS_MASK, Row, SlotState
from storage.index import Index
from storage.namespace_settings import QuotaMode
from storage.namespaces import Namespace

SECOND_CHANCES_MAX = 64
"""Entries spared in one decision because they were read: behind that the front goes, read or not, so that a decision
stays within some 100 µs."""
TRIM_ENTRIES = 64
"""Entries that go in one step while a quota that was lowered is being reached."""

Victim = tuple[int, Row]


class _Queue:
    """Row id and the low half of the write id in one number, in the order of joining."""

    def __init__(self, members: array[int]) -> None:
        self._members = members
        self._head = 0

    def append(self, row_id: int, write_id: int) -> None:
        self._members.append(row_id << 32 | write_id & 0xFFFFFFFF)

    def pop(self) -> tuple[int, int] | None:
        if self._head >= len(self._members):
            return None
        member = self._members[self._head]
        self._head += 1
        if self._head > 1024 and self._head * 2 > len(self._members):
            del self._members[: self._head]
            self._head = 0
        return member >> 32, member & 0xFFFFFFFF

    def put_back(self, members: list[tuple[int, int]]) -> None:
        """At the front again, in their order."""
        self._members[: self._head] = array("Q", [row_id << 32 | low for row_id, low in members])
        self._head = 0

    def __len__(self) -> int:
        return len(self._members) - self._head


class Quotas:
    def __init__(self, index: Index, joined: Callable[[bytes], Victim | None]) -> None:
        self._index = index
        self._joined = joined
        self._queues: dict[int, _Queue] = {}
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
        queue = self._queues.get(namespace.namespace_id)
        if queue is not None:
            queue.append(row_id, row.write_id)

    def note_published(self, row_id: int) -> None:
        self._joining.pop(row_id, None)

    def forget_joining(self) -> None:
        """Everything queued was undone."""
        self._joining.clear()

    def forget(self, namespace_id: int) -> None:
        """The namespace was wiped, or has another quota: its queue is made when it is next needed."""
        self._queues.pop(namespace_id, None)

    def _queue(self, namespace: Namespace) -> _Queue:
        """The namespace's queue; made anew where most of it is gone: replaced and deleted entries that nothing met."""
        queue = self._queues.get(namespace.namespace_id)
        if queue is None or len(queue) > max(1024, 4 * namespace.joined_entries):
            queue = self._queues[namespace.namespace_id] = _Queue(self._members(namespace.namespace_id))
            for row_id, digest in self._joining.items():
                present = self._joined(digest)
                if present is not None and present[0] == row_id and present[1].namespace_id == namespace.namespace_id:
                    queue.append(row_id, present[1].write_id)
        return queue

    def _members(self, namespace_id: int) -> array[int]:
        """The live entries of a namespace in the order of their seqs."""
        table = self._index.table
        lines = table.lines
        mine = np.flatnonzero((lines["namespace_id"] == namespace_id) & (lines["state"] == SlotState.LIVE))
        mine = mine[mine % (table.geometry.block_bytes // LINE_BYTES) != 0]  # the first line of a page is its header
        rows = lines[mine]
        order = np.argsort(rows["seq"], kind="stable")
        packed = mine.astype(np.uint64) << np.uint64(32) | rows["write_id"] & np.uint64(0xFFFFFFFF)
        members = array("Q")
        members.frombytes(packed[order].tobytes())
        return members

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

    def trim(self, namespace: Namespace) -> list[Victim]:
        """Some entries that must go because the quota was lowered; none if it is reached, or all others are held."""
        over_entries, over_bytes = namespace.over()
        if not over_entries and not over_bytes:
            return []
        return self._front(namespace, over_entries, over_bytes, 0, TRIM_ENTRIES)[0] or []

    def _front(
        self, namespace: Namespace, over_entries: int, over_bytes: int, spare: int, limit: int | None
    ) -> tuple[list[Victim] | None, int]:
        """Victims from the front of the queue, or None if there are too few; and how many were held.

        With a ``limit`` fewer will do.
        """
        queue = self._queue(namespace)
        found: list[Victim] = []
        held: list[tuple[int, int]] = []
        spared = 0
        while (over_entries > 0 or over_bytes > 0) and (limit is None or len(found) < limit):
            member = queue.pop()
            if member is None:
                break
            victim = self._present(*member)
            if victim is None or victim[1].namespace_id != namespace.namespace_id:
                continue
            row_id = victim[0]
            if row_id == spare or not self.may_go(row_id):
                held.append(member)
            elif spared < SECOND_CHANCES_MAX and self._was_read(row_id):
                spared += 1
                queue.append(*member)
            else:
                found.append(victim)
                over_entries -= 1
                over_bytes -= self._index.table.slot_bytes(row_id)
        short = over_entries > 0 or over_bytes > 0
        if short and limit is None:
            held += [(row_id, row.write_id & 0xFFFFFFFF) for row_id, row in found]
        queue.put_back(held)
        if short and limit is None:
            return None, len(held) - len(found)
        return found, len(held)

    def _present(self, row_id: int, low_write_id: int) -> Victim | None:
        """The row a member of a queue stands for, if it still is what its key holds when all queued is durable."""
        row = self._index.table.row(row_id)
        if row.state == SlotState.LIVE and row.write_id & 0xFFFFFFFF == low_write_id:
            digest = row.digest
        elif row_id in self._joining:
            digest = self._joining[row_id]
        else:
            return None
        present = self._joined(digest)
        if present is None or present[0] != row_id or present[1].write_id & 0xFFFFFFFF != low_write_id:
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
