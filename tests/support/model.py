"""What a cache may hold after a crash: every mutation with its promise, and from them the values each key may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from storage.engine import Engine
from storage.entries import UNCONDITIONAL, Conditions, Durability, PutResult
from storage.errors import EntryNotFound, NamespaceNotFound, NamespaceWiped, PreconditionFailed, RawblockdError
from storage.format.parts import Part
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
        except (PreconditionFailed, EntryNotFound, NamespaceWiped):
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
        parts: Sequence[Part] = (),
    ) -> PutResult:
        with self._mutation(key, value, durability):
            return await put(
                engine,
                key,
                value,
                durability=durability,
                conditions=conditions,
                expires_at=expires_at,
                parts=parts,
            )

    async def delete(self, engine: Engine, key: bytes, durability: Durability = Durability.JOURNAL) -> None:
        with self._mutation(key, None, durability):
            await engine.delete("n", key, durability=durability)

    async def put_many(self, engine: Engine, values: dict[bytes, bytes], durability: Durability) -> None:
        """One batch. Each key for itself holds the old or the new value after a crash."""
        mutations = {key: Mutation(value, durability, self.device.now) for key, value in values.items()}
        for key, mutation in mutations.items():
            self.mutations.setdefault(key, []).append(mutation)
        sessions = []
        for key, value in values.items():
            session = await engine.begin_put("n", key, len(value), durability=durability)
            await session.write(value)
            session.stage()
            sessions.append(session)
        for (key, mutation), result in zip(mutations.items(), await engine.commit_many(sessions), strict=True):
            if isinstance(result, NamespaceWiped):
                self.mutations[key].remove(mutation)
                continue
            assert isinstance(result, PutResult), result
            mutation.ended, mutation.acknowledged = self.device.now, True

    async def delete_many(self, engine: Engine, keys: list[bytes], durability: Durability) -> None:
        """Keys that are not there count as deleted: nothing of them may come back either."""
        with ExitStack() as stack:
            for key in keys:
                stack.enter_context(self._mutation(key, None, durability))
            for outcome in await engine.delete_many("n", keys, durability=durability):
                assert isinstance(outcome, int | EntryNotFound), outcome

    async def wipe(self, engine: Engine, keys: list[bytes]) -> None:
        """All keys of the namespace at once."""
        with ExitStack() as stack:
            for key in keys:
                stack.enter_context(self._mutation(key, None, Durability.JOURNAL))
            with suppress(NamespaceNotFound):
                await engine.wipe_namespace("n")

    def allowed(self, key: bytes, moment: int, *, power_loss: bool) -> set[bytes | None]:
        """Values the key may have after a crash behind the first ``moment`` events (D1, D2)."""
        mutations = [m for m in self.mutations.get(key, []) if m.started <= moment]
        flushed = self._flushed_before(moment)
        kept = [m for m in mutations if self._must_last(m, moment, flushed if power_loss else moment)]
        allowed: set[bytes | None] = set() if kept else {None}
        for position, mutation in enumerate(mutations):
            # Only by a later one: two that took no event at all would supersede each other.
            later = [m for m in mutations[position + 1 :] if m in kept]
            superseded = any(m.started >= mutation.ended >= 0 for m in later)
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
