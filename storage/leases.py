"""Leases: a client holds entries for a time, so that they stay readable whatever becomes of their keys (L3).

A lease holds slots, not keys: the entry it found is not evicted, and if its key is overwritten, deleted, wiped or
expires, its slot is not reused before the lease ends; who names the lease reads what it holds. Leases live in memory:
they end with their time, with a release, or with the process. A holder that vanishes costs its time and no more.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.entries import EntrySketch
from storage.errors import LeaseNotFound, LeasesFull, ParameterInvalid, SpaceHeld
from storage.format.row import Row
from storage.index import Index
from storage.limits import HOLDER_MAX_CHARS, LEASE_MAX_SECONDS, LEASED_ENTRIES_MAX, LEASED_SHARE_MAX, LEASES_MAX

LET_GO_AT_ONCE = 1024
"""Slots let go of between two turns of the loop: some 1 ms."""

Held = tuple[int, Row]
"""Row id and the row as it was when it was leased."""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as told to others. ``lease_id`` is the holder's secret: status and listings leave it out."""

    lease_id: str
    owner: str
    namespace: str
    entries: int
    held_bytes: int
    expires_in_seconds: float


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """``held`` has an element for each key asked for, in order; None where there is no entry."""

    lease: LeaseView
    held: list[EntrySketch | None]


@dataclass(slots=True, eq=False)
class Lease:
    lease_id: str
    owner: str
    namespace: str
    namespace_id: int
    deadline: float
    rows: dict[bytes, Held] = field(default_factory=dict)
    held_bytes: int = 0


