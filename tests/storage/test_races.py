"""64 clients on 8 keys of two namespaces: put, batch, delete, lease, touch, evict, wipe, expire, all at once.

B1: what is read is one value that was put for just that key. A1, A2: every count is right at the end. L3: what a lease
holds never vanishes. L1: every request ends; a hang is an error of the loop, whose clock jumps.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from storage.engine import Engine
from storage.entries import Conditions, Durability, PutResult
from storage.errors import (
    Busy,
    EntryNotFound,
    Full,
    LeasesFull,
    NamespaceNotFound,
    NamespaceWiped,
    PreconditionFailed,
    QuotaExceeded,
    RawblockdError,
    SpaceHeld,
)
from storage.namespace_settings import NamespaceSettings, QuotaMode
from tests.support.engines import CRASH_OPTIONS, Rig, check_accounts, formatted_image, one_by_one, put, short_journal
from tests.support.simulated_device import cut_all
from tests.support.virtual_loop import run_virtually

CLIENTS, STEPS = 64, 14
KEYS = [b"key %d" % number for number in range(8)]
NAMESPACES = ["n", "m"]
SIZES = [0, 100, 3500, 9000, 70_000]
REFUSALS = (
    Busy, EntryNotFound, Full, LeasesFull, NamespaceNotFound, NamespaceWiped, PreconditionFailed, QuotaExceeded,
    SpaceHeld,
)  # fmt: skip
"""What a request may be answered with in such a crowd, besides success."""


def value_of(namespace: str, key: bytes, number: int, size_bytes: int) -> bytes:
    unit = b"<%s %s %d>" % (namespace.encode(), key, number)
    return (unit * (size_bytes // len(unit) + 1))[:size_bytes]


class Crowd:
    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._number = 0
        self._written: dict[tuple[str, bytes], set[bytes]] = {}
        """Values that were ever put, or begun, under a key."""

    @property
    def engine(self) -> Engine:
        return self.rig.engine

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        steps: list[Callable[[], Awaitable[None]]] = [
            self._put, self._put, self._put, self._put_many, self._delete, self._delete_many, self._read,
            self._read_many, self._lease, self._touch, self._update, self._wipe, self._quota, self._expire, self._list,
            self._leave,
        ]  # fmt: skip
        for _ in range(STEPS):
            step = self.rng.choice(steps)
            try:
                await step()
                self.counts[step.__name__] += 1
            except REFUSALS as error:
                self.counts[error.code] += 1
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(0)

    def _draw(self) -> tuple[str, bytes, bytes]:
        namespace, key = self.rng.choice(NAMESPACES), self.rng.choice(KEYS)
        self._number += 1
        value = value_of(namespace, key, self._number, self.rng.choice(SIZES))
        self._written.setdefault((namespace, key), set()).add(value)
        return namespace, key, value

    def _check(self, namespace: str, key: bytes, value: bytes) -> None:
        assert value in self._written[namespace, key], f"{namespace} {key!r} holds {value[:40]!r}"

    async def _put(self) -> None:
        namespace, key, value = self._draw()
        conditions = Conditions(must_be_absent=self.rng.random() < 0.3)
        expires_at = self.rng.choice([0, 0, int(self.rig.clock()) + self.rng.randrange(1, 4)])
        durability = self.rng.choice(list(Durability))
        await put(
            self.engine, key, value, namespace=namespace, conditions=conditions, expires_at=expires_at,
            durability=durability,
        )  # fmt: skip

    async def _put_many(self) -> None:
        sessions = []
        try:
            for _ in range(self.rng.randrange(1, 6)):
                _, key, value = self._draw()
                namespace = self.rng.choice(NAMESPACES)
                self._written.setdefault((namespace, key), set()).add(value)
                session = await self.engine.begin_put(namespace, key, len(value))
                sessions.append(session)
                await session.write(value)
                session.stage()
            for result in await self.engine.commit_many(sessions):
                assert isinstance(result, PutResult | RawblockdError)
                if isinstance(result, RawblockdError):
                    assert isinstance(result, REFUSALS), result
        finally:
            for session in sessions:
                session.abort()

    async def _leave(self) -> None:
        """A client that goes away in the middle of its put."""
        namespace, key, value = self._draw()
        session = await self.engine.begin_put(namespace, key, len(value) + 1)
        await session.write(value)
        session.abort()

    async def _delete(self) -> None:
        await self.engine.delete(self.rng.choice(NAMESPACES), self.rng.choice(KEYS))

    async def _delete_many(self) -> None:
        for outcome in await self.engine.delete_many(self.rng.choice(NAMESPACES), self.rng.sample(KEYS, 3)):
            assert isinstance(outcome, int | EntryNotFound), outcome

    async def _read(self) -> None:
        namespace, key = self.rng.choice(NAMESPACES), self.rng.choice(KEYS)
        self._check(namespace, key, await self._get(namespace, key))

    async def _get(self, namespace: str, key: bytes, lease_id: str = "") -> bytes:
        reader = await self.engine.open_read(namespace, key, lease_id=lease_id)
        try:
            return b"".join([bytes(piece) async for piece in reader.pieces()])
        finally:
            reader.close()

    async def _read_many(self) -> None:
        namespace, keys = self.rng.choice(NAMESPACES), self.rng.choices(KEYS, k=12)
        async with aclosing(one_by_one(self.engine.open_many(namespace, keys))) as results:
            async for position, reader in results:
                if isinstance(reader, RawblockdError):
                    assert isinstance(reader, REFUSALS), reader
                else:
                    value = b"".join([bytes(piece) async for piece in reader.pieces()])
                    reader.close()
                    self._check(namespace, keys[position], value)

    async def _lease(self) -> None:
        """Whatever the others do meanwhile, each leased key reads the same as long as the lease lasts."""
        namespace, keys = self.rng.choice(NAMESPACES), self.rng.sample(KEYS, 2)
        result = self.engine.lease(namespace, keys, ttl_seconds=3000)
        held = [key for key, sketch in zip(keys, result.held, strict=True) if sketch is not None]
        first = {key: await self._get(namespace, key, result.lease.lease_id) for key in held}
        for key, value in first.items():
            self._check(namespace, key, value)
        for _ in range(3):
            await self._put_quietly()
            for key, value in first.items():
                assert await self._get(namespace, key, result.lease.lease_id) == value
        self.engine.release(result.lease.lease_id)

    async def _put_quietly(self) -> None:
        try:
            await self._put()
        except REFUSALS as error:
            self.counts[error.code] += 1

    async def _touch(self) -> None:
        expires_at = self.rng.choice([0, int(self.rig.clock()) + 2])
        await self.engine.touch(self.rng.choice(NAMESPACES), self.rng.choice(KEYS), expires_at=expires_at)

    async def _update(self) -> None:
        metadata = (("number", str(self._number)),)
        await self.engine.update(self.rng.choice(NAMESPACES), self.rng.choice(KEYS), metadata=metadata)

    async def _wipe(self) -> None:
        if self.rng.random() < 0.3:
            await self.engine.wipe_namespace(self.rng.choice(NAMESPACES))

    async def _quota(self) -> None:
        settings = NamespaceSettings(
            quota_entries=self.rng.choice([None, 3, 6]), quota_mode=self.rng.choice(list(QuotaMode))
        )
        await self.engine.set_namespace(self.rng.choice(NAMESPACES), settings)

    async def _expire(self) -> None:
        self.rig.clock.advance(self.rng.choice([0.2, 1.0]))
        await self.engine.expire()

    async def _list(self) -> None:
        page = await self.engine.list_entries(self.rng.choice(NAMESPACES))
        assert {entry.key for entry in page.entries} <= set(KEYS)


@pytest.mark.parametrize("seed", range(6))
def test_b1_a1_a2_l3_in_a_crowd(seed: int) -> None:
    async def race() -> Counter[str]:
        rig = Rig(formatted_image(), options=replace(CRASH_OPTIONS, wait_timeout_seconds=2.0))
        rig.device.order = random.Random(seed)
        await rig.start()
        crowd = Crowd(rig, seed)
        await crowd.run()
        await rig.engine.flush()
        await rig.engine.expire()
        while rig.engine._index.namespaces.dying or not rig.engine._journal.idle:
            await asyncio.sleep(0.01)
        await rig.engine.flush()
        check_accounts(rig.engine)
        slots = rig.engine.status().capacity.slots
        assert (slots.in_flight, slots.limbo, rig.engine._index.slots.holds_count) == (0, 0, 0)
        assert rig.engine._arena.used_bytes == 0
        before = rig.engine.namespaces()
        await rig.reopen()
        assert sorted(rig.engine.namespaces(), key=lambda view: view.name) == sorted(before, key=lambda view: view.name)
        check_accounts(rig.engine)
        await rig.stop()
        return crowd.counts

    with short_journal():
        try:
            counts = run_virtually(race())
        finally:
            cut_all()
    assert counts["_put"] > 50
    assert counts["_lease"] > 5, counts
