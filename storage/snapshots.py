"""Snapshots: the entries of a namespace as of one seq, readable while writers go on (L3).

Taking one copies the live rows of the namespace as they are when it is called (``snapshot_cut``), and holds their
slots: what is overwritten, deleted, evicted or wiped afterwards stays in its slot until the snapshot ends. So an export
never mixes two moments, however long it takes. A snapshot costs 73 bytes of memory an entry, and the space that its
slots would have freed; both are in the status. It ends with its time, which each read of it starts anew, with a
request, or with the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import LeasesFull, ParameterInvalid, SnapshotNotFound
from storage.format.row import Row, Rows
from storage.index import Index
from storage.limits import HOLDER_MAX_CHARS, LEASE_MAX_SECONDS, SNAPSHOTS_MAX
from storage.namespace_settings import NamespaceSettings
from storage.namespaces import Namespace
from storage.snapshot_cut import SnapshotCut

Held = tuple[int, Row]


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot as told to others. ``checksum`` is a SHA-256 over digest, write id, size and payload checksum of all
    entries in the order of the export; ``held_bytes`` are bytes of slots, ``freed_bytes`` those of entries that are not
    live any more and stay only for the snapshot."""

    snapshot_id: str
    owner: str
    namespace: str
    settings: NamespaceSettings
    seq: int
    created_at: float
    entries: int
    payload_bytes: int
    held_bytes: int
    freed_bytes: int
    expires_in_seconds: float
    checksum: str


@dataclass(slots=True, eq=False)
class Snapshot:
    """``rows`` are copies, in the order of the slots they lie in; ``row_ids`` their places in the table, ascending."""

    snapshot_id: str
    owner: str
    namespace: str
    settings: NamespaceSettings
    seq: int
    created_at: float
    ttl_seconds: float
    deadline: float
    row_ids: npt.NDArray[np.int64]
    rows: Rows
    payload_bytes: int
    held_bytes: int
    freed_bytes: int = 0
    checksum: str = ""

    def changed_since(self, seq: int, start: int = 0) -> npt.NDArray[np.int64]:
        """Positions from ``start`` on of the entries that were put, or given another expiry, after ``seq``. On a
        thread: of many entries it takes its time."""
        if not seq:
            return np.arange(start, len(self.rows))
        return np.flatnonzero(self.rows["seq"][start:] > seq) + start

    def held(self, positions: npt.NDArray[np.int64]) -> Iterator[Held]:
        """Row ids and rows of entries, for reading."""
        for position in positions.tolist():
            yield int(self.row_ids[position]), Row._make(self.rows[position].item())

    def digests(self) -> npt.NDArray[np.void]:
        """The key digests of all entries, sorted: what an incremental export leaves out is not here any more."""
        digests = np.ascontiguousarray(self.rows["digest"])
        high, low = (half.astype(np.uint64) for half in digests.view(">u8").reshape(-1, 2).T)
        order = np.argsort(high)
        ascending = high.take(order)
        if (ascending[1:] == ascending[:-1]).any():  # not once in a thousand tables of a million
            order = np.lexsort((low, high))
        sorted_digests: npt.NDArray[np.void] = digests.take(order)
        return sorted_digests


