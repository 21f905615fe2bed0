"""The way in of a put: reserve by declared length. Then ``put_record`` receives, and ``put_session`` ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from storage.buffers import Buffer, BufferArena
from storage.commit import Commit
from storage.counters import EngineCounters
from storage.device.interface import BlockDevice
from storage.entries import UNCONDITIONAL, Durability, PutResult, PutTerms
from storage.errors import MetadataInvalid, PartsInvalid, ValueTooLarge
from storage.format.parts import Part
from storage.format.record import header_size, pack_map
from storage.identity import Identity
from storage.index import Index
from storage.journal import Journal
from storage.keys import check_key, check_metadata
from storage.known_keys import KnownKey, KnownKeys
from storage.limits import HEADER_MAX_BYTES
from storage.namespace_changes import NamespaceChanges
from storage.namespaces import Namespace
from storage.put_session import PutSession
from storage.row_changes import Place
from storage.schema import PartSpec, check_parts, default_bytes, missing_parts
from storage.space import Space

EXPIRES_MAX = 0xFFFFFFFF
_NONE = Durability.NONE
"""A global name: looking a member of an enumeration up takes ten times as long (0.2 µs), and every put does."""


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
        self._admits_all = space.admits_all
        self.block_bytes = index.geometry.block_bytes
        self.rows_per_journal_block = index.geometry.rows_per_journal_block
        self.loop = asyncio.get_running_loop()
        self._background: set[PutSession | asyncio.Task[None]] = set()
        """Puts that were answered before their end, and tasks in which puts wait for something."""
        self._quiet: asyncio.Future[None] | None = None
        self._behind: dict[bytes, PutSession] = {}
        """Digest → the last put of the key that was acknowledged at level ``none``, until it has joined."""
        self.known_keys: KnownKeys | None = None
        """Given: keys are kept in memory for listings."""
        self.write_failed: Callable[[str], None] = lambda _: None
        """Told of each failed write, for the device's health."""
        self.step: Callable[[str], None] = lambda _: None
        """Told the named points a crash test stops at."""

    # -- beginning ------------------------------------------------------------------------------------------------

    def begin_now(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        terms: PutTerms,
    ) -> PutSession | None:
        """As ``begin``, of a put that has nothing to wait for and nothing special; None of another: nothing is held."""
        known = self._index.namespaces.by_name.get(namespace)
        if known is None or terms.parts or terms.conditions is not UNCONDITIONAL or not self._admits_all:
            return None
        settings, namespace_id = known.settings, known.namespace_id
        if settings.parts or settings.has_quota or self.commit.wiping(namespace_id) is not None:
            return None
        put = self._measured(namespace, key, payload_bytes, terms)
        put.name(namespace_id, self.identity.digest(namespace_id, key), self.identity.draw_write_id())
        first = self._arena.try_acquire(put.first_bytes)
        if first is None:
            return None
        row_id = self.space.reserve_now(put.slot_class)
        if not row_id:
            first.release()
            return None
        put.place(row_id, first)
        return put

    async def begin(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        terms: PutTerms,
        import_id: int = 0,
    ) -> PutSession:
        """Reserve a slot and the first buffer. Raises what a put can be refused with before its body is read.

        ``import_id`` is the namespace id of an import, whose records bear the name they will have.
        """
        missing: list[PartSpec] = []
        given_bytes, parts = payload_bytes, terms.parts
        known = self._index.namespaces.by_name.get(namespace)
        if not import_id and (parts or (known is not None and known.settings.parts)):
            check_key(key)
            missing = self._missing_parts(known, parts, payload_bytes)
            payload_bytes += sum(spec.part.size_bytes for spec in missing)
            terms = terms._replace(parts=(*parts, *(spec.part for spec in missing)))
        put = self._measured(namespace, key, payload_bytes, terms)
        namespace_id = import_id or await self._namespace_id(namespace)
        put.name(namespace_id, self.identity.digest(namespace_id, key), self.identity.draw_write_id())
        await self._let_in(put, namespace_id)
        await self._place(put)
        if missing:
            await self._fill_in(put, given_bytes, missing)
        return put

    def _measured(self, namespace: str, key: bytes, payload_bytes: int, terms: PutTerms) -> PutSession:
        """A put whose sizes fit. Raises KeyInvalid, MetadataInvalid, ValueTooLarge, JournalUnavailable."""
        content_type, metadata, expires_at, parts, durability, conditions = terms
        check_key(key)
        if content_type or metadata:
            check_metadata(content_type, metadata)
        if not 0 <= expires_at <= EXPIRES_MAX:
            raise MetadataInvalid("the expiry lies behind the year 2105")
        stored_ms = int(self._clock() * 1000)
        packed_map = pack_map(key, namespace, stored_ms, content_type, metadata, parts)
        header_bytes = header_size(len(packed_map), payload_bytes)
        slot_class = self._index.geometry.class_for(header_bytes + payload_bytes)
        if slot_class < 0 or header_bytes > HEADER_MAX_BYTES:
            raise ValueTooLarge(f"{payload_bytes} bytes; the largest value is about {self.max_value_bytes} bytes")
        if durability is _NONE and conditions is not UNCONDITIONAL:
            durability = Durability.JOURNAL  # a condition is decided when the row joins, so the answer waits for it
        if durability is not _NONE:
            self._journal.check_available()
        put = PutSession(
            self, key, packed_map, header_bytes, payload_bytes, slot_class, expires_at, durability, conditions
        )
        if self.known_keys is not None:
            put.known = (stored_ms, content_type)
        return put

    async def _namespace_id(self, namespace: str) -> int:
        known = self._index.namespaces.by_name.get(namespace)
        if known is not None and self.commit.wiping(known.namespace_id) is None:
            return known.namespace_id
        return await self._namespaces.find_or_create(namespace)

    async def _let_in(self, put: PutSession, namespace_id: int) -> None:
        """Refuse what a quota, the conditions or the admission refuse, once that is certain."""
        if self._check_quota(namespace_id, put.digest, self.class_bytes(put.slot_class)):
            await self.commit.quotas.prepare(self._index.namespaces.by_id[namespace_id])
        if put.conditions is not UNCONDITIONAL:
            earlier = self.behind(put.digest)
            if earlier is not None:
                await asyncio.wait([earlier])
            await self.commit.wait_for_conditions(put.digest, put.conditions)
        space = self.space
        if not space.admits_all:
            is_new = space.is_choosy and self.commit.joined(put.digest) is None
            space.admit(put.slot_class, put.digest, put.record_bytes, is_new=is_new)

    async def _place(self, put: PutSession) -> None:
        """Give it a slot and its first buffer."""
        row_id = self.space.reserve_now(put.slot_class) or await self.space.reserve(put.slot_class)
        first: Buffer | None = None
        try:
            first = await self.acquire(put.first_bytes)
        finally:
            if first is None:
                self.space.give_back(row_id)
        put.place(row_id, first)

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

    # -- what a put under way asks --------------------------------------------------------------------------------

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

    def locate(self, row_id: int) -> Place:
        """Where a slot in flight lies. It stays: a slab with a slot in flight changes its class for nobody."""
        table = self._index.table
        slab, slot = table.place_of(row_id)
        slot_class = table.class_of_slab[slab]
        offset_bytes = self._index.geometry.slot_offset(slab, slot, slot_class)
        return slab, slot, slot_class, table.generation_of_slab[slab], offset_bytes

    async def flush_through(self, block: int) -> None:
        await self._journal.flush_through(block)

    def remember_key(self, row_id: int, write_id: int, key: bytes, known: tuple[int, str]) -> None:
        """A put has joined: what listings will want to know of it."""
        if self.known_keys is not None:
            stored_ms, content_type = known
            self.known_keys.remember(row_id, KnownKey(write_id, key, stored_ms / 1000, content_type))

    def count(self, replaced: int, durability: Durability, *, failed: bool) -> bool:
        """Count a put that joined and was settled; whether it reached its level. At level ``none`` it has in any case:
        it waits until the journal takes rows again; one that can't wait is counted where it is given up."""
        if failed and durability is not _NONE:
            self._counters.puts["failed"] += 1
            return False
        self._counters.puts["replaced" if replaced else "created"] += 1
        return True

    def count_lost(self) -> None:
        """Count a put that was acknowledged at level ``none`` and is not to be."""
        self._counters.puts["lost"] += 1

    # -- behind the answer ----------------------------------------------------------------------------------------

    def finish_later(self, session: PutSession) -> PutResult:
        """Level ``none``: the payload is accepted; the rest happens behind the answer."""
        digest = session.digest
        is_there = digest in self._behind or self.commit.check_conditions(digest, UNCONDITIONAL)
        session.detach()
        self._behind[digest] = session
        self._background.add(session)
        return PutResult(session.write_id, not is_there, _NONE)

    def end_background(self, session: PutSession) -> None:
        """A put at level ``none`` has come to its end."""
        self._background.discard(session)
        self._look_if_quiet()

    def go_on(self, rest: Coroutine[Any, Any, None]) -> None:
        """Let a put wait for something in a task."""
        task = self.loop.create_task(rest)
        self._background.add(task)
        task.add_done_callback(self._has_gone_on)

    def _has_gone_on(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        self._look_if_quiet()
        if not task.cancelled():
            task.result()

    def _look_if_quiet(self) -> None:
        if self._quiet is not None and not self._background:
            self._quiet.set_result(None)
            self._quiet = None

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

    async def close(self) -> None:
        """Wait for puts at level ``none`` that were acknowledged already, and for those that wait for something."""
        while self._background:
            self._quiet = self.loop.create_future()
            await self._quiet
