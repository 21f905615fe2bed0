"""Quotas: whether a namespace has room for a put, and which of its own entries make it (A2).

Decided when the put joins, against what is live and everything queued. A namespace with a quota has a queue of its
entries in the order they joined, 8 bytes each; over the quota its front goes, with a second chance for what was read
since, so that no search through other namespaces' entries is needed. Entries that are gone are dropped when met, and
those that are held go to its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

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

HELD_LOOKED_AT_MAX = 16_384
"""Held entries met in one decision of a put: then it is refused, and the next one looks at others. Some 5 ms."""
USELESS_BEFORE_SKIMMING = 16
SKIMMED_AT_ONCE = 4096
"""After some members in a row that were of no use, the next ones are looked at as arrays: a tenth of the time."""

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
        if members:
            self._members[: self._head] = array("Q", [row_id << 32 | low for row_id, low in members])
            self._head = 0

    def first(self, count: int) -> npt.NDArray[np.uint64]:
        """Copies of the first members."""
        return np.array(self._members[self._head : self._head + count], dtype=np.uint64)

    def sort_out(self, count: int, kept: npt.NDArray[np.uint64], to_end: npt.NDArray[np.uint64]) -> None:
        """Of the first ``count`` members some stay in front, some go to the end, and the others are dropped."""
        self._head += count - len(kept)
        self._members[self._head : self._head + len(kept)] = array("Q", kept.tobytes())
        self._members.frombytes(to_end.tobytes())

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
            if _is_mostly_gone(queue, namespace):  # overwrites within the quota: nothing else would ever drop them (L1)
                self.forget(namespace.namespace_id)

    def note_published(self, row_id: int) -> None:
        self._joining.pop(row_id, None)

    def forget_joining(self) -> None:
        """Everything queued was undone: victims that had left their queues are live again."""
        self._joining.clear()
        self._queues.clear()

    def forget(self, namespace_id: int) -> None:
        """The namespace was wiped, or has another quota, or the queue misses some of its entries: it is made when it is
        next needed."""
        self._queues.pop(namespace_id, None)

    def _queue(self, namespace: Namespace) -> _Queue:
        """The namespace's queue; made anew where most of it is gone: replaced and deleted entries that nothing met."""
        queue = self._queues.get(namespace.namespace_id)
        if queue is None or _is_mostly_gone(queue, namespace):
            queue = self._queues[namespace.namespace_id] = _Queue(self._members(namespace.namespace_id))
            for row_id, digest in self._joining.items():
                present = self._joined(digest)
                if present is not None and present[0] == row_id and present[1].namespace_id == namespace.namespace_id:
                    queue.append(row_id, present[1].write_id)
        return queue

    def _members(self, namespace_id: int) -> array[int]:
        """The live entries of a namespace in the order of their seqs."""
        lines = self._index.table.lines
        mine = self._index.table.row_ids()
        mine = mine[lines["namespace_id"][mine] == namespace_id]
        mine = mine[lines["state"][mine] == SlotState.LIVE]
        order = np.argsort(lines["seq"][mine], kind="stable")
        packed = mine.astype(np.uint64) << np.uint64(32) | lines["write_id"][mine] & np.uint64(0xFFFFFFFF)
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
        held = in_a_row = spared = useless = 0
        held_max = HELD_LOOKED_AT_MAX if limit is None else 2 * len(queue)
        while (over_entries > 0 or over_bytes > 0) and (limit is None or len(found) < limit):
            if useless >= USELESS_BEFORE_SKIMMING:
                useless = 0
                skimmed, found_any = self._skim(queue, spare)
                held, in_a_row = held + skimmed, 0 if found_any else in_a_row + skimmed
            # All that is left is held, or enough of it was looked at.
            member = queue.pop() if in_a_row < len(queue) and held <= held_max else None
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
            queue.put_back([(row_id, row.write_id & 0xFFFFFFFF) for row_id, row in found])
            return None, held
        return found, held

    def _skim(self, queue: _Queue, spare: int) -> tuple[int, bool]:
        """Drop what is gone from the front of a queue, and move what is held to its end, until something is there that
        may go, or enough is moved; how many were moved, and whether something may go."""
        lines, slots = self._index.table.lines, self._index.slots
        joining = np.fromiter(self._joining, dtype=np.int64, count=len(self._joining))
        held, left = 0, min(len(queue), HELD_LOOKED_AT_MAX)
        while held < left and len(members := queue.first(SKIMMED_AT_ONCE)):
            row_ids = (members >> np.uint64(32)).astype(np.int64)
            present = lines["state"][row_ids] == SlotState.LIVE
            present &= lines["write_id"][row_ids] & np.uint64(0xFFFFFFFF) == members & np.uint64(0xFFFFFFFF)
            is_held = present & (slots.are_held(row_ids) | (row_ids == spare))
            may_go = (present | np.isin(row_ids, joining)) & ~is_held
            queue.sort_out(len(members), members[may_go], members[is_held])
            held += int(is_held.sum())
            if may_go.any():
                return held, True
        return held, False

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


def _is_mostly_gone(queue: _Queue, namespace: Namespace) -> bool:
    return len(queue) > max(1024, 4 * namespace.joined_entries)
