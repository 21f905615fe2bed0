"""Changes of entries other than puts: deletion, alone and of many, another expiry, other metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

from storage.commit import Commit
from storage.counters import EngineCounters
from storage.entries import UNCONDITIONAL, Conditions, Durability, EntrySketch, PutResult, PutTerms
from storage.errors import DeviceFailed, EntryNotFound, PreconditionFailed, RawblockdError, Unavailable
from storage.identity import Identity
from storage.index import Index
from storage.journal import Journal, Unit
from storage.keys import check_key
from storage.namespaces import check_name
from storage.read_path import ReadPath
from storage.turns import ROWS_CHANGED_AT_ONCE, Turns
from storage.write_path import WritePath

COPY_ATTEMPTS = 8
"""How often a record is copied anew because its key was put meanwhile."""


class EntryChanges:
    def __init__(
        self,
        index: Index,
        identity: Identity,
        commit: Commit,
        journal: Journal,
        read_path: ReadPath,
        write_path: WritePath,
        counters: EngineCounters,
    ) -> None:
        self._index = index
        self._identity = identity
        self._commit = commit
        self._journal = journal
        self._read_path = read_path
        self._write_path = write_path
        self._counters = counters

    def _digest(self, namespace: str, key: bytes) -> bytes:
        """The digest of a key; of one in an unknown namespace, a digest that no entry has. Raises KeyInvalid,
        NamespaceInvalid."""
        check_key(key)
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
            return bytes(16)
        return self._identity.digest(known.namespace_id, key)

    async def _settled(self, digest: bytes) -> None:
        """Wait for a put at level ``none`` that was acknowledged and has not joined yet (D2)."""
        earlier = self._write_path.behind(digest)
        if earlier is not None:
            await asyncio.wait([earlier])

    # -- deletion -------------------------------------------------------------------------------------------------

    async def delete(self, namespace: str, key: bytes, conditions: Conditions, durability: Durability) -> int:
        """Delete an entry; its write id. Raises EntryNotFound, PreconditionFailed, JournalUnavailable, FlushFailed.

        That there is none is as durable as the level asks: a deletion answered before may be less so.
        """
        digest = self._digest(namespace, key)
        if self._write_path.behind(digest) is not None:
            await self._settled(digest)
        if conditions is not UNCONDITIONAL:
            await self._commit.wait_for_conditions(digest, conditions)
        deleted = self._commit.delete(digest, conditions, key)
        if deleted is None:
            await self._delete_absent(digest)
            if durability is Durability.FLUSH:
                await self._journal.flush()
            raise EntryNotFound
        unit, write_id = deleted
        await self._reach(unit, durability)
        return write_id

    async def delete_many(
        self, namespace: str, keys: Sequence[bytes], durability: Durability
    ) -> list[int | RawblockdError]:
        """Delete many entries, by few writes of the journal: the write id or the error of each key, in order."""
        turns = Turns(ROWS_CHANGED_AT_ONCE)
        outcomes: list[int | RawblockdError] = []
        joined: list[tuple[int, Unit]] = []
        absent: list[int] = []
        for position, key in enumerate(keys):
            await turns.after()
            try:
                digest = self._digest(namespace, key)
                if self._write_path.behind(digest) is not None:
                    await self._settled(digest)
                deleted = self._commit.delete(digest, UNCONDITIONAL, key)
                if deleted is not None:
                    joined.append((position, deleted[0]))
                    outcomes.append(deleted[1])
                    continue
                await self._delete_absent(digest)
                absent.append(position)
                outcomes.append(EntryNotFound())
            except RawblockdError as error:
                outcomes.append(error)
        if joined:  # one wait for all: units settle in the order in which they joined
            await asyncio.wait([joined[-1][1].done])
        for position, unit in joined:
            await turns.after()
            try:
                await self._reach(unit, durability)
            except (Unavailable, DeviceFailed) as error:
                outcomes[position] = error
        if absent and durability is Durability.FLUSH:
            try:
                await self._journal.flush()
            except (Unavailable, DeviceFailed) as error:
                for position in absent:
                    outcomes[position] = error
        return outcomes

    async def _absent(self, digest: bytes) -> None:
        """There is nothing under a key: wait until that is durable."""
        # What was there may be gone by a row that is still queued: readers see the entry until it is durable.
        pending = self._commit.pending(digest)
        if pending is not None:
            await pending.reached()

    async def _delete_absent(self, digest: bytes) -> None:
        """There is nothing to delete: as ``_absent``, and see that nothing of the key comes back."""
        await self._absent(digest)
        absent = self._commit.delete_absent(digest)
        if absent is not None:
            await absent.reached()
        self._counters.deletes["missing"] += 1

    async def _reach(self, unit: Unit, durability: Durability) -> None:
        try:
            await self._durable(unit, durability)
        except (Unavailable, DeviceFailed):
            self._counters.deletes["failed"] += 1
            raise
        self._counters.deletes["deleted"] += 1

    async def _durable(self, unit: Unit, durability: Durability) -> None:
        """Wait until a unit has reached a level; ``none`` counts as ``journal``: there is no payload to wait for."""
        block = unit.outcome if type(unit.outcome) is int else await unit.reached()
        if durability is Durability.FLUSH:
            await self._journal.flush_through(block)

    # -- expiry and metadata --------------------------------------------------------------------------------------

    async def touch(
        self, namespace: str, key: bytes, expires_at: int, conditions: Conditions, durability: Durability
    ) -> EntrySketch:
        """Give an entry another expiry, 0 for none; it stays the same entry.

        Raises EntryNotFound, PreconditionFailed, JournalUnavailable.
        """
        digest = self._digest(namespace, key)
        await self._settled(digest)
        await self._commit.wait_for_conditions(digest, conditions)
        touched = self._commit.touch(digest, expires_at, conditions)
        if touched is None:
            await self._absent(digest)
            raise EntryNotFound
        unit, row = touched
        await self._durable(unit, durability)
        return EntrySketch(row.write_id, row.payload_bytes, row.expires_at)

    async def update(
        self,
        namespace: str,
        key: bytes,
        *,
        content_type: str | None,
        metadata: tuple[tuple[str, str], ...] | None,
        expires_at: int | None,
        conditions: Conditions,
        durability: Durability,
    ) -> PutResult:
        """Copy an entry's record to a new slot with other metadata; None keeps what it has.

        The copy takes the place of just the entry that was read: if the key is put meanwhile, it is made anew. Raises
        EntryNotFound, EntryCorrupt, PreconditionFailed, and what a put raises.
        """
        digest = self._digest(namespace, key)
        for attempt in range(COPY_ATTEMPTS):
            await self._settled(digest)
            await self._commit.wait_for_conditions(digest, conditions)
            with closing(await self._read_path.open(namespace, key)) as reader:
                info = reader.info
                terms = PutTerms(
                    info.content_type if content_type is None else content_type,
                    info.metadata if metadata is None else metadata,
                    info.expires_at if expires_at is None else expires_at,
                    info.parts,
                    durability,
                    Conditions(write_ids=frozenset({info.write_id})),
                )
                put = await self._write_path.begin(namespace, key, info.payload_bytes, terms)
                try:
                    async for piece in reader.pieces():
                        await put.write(piece)
                    return await put.commit()
                except PreconditionFailed:
                    if conditions is not UNCONDITIONAL or attempt == COPY_ATTEMPTS - 1:
                        raise
                finally:
                    put.abort()
        raise AssertionError("every attempt ends in a result or an error")