class Leases:
    """All leases. ``monotonic`` is the clock of their deadlines, in seconds."""

    def __init__(self, index: Index, let_go: Callable[[int], None], monotonic: Callable[[], float]) -> None:
        self._index = index
        self._let_go = let_go
        self._monotonic = monotonic
        self._leases: dict[str, Lease] = {}
        self._counts: dict[int, int] = {}
        """Leases per leased slot."""
        self._slabs: dict[int, int] = {}
        """Leased slots per slab: such a slab can't change its class."""
        self.held_bytes = 0
        self._ending: deque[Lease] = deque()
        """Leases that ended and still hold something: one may hold a quarter of a million entries."""
        self._going_on: asyncio.Handle | None = None
        geometry = index.geometry
        self._bytes_max = int(LEASED_SHARE_MAX * geometry.slabs * geometry.slot_area_bytes)

    # -- taking and ending ----------------------------------------------------------------------------------------

    def take(
        self,
        namespace: str,
        namespace_id: int,
        entries: list[Held | None],
        ttl_seconds: float,
        owner: str,
        lease_id: str,
    ) -> LeaseResult:
        """Hold entries under a new lease, or under the one named, whose time then starts anew.

        All or nothing. Raises ParameterInvalid, LeaseNotFound, LeasesFull, SpaceHeld.
        """
        if not 0 < ttl_seconds <= LEASE_MAX_SECONDS:
            raise ParameterInvalid(
                f"a lease lasts more than 0 and up to {LEASE_MAX_SECONDS:.0f} seconds", parameter="ttl_seconds"
            )
        if len(owner) > HOLDER_MAX_CHARS or not owner.isprintable():
            raise ParameterInvalid(f"an owner is up to {HOLDER_MAX_CHARS} printable characters", parameter="owner")
        self.end_expired()
        lease = self._find_or_make(namespace, namespace_id, owner, lease_id)
        new = {held[1].digest: held for held in entries if held is not None and held[1].digest not in lease.rows}
        self._check_room(new, is_new=lease.lease_id not in self._leases)
        lease.deadline = self._monotonic() + ttl_seconds
        self._leases[lease.lease_id] = lease
        for digest, held in new.items():
            self._hold(lease, digest, held)
        sketches = [_sketch(lease, held) for held in entries]
        return LeaseResult(self._view(lease), sketches)

    def _find_or_make(self, namespace: str, namespace_id: int, owner: str, lease_id: str) -> Lease:
        if not lease_id:
            return Lease(secrets.token_hex(16), owner, namespace, namespace_id, 0.0)
        lease = self._leases.get(lease_id)
        if lease is None or lease.namespace != namespace:
            raise LeaseNotFound
        return lease

    def _check_room(self, new: dict[bytes, Held], *, is_new: bool) -> None:
        if is_new and len(self._leases) >= LEASES_MAX:
            raise LeasesFull(f"there are {LEASES_MAX} leases")
        held = sum(len(lease.rows) for leases in (self._leases.values(), self._ending) for lease in leases)
        if held + len(new) > LEASED_ENTRIES_MAX:  # those that ended count until they have let go (L1)
            raise LeasesFull(f"leases hold up to {LEASED_ENTRIES_MAX} entries")
        more = sum(self._index.table.slot_bytes(row_id) for row_id, _ in new.values() if row_id not in self._counts)
        if self.held_bytes + more > self._bytes_max:
            why = f"leases hold {self.held_bytes} bytes of slots and may hold {self._bytes_max}"
            raise SpaceHeld(why, holder=self.holder()[1])

    def _hold(self, lease: Lease, digest: bytes, held: Held) -> None:
        row_id = held[0]
        slot_bytes = self._index.table.slot_bytes(row_id)
        self._index.slots.hold(row_id)
        lease.rows[digest] = held
        lease.held_bytes += slot_bytes
        count = self._counts.get(row_id, 0)
        self._counts[row_id] = count + 1
        if not count:
            self.held_bytes += slot_bytes
            slab, _ = self._index.table.place_of(row_id)
            self._slabs[slab] = self._slabs.get(slab, 0) + 1

    def release(self, lease_id: str) -> None:
        """End a lease. Raises LeaseNotFound."""
        self.end_expired()
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            raise LeaseNotFound
        self._end(lease)

    def end_expired(self) -> None:
        """End leases whose time is over."""
        now = self._monotonic()
        for lease in [lease for lease in self._leases.values() if lease.deadline <= now]:
            del self._leases[lease.lease_id]
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        self._ending.append(lease)
        if self._going_on is None:
            self._let_go_some()

    def _let_go_some(self) -> None:
        """Let go of what leases that ended hold; if that is much, the rest in the loop's next turns."""
        self._going_on = None
        left = LET_GO_AT_ONCE
        while self._ending and left:
            rows = self._ending[0].rows
            while rows and left:
                left -= 1
                self._let_go_one(rows.popitem()[1][0])
            if not rows:
                self._ending.popleft()
        if self._ending:
            self._going_on = asyncio.get_running_loop().call_soon(self._let_go_some)

    def _let_go_one(self, row_id: int) -> None:
        count = self._counts[row_id] - 1
        if count:
            self._counts[row_id] = count
        else:
            del self._counts[row_id]
            self.held_bytes -= self._index.table.slot_bytes(row_id)
            slab, _ = self._index.table.place_of(row_id)
            self._slabs[slab] -= 1
            if not self._slabs[slab]:
                del self._slabs[slab]
        self._let_go(row_id)

    # -- looking --------------------------------------------------------------------------------------------------

    def find(self, lease_id: str, digest: bytes) -> Held | None:
        """What a lease holds under a key; None if it holds nothing there. Raises LeaseNotFound."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.deadline <= self._monotonic():
            raise LeaseNotFound
        return lease.rows.get(digest)

    def namespace_id(self, lease_id: str, namespace: str) -> int:
        """The id that the leased namespace had. Raises LeaseNotFound, also if the lease is another namespace's: who may
        read one must not read another through a lease (B1)."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.namespace != namespace:
            raise LeaseNotFound
        return lease.namespace_id

    def in_slab(self, slab: int) -> bool:
        """Whether a slot of the slab is leased."""
        return slab in self._slabs

    def slots_of_class(self, slot_class: int) -> int:
        """Leased slots of a class."""
        classes = self._index.table.slab_class
        return sum(count for slab, count in self._slabs.items() if classes[slab] == slot_class)

    def holder(self) -> tuple[int, str]:
        """Bytes and owner of the lease that holds most; 0 and empty if there is none."""
        largest = max(self._leases.values(), key=lambda lease: lease.held_bytes, default=None)
        if largest is None:
            return 0, ""
        return largest.held_bytes, f"lease of {largest.owner or 'an unnamed owner'}"

    def views(self) -> list[LeaseView]:
        return [self._view(lease) for lease in self._leases.values()]

    def _view(self, lease: Lease) -> LeaseView:
        return LeaseView(
            lease.lease_id,
            lease.owner,
            lease.namespace,
            len(lease.rows),
            lease.held_bytes,
            max(0.0, lease.deadline - self._monotonic()),
        )


def _sketch(lease: Lease, held: Held | None) -> EntrySketch | None:
    """What the lease holds for one of the keys asked for: under an older lease that may be an older entry."""
    if held is None:
        return None
    row = lease.rows[held[1].digest][1]
    return EntrySketch(row.write_id, row.payload_bytes, row.expires_at)
