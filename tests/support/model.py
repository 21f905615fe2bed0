"""What a cache may hold after a crash: every mutation with its promise, and from them the values each key may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from storage.engine import Engine
from storage.entries import UNCONDITIONAL, Conditions, Durability, PutResult
from storage.errors import EntryNotFound, PreconditionFailed, RawblockdError
from tests.support.engines import peek, put
from tests.support.simulated_device import Flush, SimulatedDevice


@dataclass(eq=False)
class Mutation:
    """A put, or a delete (``value`` None). ``started`` and ``ended`` are positions in the device's order of events.

    ``acknowledged`` says whether it succeeded; one that failed may have happened or not.
    """

    value: bytes | None
    durability: Durability
    started: int
    ended: int = -1
    acknowledged: bool = False


@dataclass
class Ledger:
    """Mutations of keys of one namespace, as one client sees them."""

    device: SimulatedDevice
    mutations: dict[bytes, list[Mutation]] = field(default_factory=dict)

    @contextmanager
    def _mutation(self, key: bytes, value: bytes | None, durability: Durability) -> Iterator[Mutation]:
        mutation = Mutation(value, durability, self.device.now)
        self.mutations.setdefault(key, []).append(mutation)
        try:
            yield mutation
            mutation.acknowledged = True
        except (PreconditionFailed, EntryNotFound):
            self.mutations[key].remove(mutation)
            raise
        finally:
            mutation.ended = self.device.now

    async def put(
        self,
        engine: Engine,
        key: bytes,
        value: bytes,
        durability: Durability = Durability.JOURNAL,
        conditions: Conditions = UNCONDITIONAL,
        expires_at: int = 0,
    ) -> PutResult:
        with self._mutation(key, value, durability):
            return await put(engine, key, value, durability=durability, conditions=conditions, expires_at=expires_at)

    async def delete(self, engine: Engine, key: bytes, durability: Durability = Durability.JOURNAL) -> None:
        with self._mutation(key, None, durability):
            await engine.delete("n", key, durability=durability)

    def allowed(self, key: bytes, moment: int, *, power_loss: bool) -> set[bytes | None]:
        """Values the key may have after a crash behind the first ``moment`` events (D1, D2)."""
        mutations = [m for m in self.mutations.get(key, []) if m.started <= moment]
        flushed = self._flushed_before(moment)
        kept = [m for m in mutations if self._must_last(m, moment, flushed if power_loss else moment)]
        allowed: set[bytes | None] = set() if kept else {None}
        for mutation in mutations:
            superseded = any(m.started >= mutation.ended >= 0 for m in kept if m is not mutation)
            if not superseded:
                allowed.add(mutation.value)
        return allowed

    def _must_last(self, mutation: Mutation, moment: int, durable: int) -> bool:
        """``durable``: what ended before this event is durable by itself, whatever its level but ``none``."""
        if not mutation.acknowledged or not 0 <= mutation.ended <= moment or mutation.durability is Durability.NONE:
            return False
        return mutation.durability is Durability.FLUSH or mutation.ended <= durable

    def _flushed_before(self, moment: int) -> int:
        done = [
            f.issued
            for what, f in self.device.events[:moment]
            if what == "done" and isinstance(f, Flush) and not f.failed
        ]
        return max(done, default=0)

    async def check(self, engine: Engine, moment: int, *, power_loss: bool) -> None:
        """Every key of the ledger holds a value it may have."""
        for key in self.mutations:
            allowed = self.allowed(key, moment, power_loss=power_loss)
            try:
                value = await peek(engine, key)
            except RawblockdError as error:
                raise AssertionError(f"{key!r} after a crash at {moment}: {error!r}") from error
            assert value in allowed, (
                f"{key!r} after a crash at event {moment}: {_short(value)}, allowed: {[_short(v) for v in allowed]}"
            )


def _short(value: bytes | None) -> str:
    return "absent" if value is None else f"{value[:24]!r} ({len(value)} bytes)"
