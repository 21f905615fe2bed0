"""Which slots can be taken now: free slots per class, slots in flight, in limbo, held by readers.

A slot's way: free → in flight (a put writes to it) → live → limbo (its freeing row is journaled) → free, when a device
flush followed the freeing row and nobody holds the slot (D4). Everything here is derived from rows at start (A1).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from storage.format.geometry import NO_CLASS
from storage.format.row import SlotState
from storage.row_set import RowSet
from storage.slot_table import RowIds, SlotTable


class Slots:
    """``busy`` of a slab counts its slots that are not free: a slab with none may go to another class."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._free = [array("I") for _ in table.geometry.class_bytes]
        self._limbo: deque[tuple[int, int, int]] = deque()
        """Row id, journal block of the freeing row, slot class."""
        self._limbo_ids: set[int] = set()
        self.limbo_of_class = [0] * len(table.geometry.class_bytes)
        """Slots per class that wait for nothing but a flush, unless somebody holds them."""
        self.limbo_total = [0] * len(table.geometry.class_bytes)
        """Slots per class in limbo, for whatever reason."""
        self._limbo_held: set[int] = set()
        self._holds: dict[int, int] = {}
        self._held_at_once: npt.NDArray[np.uint8] | None = None
        """Holds of snapshots and imports per row, made when the first one needs it."""
        self.held_in_slab: npt.NDArray[np.int64] = np.zeros(table.geometry.slabs, dtype=np.int64)
        """How many such holds there are in each slab."""
        self._let_go: deque[list[RowIds]] = deque()
        """Slots that such holds are done with, of each holder in parts: still held, until they settle."""
        self.left_while_held: Callable[[int], None] = lambda _: None
        """Told of each slot with such a hold whose entry went."""
        self.in_flight: set[int] = set()
        self.busy = array("I", bytes(4 * table.geometry.slabs))
        self.unowned: list[int] = []
        self.slabs_of_class = [0] * len(table.geometry.class_bytes)
        self._voiding: set[int] = set()
        self._aside: set[int] = set()
        """Slots being made void that a put would have got: back in their class's list afterwards."""
        self._draining: set[int] = set()
        self._kept_back: set[int] = set()
        self._withheld: set[int] = set()
        """Slabs on their way from one class to another: their free slots are in no class's list."""
        self._being_given = -1
        """The slab that ``spare_slab`` gave out last, until it has its new class or is back; -1: none."""
        self.freed_unvoided = RowSet(len(table.lines))
        """Freed slots whose header may still verify; made void before their freeing rows leave the journal (R1)."""

    def load(self) -> None:
        """Derive everything from the table, which was just recovered."""
        table = self._table
        self.unowned = np.flatnonzero(table.slab_class == NO_CLASS)[::-1].tolist()
        for part in table.slabs_lines():
            self.slabs_of_class[part.slot_class] += 1
            free = part.row_ids(part.lines["state"] == SlotState.FREE)
            self.busy[part.slab] = table.geometry.slots_per_slab(part.slot_class) - len(free)
            if self.busy[part.slab]:
                self._free[part.slot_class].frombytes(free[::-1].astype(np.uint32).tobytes())
            else:
                # It may have been on its way to another class, with a header that says so: it must be given anew.
                self._withheld.add(part.slab)
                self.unowned.insert(0, part.slab)

    # -- taking and giving back -----------------------------------------------------------------------------------

    def take(self, slot_class: int) -> int:
        """A free slot of the class, now in flight; 0 if there is none."""
        free = self._free[slot_class]
        while free:
            row_id = free.pop()
            if row_id in self._voiding:
                self._aside.add(row_id)
                continue
            self.in_flight.add(row_id)
            self.busy[self._table.place_of(row_id)[0]] += 1
            return row_id
        return 0

    def give_back(self, row_id: int) -> None:
        """A slot in flight that did not become live: nothing refers to it, it is free at once. But readers saw a put at
        level ``none``, and may still hold its slot (B1)."""
        self.in_flight.discard(row_id)
        if self.is_held(row_id):
            self._into_limbo(row_id, self._class_of(row_id))
            self._limbo_held.add(row_id)
        else:
            self._release(row_id)

    def _into_limbo(self, row_id: int, slot_class: int) -> None:
        self._limbo_ids.add(row_id)
        self.limbo_total[slot_class] += 1

    def is_idle(self, row_id: int) -> bool:
        """A free slot that is in no flight, limbo or hold and whose slab stays in its class."""
        slab, _ = self._table.place_of(row_id)
        busy = row_id in self.in_flight or self.is_held(row_id) or row_id in self._voiding
        return not busy and slab not in self._withheld and row_id not in self._limbo_ids

    def is_in_use(self, row_id: int) -> bool:
        """Whether a slot whose row is free is in flight or in limbo, or its slab is just being given to another class:
        its header stays as it is. In that slab a late write of zeros would fall upon a record of the new class."""
        in_use = row_id in self.in_flight or row_id in self._limbo_ids
        return in_use or self._table.place_of(row_id)[0] == self._being_given

    @property
    def is_voiding(self) -> bool:
        """Whether free slots are withheld for a moment."""
        return bool(self._voiding)

    def begin_voiding(self, row_ids: list[int]) -> None:
        """Free slots whose headers are about to be overwritten: nobody gets them before ``end_voiding``."""
        self._voiding.update(row_ids)
        for row_id in row_ids:
            self.busy[self._table.place_of(row_id)[0]] += 1

    def end_voiding(self, row_ids: list[int]) -> None:
        self._voiding.difference_update(row_ids)
        for row_id in row_ids:
            slab, _ = self._table.place_of(row_id)
            if row_id in self._aside:
                self._aside.remove(row_id)
                self._release(row_id)
            else:
                self.busy[slab] -= 1
                self._leave_if_drained(slab)

    def became_live(self, row_id: int) -> None:
        self.in_flight.discard(row_id)
        self.freed_unvoided.discard(row_id)

    def freed(self, row_id: int, block: int, slot_class: int) -> None:
        """The freeing row stands in journal block ``block``: limbo until that block is flushed."""
        self._limbo.append((row_id, block, slot_class))
        self.limbo_of_class[slot_class] += 1
        self._into_limbo(row_id, slot_class)
        self.freed_unvoided.add(row_id)

    def settle(self, flushed_through: int, limit: int) -> tuple[int, bool]:
        """Free what is in limbo and whose block is flushed, unless it is held, looking at up to ``limit`` slots;
        returns how many became free, and whether there are more to look at."""
        count = 0
        limbo = self._limbo
        while limbo and limbo[0][1] <= flushed_through:
            if not limit:
                return count, True
            limit -= 1
            row_id, _, slot_class = limbo.popleft()
            self.limbo_of_class[slot_class] -= 1
            if self.is_held(row_id):
                self._limbo_held.add(row_id)
            else:
                self._release(row_id)
                count += 1
        while self._let_go:
            if not limit:
                return count, True
            parts = self._let_go[0]
            row_ids, parts[-1] = parts[-1][:limit], parts[-1][limit:]
            limit -= len(row_ids)
            count += self._let_go_of(row_ids)
            if not len(parts[-1]):
                parts.pop()
            if not parts:
                self._let_go.popleft()
        return count, False

    def _release(self, row_id: int) -> None:
        slab, _ = self._table.place_of(row_id)
        if row_id in self._limbo_ids:
            self._limbo_ids.remove(row_id)
            self.limbo_total[self._table.slab_class[slab]] -= 1
        self.busy[slab] -= 1
        if slab not in self._draining:
            self._free[self._table.slab_class[slab]].append(row_id)
        self._leave_if_drained(slab)

    def _leave_if_drained(self, slab: int) -> None:
        if slab in self._draining and not self.busy[slab]:
            self._draining.remove(slab)
            self.unowned.append(slab)

    # -- holds ----------------------------------------------------------------------------------------------------

    def hold(self, row_id: int) -> None:
        """A reader uses the slot: it is not reused before the reader lets go (B1)."""
        self._holds[row_id] = self._holds.get(row_id, 0) + 1

    def let_go(self, row_id: int) -> bool:
        """Returns True if that made the slot free."""
        count = self._holds.pop(row_id) - 1
        if count:
            self._holds[row_id] = count
            return False
        return bool(self._limbo_held) and self._release_if_let_go(row_id)

    def hold_each(self, row_ids: Sequence[int]) -> None:
        """As ``hold``, of many."""
        holds = self._holds
        for row_id in row_ids:
            holds[row_id] = holds.get(row_id, 0) + 1

    def let_go_each(self, row_ids: Sequence[int]) -> bool:
        """As ``let_go``, of many; whether a slot became free."""
        holds, freed = self._holds, False
        for row_id in row_ids:
            count = holds.pop(row_id) - 1
            if count:
                holds[row_id] = count
            elif self._limbo_held and self._release_if_let_go(row_id):
                freed = True
        return freed

    def _release_if_let_go(self, row_id: int) -> bool:
        """Returns True if that made the slot free."""
        if row_id in self._limbo_held and not self.is_held(row_id):
            self._limbo_held.remove(row_id)
            self._release(row_id)
            return True
        return False

    def hold_all(self, row_ids: RowIds) -> None:
        """Hold many slots for long, each once more: a byte of memory per row of the table instead of some 100."""
        if self._held_at_once is None:
            self._held_at_once = np.zeros(len(self._table.lines), dtype=np.uint8)
        self._held_at_once[row_ids] += 1
        np.add.at(self.held_in_slab, self._table.slabs_of(row_ids), 1)

    def let_go_all(self, *row_ids: RowIds) -> None:
        """Let go of all slots that a holder holds by ``hold_all``, some at a time as they settle. Those whose entries
        went meanwhile become free with that."""
        parts = [part for part in row_ids if len(part)]
        if parts:
            self._let_go.append(parts)

    @property
    def holders_leaving(self) -> int:
        """How many are done with slots of which some are still held. Who takes holds by ``hold_all`` counts them with
        his own: a slot has room for 255 holds."""
        return len(self._let_go)

    def _let_go_of(self, row_ids: RowIds) -> int:
        """Returns how many slots that made free."""
        assert self._held_at_once is not None
        self._held_at_once[row_ids] -= 1
        np.subtract.at(self.held_in_slab, self._table.slabs_of(row_ids), 1)
        went = row_ids[self._table.lines["state"][row_ids] == SlotState.FREE]
        return sum(self._release_if_let_go(row_id) for row_id in went.tolist())

    def note_left(self, row_id: int) -> None:
        """The entry in a slot went."""
        if self._held_at_once is not None and self._held_at_once[row_id]:
            self.left_while_held(row_id)

    def is_held(self, row_id: int) -> bool:
        if row_id in self._holds:
            return True
        return self._held_at_once is not None and bool(self._held_at_once[row_id])

    def are_held(self, row_ids: RowIds) -> npt.NDArray[np.bool_]:
        """As ``is_held``, of many slots."""
        holds = self._holds
        held = np.zeros(len(row_ids), dtype=np.bool_)
        if holds:
            held[:] = [row_id in holds for row_id in row_ids.tolist()]
        if self._held_at_once is not None:
            held |= self._held_at_once[row_ids] > 0
        return held

    # -- slabs ----------------------------------------------------------------------------------------------------

    def spare_slab(self, for_class: int) -> int:
        """A slab no class needs now: one without owner, else an empty one of another class; -1 if there is none."""
        for position in reversed(range(len(self.unowned))):
            # Not one whose old headers are being made void: that would fall upon the records of its new class.
            if not self.busy[self.unowned[position]]:
                self._being_given = self.unowned.pop(position)
                return self._being_given
        table = self._table
        busy = np.frombuffer(self.busy, dtype=np.uint32)
        owned = (table.slab_class != NO_CLASS) & (table.slab_class != for_class)
        empty = np.flatnonzero(owned & (busy == 0))
        if not len(empty):
            return -1
        slab = self._being_given = int(empty[0])
        self._forget_slab(slab)
        return slab

    def _forget_slab(self, slab: int) -> None:
        """Take an empty slab's slots out of its class's free slots."""
        slot_class = int(self._table.slab_class[slab])
        mine = self._table.row_ids_of_slab(slab)
        free = np.frombuffer(self._free[slot_class], dtype=np.uint32)
        kept = free[(free < mine[0]) | (free > mine[-1])].tobytes()
        del free
        self._free[slot_class] = array("I")
        self._free[slot_class].frombytes(kept)
        self._withheld.add(slab)

    def drain(self, slab: int) -> None:
        """Let nobody take slots of a slab any more; once empty it is spare."""
        self._forget_slab(slab)
        if self.busy[slab]:
            self._draining.add(slab)
        else:
            self.unowned.append(slab)

    def is_draining(self, slab: int) -> bool:
        """Whether a slab is on its way to another class."""
        return slab in self._draining or slab in self.unowned or slab == self._being_given

    def left_class(self, slab: int) -> None:
        """A slab is about to be given to another class: headers in it die with its generation."""
        self._being_given = -1
        slot_class = int(self._table.slab_class[slab])
        if slot_class != NO_CLASS:
            self.slabs_of_class[slot_class] -= 1
            mine = self._table.row_ids_of_slab(slab)
            self.freed_unvoided.discard_between(int(mine[0]), int(mine[-1]) + 1)
        self._withheld.discard(slab)

    def adopt_slab(self, slot_class: int, row_ids: RowIds) -> None:
        """The slots of a slab just given to ``slot_class`` are free."""
        self.slabs_of_class[slot_class] += 1
        self._free[slot_class].frombytes(row_ids[::-1].astype(np.uint32).tobytes())

    def return_slab(self, slab: int) -> None:
        """A slab taken by ``spare_slab`` could not be given. Its header may name the class it did not get to, so it
        can't go back to the one it came from: it stays spare."""
        self._being_given = -1
        if self._table.slab_class[slab] != NO_CLASS:
            self._withheld.add(slab)
        self.unowned.append(slab)

    def keep_back(self, slab: int) -> None:
        """A slab taken by ``spare_slab`` may hold what the journal lost: nobody gets it for now."""
        self._being_given = -1
        self._kept_back.add(slab)

    def release_kept_back(self) -> None:
        """Slabs kept back are spare again."""
        for slab in sorted(self._kept_back):
            self.return_slab(slab)
        self._kept_back.clear()

    # -- counts ---------------------------------------------------------------------------------------------------

    def free_count(self, slot_class: int) -> int:
        return len(self._free[slot_class])

    def total(self, slot_class: int) -> int:
        """Slots of the class, whatever is in them."""
        return self.slabs_of_class[slot_class] * self._table.geometry.slots_per_slab(slot_class)

    def free_total(self, slot_class: int) -> int:
        """As ``free_count``, with the free slots of slabs on their way to another class."""
        count = len(self._free[slot_class])
        count += sum(1 for row_id in self._aside if self._class_of(row_id) == slot_class)
        for slab in self._withheld:
            if self._table.slab_class[slab] == slot_class:
                count += self._table.geometry.slots_per_slab(slot_class) - self.busy[slab]
        return count

    def _class_of(self, row_id: int) -> int:
        return int(self._table.slab_class[self._table.place_of(row_id)[0]])

    @property
    def draining(self) -> list[int]:
        """Slabs that become spare once they are empty."""
        return sorted(self._draining)

    @property
    def awaits_flush(self) -> bool:
        """Whether anything in limbo waits for a flush, held or not."""
        return bool(self._limbo)

    @property
    def limbo_count(self) -> int:
        return len(self._limbo_ids)

    @property
    def holds_count(self) -> int:
        return len(self._holds)
