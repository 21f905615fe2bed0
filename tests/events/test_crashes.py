"""Lives of a cache, each cut at an arbitrary moment: an index that follows the events is right again after each.

Two of them follow: one sees every event at once, and so knows things that the crash may take back; the other comes
back only now and then, perhaps after several lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.entries import Durability
from storage.errors import EntryNotFound, NamespaceNotFound, NamespaceWiped
from tests.events.mirror import Mirror
from tests.support.engines import CRASH_OPTIONS, Rig, formatted_image, payload_of, put, short_journal
from tests.support.simulated_device import cut_all, torn

KEYS = [b"a", b"b", b"c", b"d"]
SIZES = [0, 1, 3000, 4096, 9000, 70_000]
KINDS = [
    *("put", "put", "put", "put_short", "touch", "delete", "wipe", "wait"),
    *("checkpoint", "flush", "compact", "sleeper", "restart"),
]


@dataclass(frozen=True)
class Step:
    what: str
    namespace: str
    key: bytes
    size_bytes: int
    durability: Durability
    together: bool
    """Runs at the same time as the step after it."""


steps = st.builds(
    Step,
    what=st.sampled_from(KINDS),
    namespace=st.sampled_from(["n", "m"]),
    key=st.sampled_from(KEYS),
    size_bytes=st.sampled_from(SIZES),
    durability=st.sampled_from(list(Durability)),
    together=st.booleans(),
)


@dataclass(frozen=True)
class Life:
    steps: list[Step]
    moment: float
    """Where in the life's events the crash comes, 0 to 1."""
    power_loss: bool
    seed: int
    history: int
    """Seqs of which the next start tells at most: its window begins anywhere."""


lives = st.builds(
    Life,
    steps=st.lists(steps, min_size=1, max_size=16),
    moment=st.floats(0.2, 1.0),
    power_loss=st.booleans(),
    seed=st.integers(0, 1 << 16),
    history=st.sampled_from([65536, 65536, 8, 3]),
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(lives, min_size=1, max_size=4))
def test_an_index_that_follows_is_right_after_every_crash(plan: list[Life]) -> None:
    with short_journal(64, reserve=8):
        asyncio.run(_Run().live(plan))


class _Run:
    def __init__(self) -> None:
        self.rig = Rig(formatted_image(journal_blocks=64), options=CRASH_OPTIONS)
        self.mirror, self.sleeper = Mirror(), Mirror()
        self.known: list[tuple[int, Mirror, Mirror]] = []
        """What both knew at each event of the device."""
        self.number = 0

    async def live(self, plan: list[Life]) -> None:
        try:
            await self.rig.start()
            self.sleeper.follow(self.rig.engine)
            for life in plan:
                rng = random.Random(life.seed)
                self.rig.device.order = rng
                await self._steps(life.steps)
                moment = int(self.rig.device.now * life.moment)
                image = self.rig.device.crash_image(moment, power_loss=life.power_loss, keep=torn(rng))
                earlier = [known for known in self.known if known[0] <= moment]
                _, self.mirror, self.sleeper = earlier[-1]
                with mock.patch("storage.recovery.history.HISTORY_MAX", life.history):
                    await self.rig.crash(image)
            self.mirror.follow(self.rig.engine)
            self.sleeper.follow(self.rig.engine)
            await self.rig.stop()
        finally:
            cut_all()

    async def _steps(self, steps: list[Step]) -> None:
        self._begin_life()
        waiting: list[asyncio.Task[None]] = []
        for step in steps:
            if step.what == "restart":
                await asyncio.gather(*waiting)
                waiting.clear()
                await self.rig.reopen(checkpoint=step.together)
                self._begin_life()
                continue
            waiting.append(asyncio.create_task(self._take(step)))
            if not step.together:
                await asyncio.gather(*waiting)
                waiting.clear()
                self._look()
        await asyncio.gather(*waiting)

    def _begin_life(self) -> None:
        """A crash may come while the start is still under way: then nothing of this life was seen."""
        self.known = [(0, self.mirror.copy(), self.sleeper.copy())]
        self._look()

    def _look(self) -> None:
        self.mirror.follow(self.rig.engine)
        self.known.append((self.rig.device.now, self.mirror.copy(), self.sleeper.copy()))

    async def _take(self, step: Step) -> None:
        engine = self.rig.engine
        self.number += 1
        if step.what == "checkpoint":
            await engine.checkpoint()
        elif step.what == "flush":
            await engine.flush()
        elif step.what == "compact":
            await engine._maintenance.compactor.run()
        elif step.what == "sleeper":
            await engine.flush()
            self.sleeper.follow(engine)
        elif step.what == "wait":
            self.rig.clock.advance(20)
            await engine.expire()
        else:
            with contextlib.suppress(EntryNotFound, NamespaceNotFound, NamespaceWiped):
                await self._mutate(step)

    async def _mutate(self, step: Step) -> None:
        engine = self.rig.engine
        if step.what == "delete":
            await engine.delete(step.namespace, step.key, durability=step.durability)
        elif step.what == "wipe":
            await engine.wipe_namespace(step.namespace)
        elif step.what == "touch":
            expires_at = int(self.rig.clock()) + step.size_bytes + 1
            await engine.touch(step.namespace, step.key, expires_at=expires_at, durability=step.durability)
        else:
            expires_at = int(self.rig.clock()) + 10 if step.what == "put_short" else 0
            payload = payload_of(self.number, step.size_bytes)
            await put(
                engine, step.key, payload, namespace=step.namespace, durability=step.durability, expires_at=expires_at
            )