class Snapshots:
    """All snapshots. ``monotonic`` is the clock of their deadlines, in seconds."""

    def __init__(
        self,
        index: Index,
        published_seq: Callable[[], int],
        let_go_all: Callable[..., None],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._index = index
        self._published_seq = published_seq
        self._let_go_all = let_go_all
        self._clock = clock
        self._monotonic = monotonic
        self._snapshots: dict[str, Snapshot] = {}
        self._cuts: list[SnapshotCut] = []
        """Snapshots that are being taken."""
        index.slots.left_while_held = self._note_left

    async def take(self, namespace: Namespace, ttl_seconds: float, owner: str) -> SnapshotView:
        """Fix the namespace as it is published when this is called. Raises ParameterInvalid, LeasesFull."""
        self._check(ttl_seconds, owner)
        snapshot = await self._fix(namespace, ttl_seconds, owner)
        taken = False
        try:
            snapshot.checksum = await asyncio.to_thread(_checksum, snapshot.rows)
            taken = True
        finally:
            if not taken and self._snapshots.pop(snapshot.snapshot_id, None) is not None:
                self._end(snapshot)  # nobody is left who knows its id
        return self._view(snapshot)

    def _check(self, ttl_seconds: float, owner: str) -> None:
        if not 0 < ttl_seconds <= LEASE_MAX_SECONDS:
            raise ParameterInvalid(
                f"a snapshot lasts more than 0 and up to {LEASE_MAX_SECONDS:.0f} seconds", parameter="ttl_seconds"
            )
        if len(owner) > HOLDER_MAX_CHARS or not owner.isprintable():
            raise ParameterInvalid(f"an owner is up to {HOLDER_MAX_CHARS} printable characters", parameter="owner")
        self.end_expired()
        leaving = self._index.slots.holders_leaving
        if len(self._snapshots) + len(self._cuts) >= SNAPSHOTS_MAX or leaving >= SNAPSHOTS_MAX:
            raise LeasesFull(f"there are {SNAPSHOTS_MAX} snapshots, or so many that ended are still letting go")

    async def _fix(self, namespace: Namespace, ttl_seconds: float, owner: str) -> Snapshot:
        created_at = self._clock()
        settings = namespace.settings
        cut = SnapshotCut(self._index, namespace, self._published_seq(), created_at)
        self._cuts.append(cut)
        whole = False
        try:
            await cut.gather()
            whole = True
        finally:
            self._cuts.remove(cut)
            cut.end(None if whole else self._let_go_all)
        snapshot = Snapshot(
            secrets.token_hex(16),
            owner,
            namespace.name,
            settings,
            cut.seq,
            created_at,
            ttl_seconds,
            self._monotonic() + ttl_seconds,
            cut.row_ids,
            cut.rows,
            cut.payload_bytes,
            cut.held_bytes,
            cut.freed_bytes,
        )
        self._snapshots[snapshot.snapshot_id] = snapshot
        return snapshot

    def will_hold(self, row_id: int) -> bool:
        """Whether a snapshot that is being taken is about to hold a live row."""
        return bool(self._cuts) and any(cut.will_hold(row_id) for cut in self._cuts)

    def end(self, snapshot_id: str) -> None:
        """Raises SnapshotNotFound."""
        self.find(snapshot_id)
        self._end(self._snapshots.pop(snapshot_id))

    def end_expired(self) -> None:
        """End snapshots whose time is over."""
        now = self._monotonic()
        for snapshot in [s for s in self._snapshots.values() if s.deadline <= now]:
            del self._snapshots[snapshot.snapshot_id]
            self._end(snapshot)

    def _end(self, snapshot: Snapshot) -> None:
        self._let_go_all(snapshot.row_ids)

    def _note_left(self, row_id: int) -> None:
        """The entry in a held slot went: what it takes is held for snapshots alone."""
        for cut in self._cuts:
            cut.note_left(row_id)
        for snapshot in self._snapshots.values():
            position = int(np.searchsorted(snapshot.row_ids, row_id))
            if position < len(snapshot.row_ids) and snapshot.row_ids[position] == row_id:
                snapshot.freed_bytes += self._index.table.slot_bytes(row_id)

    # -- looking --------------------------------------------------------------------------------------------------

    def find(self, snapshot_id: str) -> Snapshot:
        """Raises SnapshotNotFound."""
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None or snapshot.deadline <= self._monotonic():
            raise SnapshotNotFound
        return snapshot

    def used(self, snapshot: Snapshot) -> None:
        """A read of it starts its time anew."""
        snapshot.deadline = max(snapshot.deadline, self._monotonic() + snapshot.ttl_seconds)

    def view(self, snapshot_id: str) -> SnapshotView:
        """Raises SnapshotNotFound."""
        return self._view(self.find(snapshot_id))

    def views(self) -> list[SnapshotView]:
        self.end_expired()
        return [self._view(snapshot) for snapshot in self._snapshots.values()]

    def holder(self) -> tuple[int, str]:
        """Bytes and owner of the snapshot that holds most; 0 and empty if there is none."""
        largest = max(self._snapshots.values(), key=lambda snapshot: snapshot.held_bytes, default=None)
        if largest is None:
            return 0, ""
        return largest.held_bytes, f"snapshot of {largest.namespace} by {largest.owner or 'an unnamed owner'}"

    def _view(self, snapshot: Snapshot) -> SnapshotView:
        return SnapshotView(
            snapshot.snapshot_id,
            snapshot.owner,
            snapshot.namespace,
            snapshot.settings,
            snapshot.seq,
            snapshot.created_at,
            len(snapshot.rows),
            snapshot.payload_bytes,
            snapshot.held_bytes,
            snapshot.freed_bytes,
            max(0.0, snapshot.deadline - self._monotonic()),
            snapshot.checksum,
        )


def _checksum(rows: Rows) -> str:
    total = hashlib.sha256()
    for name in ("digest", "write_id", "payload_bytes", "payload_checksum"):
        total.update(np.ascontiguousarray(rows[name]).data)
    return total.hexdigest()
