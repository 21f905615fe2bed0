"""The life of a put: reserve by declared length, receive (``put_session``), write, journal, publish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from storage.buffers import Buffer, BufferArena
from storage.commit import Commit, PutUnit
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import UNCONDITIONAL, Conditions, Durability, PutResult
from storage.errors import (
    DeviceFailed,
    MetadataInvalid,
    PartsInvalid,
    PreconditionFailed,
    RawblockdError,
    Unavailable,
    ValueTooLarge,
)
from storage.format.layout import round_up
from storage.format.parts import Part
from storage.format.record import header_size, pack_map
from storage.identity import Identity
from storage.index import Index
from storage.journal import Journal
from storage.keys import check_key, check_metadata
from storage.known_keys import KnownKey, KnownKeys
from storage.limits import (
    HEADER_MAX_BYTES,
    TRANSFER_MAX_BYTES,
)
from storage.namespace_changes import NamespaceChanges
from storage.namespaces import Namespace
from storage.put_session import PutSession
from storage.row_changes import PutIntent
from storage.schema import PartSpec, check_parts, default_bytes, missing_parts
from storage.space import Space

EXPIRES_MAX = 0xFFFFFFFF
_NONE, _FLUSH = Durability.NONE, Durability.FLUSH
"""Global names: looking a member of an enumeration up takes ten times as long (0.2 µs), and every put does."""


class WritePath:
    def __init__(
        self,
        device: BlockDevice,
        index: Index,
        commit: Commit,
        journal: Journal,
        space: Space,
        arena: BufferArena,
        identity: Identity,
        counters: EngineCounters,
        clock: Callable[[], float],
        wait_timeout_seconds: float,
        namespaces: NamespaceChanges,
    ) -> None:
        self.device = device
        self._namespaces = namespaces
        self._index = index
        self.commit = commit
        self._journal = journal
        self.space = space
        self._arena = arena
        self.identity = identity
        self._counters = counters
        self._clock = clock
        self._wait_timeout_seconds = wait_timeout_seconds
        self.block_bytes = index.geometry.block_bytes
        self.rows_per_journal_block = index.geometry.rows_per_journal_block
        self._background: set[asyncio.Task[None]] = set()
        self._behind: dict[bytes, PutSession] = {}
        """Digest → the last put of the key that was acknowledged at level ``none``, until it has joined."""
        self.known_keys: KnownKeys | None = None
        """Given: keys are kept in memory for listings."""
        self.write_failed: Callable[[str], None] = lambda _: None
        """Told of each failed write, for the device's health."""
        self.step: Callable[[str], None] = lambda _: None
        """Told the named points a crash test stops at."""

    async def begin(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        *,
        content_type: str = "",
        metadata: tuple[tuple[str, str], ...] = (),
        expires_at: int = 0,
        parts: Sequence[Part] = (),
        durability: Durability = Durability.JOURNAL,
        conditions: Conditions = UNCONDITIONAL,
        import_id: int = 0,
    ) -> PutSession:
        """Reserve a slot and the first buffer. Raises what a put can be refused with before its body is read.

        ``import_id`` is the namespace id of an import, whose records bear the name they will have.
        """
        check_key(key)
        if content_type or metadata:
            check_metadata(content_type, metadata)
        if not 0 <= expires_at <= EXPIRES_MAX:
            raise MetadataInvalid("the expiry lies behind the year 2105")
        now = self._clock()
        known = self._index.namespaces.by_name.get(namespace)
        missing: list[PartSpec] = []
        if not import_id and (parts or (known is not None and known.settings.parts)):
            missing = self._missing_parts(known, parts, payload_bytes)
        given_bytes = payload_bytes
        if missing:
            payload_bytes += sum(spec.part.size_bytes for spec in missing)
            parts = (*parts, *(spec.part for spec in missing))
        packed_map = pack_map(key, namespace, int(now * 1000), content_type, metadata, parts)
        header_bytes = header_size(len(packed_map), payload_bytes)
        record_bytes = header_bytes + payload_bytes
        geometry = self._index.geometry
        slot_class = geometry.class_for(record_bytes)
        if slot_class < 0 or header_bytes > HEADER_MAX_BYTES:
            raise ValueTooLarge(f"{payload_bytes} bytes; the largest value is about {self.max_value_bytes} bytes")
        if durability is _NONE and conditions is not UNCONDITIONAL:
            durability = Durability.JOURNAL  # a condition is decided when the row joins, so the answer waits for it
        if durability is not _NONE:
            self._journal.check_available()
        if import_id:
            namespace_id = import_id
        elif known is not None and self.commit.wiping(known.namespace_id) is None:
            namespace_id = known.namespace_id
        else:
            namespace_id = await self._namespaces.find_or_create(namespace)
        digest = self.identity.digest(namespace_id, key)
        if self._check_quota(namespace_id, digest, geometry.class_bytes[slot_class]):
            await self.commit.quotas.prepare(self._index.namespaces.by_id[namespace_id])
        if conditions is not UNCONDITIONAL:
            earlier = self.behind(digest)
            if earlier is not None:
                await asyncio.wait([earlier])
            await self.commit.wait_for_conditions(digest, conditions)
        space = self.space
        if not space.admits_all:
            is_new = space.is_choosy and self.commit.joined(digest) is None
            space.admit(slot_class, digest, round_up(record_bytes, self.block_bytes), is_new=is_new)
        write_id = self.identity.draw_write_id()
        row_id = space.reserve_now(slot_class) or await space.reserve(slot_class)
        first_bytes = round_up(min(record_bytes, TRANSFER_MAX_BYTES), self.block_bytes)
        first = self._arena.try_acquire(first_bytes)
        if first is None:
            try:
                first = await self._arena.acquire(first_bytes, self._wait_timeout_seconds)
            finally:
                if first is None:
                    space.give_back(row_id)
        session = PutSession(
            self,
            row_id,
            first,
            namespace_id,
            key,
            digest,
            write_id,
            packed_map,
            header_bytes,
            payload_bytes,
            expires_at,
            durability,
            conditions,
        )
        if missing:
            await self._fill_in(session, given_bytes, missing)
        if self.known_keys is not None:
            session.known = KnownKey(write_id, key, int(now * 1000) / 1000, content_type)
        return session

    async def _fill_in(self, session: PutSession, given_bytes: int, missing: Sequence[PartSpec]) -> None:
        filled = False
        try:
            await session.fill_in(given_bytes, [default_bytes(spec) for spec in missing])
            filled = True
        finally:
            if not filled:
                session.abort()

    def _missing_parts(self, known: Namespace | None, parts: Sequence[Part], payload_bytes: int) -> list[PartSpec]:
        """The parts that the schema fills in. Raises PartsInvalid."""
        if parts:
            check_parts(parts, payload_bytes)
        if known is None or not known.settings.parts:
            return []
        if payload_bytes and not parts:
            raise PartsInvalid("the namespace has a schema and the value names no parts")
        return missing_parts(known.settings.parts, known.settings.on_missing, parts)

    def _check_quota(self, namespace_id: int, digest: bytes, slot_bytes: int) -> bool:
        """Refuse before the body comes what a quota will refuse (it is decided when the put joins); whether to wait for
        the quota's queue."""
        namespace = self._index.namespaces.by_id.get(namespace_id)
        if namespace is not None and namespace.settings.has_quota:
            present = self.commit.joined(digest)
            before = self._index.table.slot_bytes(present[0]) if present is not None else 0
            self.commit.quotas.check(namespace, slot_bytes, before)
            return self.commit.quotas.must_prepare(namespace, int(present is None), slot_bytes - before)
        return False

    async def join(self, intent: PutIntent, conditions: Conditions, durability: Durability) -> PutUnit | None:
        """Join a put whose record is written. Raises PreconditionFailed, JournalUnavailable."""
        while True:
            try:
                return self.commit.put(intent, conditions, durability)
            except PreconditionFailed:
                await self.commit.wait_for_conditions(intent.digest, conditions)

    @property
    def max_value_bytes(self) -> int:
        """The largest payload that fits with a short key and no metadata."""
        slot = self._index.geometry.class_bytes[-1]
        return slot - header_size(256, slot)

    async def acquire(self, size_bytes: int) -> Buffer:
        return self._arena.try_acquire(size_bytes) or await self._arena.acquire(size_bytes, self._wait_timeout_seconds)

    def class_bytes(self, slot_class: int) -> int:
        return self._index.geometry.class_bytes[slot_class]

    def slot_offset(self, row_id: int) -> int:
        return self._index.table.slot_offset(row_id)

    def locate(self, row_id: int) -> tuple[int, int, int, int, int]:
        """Slab, slot, class and generation of a slot in flight, and where it lies on the device, in bytes. They stay: a
        slab with a slot in flight changes its class for nobody."""
        table = self._index.table
        slab, slot = table.place_of(row_id)
        slot_class = int(table.slab_class[slab])
        offset_bytes = self._index.geometry.slot_offset(slab, slot, slot_class)
        return slab, slot, slot_class, int(table.slab_generation[slab]), offset_bytes

    async def reach(self, unit: PutUnit, durability: Durability) -> None:
        """Wait until a joined put has reached its level, and count it."""
        try:
            block = unit.outcome if type(unit.outcome) is int else await unit.reached()
            if durability is _FLUSH:
                await self._journal.flush_through(block)
        except (Unavailable, DeviceFailed):
            if durability is not _NONE:
                self._counters.puts["failed"] += 1
                raise
            # It waits until the journal takes rows again; one that can't wait is counted where it is given up.
        self._counters.puts["replaced" if unit.replaced else "created"] += 1

    def finish_later(self, session: PutSession, intent: PutIntent) -> PutResult:
        """Level ``none``: the payload is accepted; the rest happens behind the answer."""
        is_there = intent.digest in self._behind or self.commit.check_conditions(intent.digest, UNCONDITIONAL)
        session.detach()
        self._behind[intent.digest] = session
        task = asyncio.get_running_loop().create_task(self._finish_behind(session, intent))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return PutResult(session.write_id, not is_there, Durability.NONE)

    def behind(self, digest: bytes) -> asyncio.Future[None] | None:
        """What a mutation of the key waits for before it joins: a put at level ``none`` was acknowledged, but its
        payload is still on its way. Joining first would let the older value win, or a deleted key come back (D2).
        """
        session = self._behind.get(digest)
        return None if session is None else session.joined()

    def forget_behind(self, session: PutSession) -> None:
        """The put has joined, or never will."""
        if self._behind.get(session.digest) is session:
            del self._behind[session.digest]

    async def _finish_behind(self, session: PutSession, intent: PutIntent) -> None:
        try:
            await session.finish(intent)
        except RawblockdError:
            self._counters.puts["lost"] += 1
            await session.earlier_joined()  # whoever waits for this put must not join before the one that it waited for
        finally:
            session.release()

    async def close(self) -> None:
        """Wait for puts at level ``none`` that were acknowledged already."""
        while self._background:
            await asyncio.wait(self._background)
