"""The engine against a dict: random lives on a device that works, with restarts and killed processes between.

A value that nobody put, a value under the wrong key, a key that came back, and a count that is off fail at once
(B1, D2, A1, A2). Keys may be missing only as far as the counter of evictions says; what a lease holds may not (L3).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.entries import Conditions, Durability, PutResult
from storage.errors import EntryNotFound, NamespaceNotFound, PreconditionFailed, SpaceHeld
from storage.namespace_settings import NamespaceSettings
from storage.put_session import PutSession
from tests.support.engines import (
    CRASH_OPTIONS,
    FakeClock,
    Rig,
    check_accounts,
    formatted_image,
    payload_of,
    peek,
    put,
    short_journal,
    until,
)
from tests.support.simulated_device import cut_all

T = TypeVar("T")
JOURNAL_BLOCKS = 64
keys = st.sampled_from([b"key %d" % n for n in range(12)])
sizes = st.sampled_from([0, 1, 3500, 4096, 20_000, 70_000, 140_000, 900_000, 1_050_000])
levels = st.sampled_from(list(Durability))


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(short_journal(JOURNAL_BLOCKS, reserve=8))
        self.runner = self.stack.enter_context(asyncio.Runner())
        self.clock = FakeClock()
        self.model: dict[bytes, tuple[bytes, int, int]] = {}
        """Key → payload, expiry, write id."""
        self.leases: dict[str, dict[bytes, bytes]] = {}
        """Lease → the payloads it holds."""
        self.counter = 0
        self.evicted = 0
        """Evictions of this life that the model has accounted for."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    @initialize(seed=st.integers(0, 1000))
    def open(self, seed: int) -> None:
        self.rig = Rig(formatted_image(journal_blocks=JOURNAL_BLOCKS), options=CRASH_OPTIONS, clock=self.clock)
        self.rng = random.Random(seed)
        self.rig.device.order = self.rng
        self.run(self.rig.start())

    def teardown(self) -> None:
        try:
            if hasattr(self, "rig"):
                self.run(self._end())
        finally:
            cut_all()
            self.stack.close()

    async def _end(self) -> None:
        await self._account_evictions()
        await self.rig.reopen()
        self._new_life()
        await self._compare()
        await self.rig.stop()

    # -- mutations ------------------------------------------------------------------------------------------------

    @rule(key=keys, size=sizes, durability=levels, ttl=st.sampled_from([0, 0, 5, 50]))
    def put(self, key: bytes, size: int, durability: Durability, ttl: int) -> None:
        self.counter += 1
        payload, expires_at = payload_of(self.counter, size), int(self.clock()) + ttl if ttl else 0
        try:
            result = self.run(put(self.rig.engine, key, payload, durability=durability, expires_at=expires_at))
        except SpaceHeld:
            assert self.leases
            return
        self.run(until(lambda: not self.rig.engine.status().capacity.slots.in_flight))
        self.model[key] = (payload, expires_at, result.write_id)

    @rule(key=keys, size=sizes, absent=st.booleans())
    def put_on_condition(self, key: bytes, size: int, absent: bool) -> None:
        self.counter += 1
        payload = payload_of(self.counter, size)
        self.run(self._account_evictions())
        there = self._present(key)
        conditions = Conditions(must_be_absent=True) if absent else Conditions(must_be_present=True)
        try:
            result = self.run(put(self.rig.engine, key, payload, conditions=conditions))
        except PreconditionFailed:
            assert there == absent or self._lately_evicted()
        except SpaceHeld:
            assert self.leases
        else:
            assert there != absent or self._lately_evicted()
            self.model[key] = (payload, 0, result.write_id)

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        self.run(self._account_evictions())
        there = self._present(key)
        try:
            write_id = self.run(self.rig.engine.delete("n", key))
        except EntryNotFound:
            assert not there
        else:
            assert there
            assert write_id == self.model[key][2]
        self.model.pop(key, None)

    @rule(size=st.sampled_from([3000, 90_000]))
    def many_at_once(self, size: int) -> None:
        async def burst() -> None:
            values = {b"key %d" % n: payload_of(self.counter + n, size + n) for n in range(12)}
            outcomes = (put(self.rig.engine, k, v) for k, v in values.items())
            results = await asyncio.gather(*outcomes, return_exceptions=True)
            for (key, value), result in zip(values.items(), results, strict=True):
                if isinstance(result, SpaceHeld):
                    assert self.leases
                else:
                    assert isinstance(result, PutResult), result
                    self.model[key] = (value, 0, result.write_id)

        self.counter += 12
        self.run(burst())

    @rule(
        entries=st.lists(st.tuples(keys, st.sampled_from([0, 1, 3500, 20_000])), min_size=1, max_size=8),
        durability=levels,
    )
    def put_many(self, entries: list[tuple[bytes, int]], durability: Durability) -> None:
        """Of several values for one key the last stays."""
        self.counter += len(entries)
        values = [(key, payload_of(self.counter - n, size)) for n, (key, size) in enumerate(entries)]
        try:
            sessions = [self.run(self._stage(key, value, durability)) for key, value in values]
        except SpaceHeld:
            assert self.leases
            return
        results = self.run(self.rig.engine.commit_many(sessions))
        self.run(until(lambda: not self.rig.engine.status().capacity.slots.in_flight))
        for (key, value), result in zip(values, results, strict=True):
            if isinstance(result, SpaceHeld):
                assert self.leases
            else:
                assert isinstance(result, PutResult), result
                self.model[key] = (value, 0, result.write_id)

    async def _stage(self, key: bytes, value: bytes, durability: Durability) -> PutSession:
        session = await self.rig.engine.begin_put("n", key, len(value), durability=durability)
        try:
            await session.write(value)
            session.stage()
        except BaseException:
            session.abort()
            raise
        return session

    @rule(chosen=st.lists(keys, max_size=8))
    def delete_many(self, chosen: list[bytes]) -> None:
        self.run(self._account_evictions())
        outcomes = self.run(self.rig.engine.delete_many("n", chosen))
        for key, outcome in zip(chosen, outcomes, strict=True):
            assert isinstance(outcome, EntryNotFound) != self._present(key)
            self.model.pop(key, None)

    @rule(key=keys, ttl=st.sampled_from([0, 5, 50]))
    def touch(self, key: bytes, ttl: int) -> None:
        self.run(self._account_evictions())
        expires_at = int(self.clock()) + ttl if ttl else 0
        try:
            sketch = self.run(self.rig.engine.touch("n", key, expires_at=expires_at))
        except EntryNotFound:
            assert not self._present(key)
        else:
            payload, _, write_id = self.model[key]
            assert sketch.write_id == write_id
            self.model[key] = (payload, expires_at, write_id)

    @rule(quota=st.sampled_from([None, None, 4, 8]))
    def set_quota(self, quota: int | None) -> None:
        view, _ = self.run(self.rig.engine.set_namespace("n", NamespaceSettings(quota_entries=quota)))
        assert quota is None or view.entries <= quota or self.leases

    @rule()
    def wipe(self) -> None:
        try:
            self.run(self.rig.engine.wipe_namespace("n"))
        except NamespaceNotFound:
            assert not self.model
        self.model.clear()

    @precondition(lambda self: len(self.leases) < 2)
    @rule(chosen=st.lists(keys, min_size=1, max_size=3))
    def lease(self, chosen: list[bytes]) -> None:
        self.run(self._account_evictions())
        try:
            result = self.rig.engine.lease("n", chosen, ttl_seconds=3600)
        except SpaceHeld:
            return
        held = self.leases[result.lease.lease_id] = {}
        for key, sketch in zip(chosen, result.held, strict=True):
            assert (sketch is not None) == self._present(key)
            if sketch is not None:
                held[key] = self.model[key][0]

    @precondition(lambda self: bool(self.leases))
    @rule()
    def release(self) -> None:
        lease_id = next(iter(self.leases))
        self.rig.engine.release(lease_id)
        del self.leases[lease_id]

    # -- time and upkeep ------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 10, 100]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def expire(self) -> None:
        self.run(self.rig.engine.expire())

    @rule()
    def flush(self) -> None:
        self.run(self.rig.engine.flush())

    @rule()
    def checkpoint(self) -> None:
        self.run(self.rig.engine.checkpoint())

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        self.run(self._account_evictions())
        self.run(self.rig.reopen(checkpoint=checkpoint))
        self._new_life()

    @rule()
    def killed(self) -> None:
        """Level ``none`` was waited for, so that a killed process loses nothing at all."""
        self.run(self._account_evictions())
        self.run(self.rig.crash())
        self._new_life()

    def _new_life(self) -> None:
        self.evicted = 0
        self.leases.clear()
        self.rig.device.order = self.rng
        assert not self.rig.engine.status().partial_recovery

    # -- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def same_as_the_model(self) -> None:
        if hasattr(self, "rig"):
            self.run(self._compare())

    async def _compare(self) -> None:
        await self._account_evictions()
        for key in [b"key %d" % n for n in range(12)]:
            expected = self.model[key][0] if self._present(key) else None
            assert await peek(self.rig.engine, key) == expected
        for lease_id, held in self.leases.items():
            for key, payload in held.items():
                reader = await self.rig.engine.open_read("n", key, lease_id=lease_id)
                assert b"".join([bytes(piece) async for piece in reader.pieces()]) == payload
                reader.close()
        check_accounts(self.rig.engine)
        assert await self._listed() == {key for key in self.model if self._present(key)}
        assert self.rig.engine._arena.used_bytes == 0

    async def _listed(self) -> set[bytes]:
        if "n" not in self.rig.engine.status().namespaces:
            return set()
        page = await self.rig.engine.list_entries("n")
        assert page.cursor is None
        return {info.key for info in page.entries}

    def _evictions(self) -> int:
        counts = self.rig.engine.counters.evictions
        return counts["evicted"] + counts["quota"]

    async def _account_evictions(self) -> None:
        """Drop keys that are gone, at most as many as were evicted since."""
        evicted = self._evictions()
        if evicted > self.evicted:
            gone = [k for k in self.model if self._present(k) and await peek(self.rig.engine, k) is None]
            assert len(gone) <= evicted - self.evicted
            for key in gone:
                del self.model[key]
            self.evicted = evicted

    def _lately_evicted(self) -> bool:
        return self._evictions() > self.evicted

    def _present(self, key: bytes) -> bool:
        entry = self.model.get(key)
        return entry is not None and (entry[1] == 0 or entry[1] > self.clock())


CacheMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestCacheMachine = CacheMachine.TestCase
