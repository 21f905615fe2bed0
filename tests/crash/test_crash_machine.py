"""Lives of a cache, each cut at an arbitrary moment: mutations alone and together, then a crash, then the next life.

What was loose at the crash is dropped, kept or torn at random; the model knows what each level promised (D1, D2, B1).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.engine import Engine
from storage.entries import Conditions, Durability
from storage.errors import EntryNotFound, LeasesFull, NamespaceNotFound, NamespaceWiped, PreconditionFailed
from storage.format.parts import Part
from storage.imports.errors import ImportTooLarge
from storage.imports.session import ImportPolicy
from storage.namespace_settings import NamespaceSettings
from storage.schema import PartSpec
from tests.support.crashes import look
from tests.support.engines import (
    CRASH_OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    peek,
    short_journal,
)
from tests.support.model import Ledger
from tests.support.simulated_device import cut_all, torn

KEYS = [b"a", b"b", b"c", b"d"]
SIZES = [0, 1, 3000, 4096, 9000, 70_000]


@dataclass(frozen=True)
class Step:
    what: str
    key: bytes
    size_bytes: int
    durability: Durability
    together: bool
    """Runs at the same time as the step after it."""


STEPS = [
    "put", "put", "put_parts", "put_absent", "put_many", "delete", "delete_many", "touch", "wipe", "snapshot", "import",
    "checkpoint", "flush",
]  # fmt: skip
steps = st.builds(
    Step,
    what=st.sampled_from(STEPS),
    key=st.sampled_from(KEYS),
    size_bytes=st.sampled_from(SIZES),
    durability=st.sampled_from(list(Durability)),
    together=st.booleans(),
)


TABLE = "t"
SPECS = (PartSpec("w", "uint8", (600,)), PartSpec("m", "uint8", (40,)))
SCHEMA = NamespaceSettings(parts=SPECS, schema_version=1)


@dataclass
class Version:
    number: int
    started: int
    ended: int = -1


class Table:
    """A namespace whose whole content is imported again and again: at any time it is that of one import, all of it."""

    def __init__(self) -> None:
        self._versions = [Version(0, 0, 0)]

    def begin_life(self) -> None:
        """What the last recovery found is the table's only past."""
        self._versions[-1].started = self._versions[-1].ended = 0

    def content(self, number: int) -> dict[bytes, bytes]:
        """No entries in version 0; else as many as its number tells, each with its number in every byte of a part."""
        keys = [b"row %d" % row for row in range(number and 3 + number % 4)]
        return {key: bytes([number % 251]) * 600 + bytes([number % 241]) * 40 for key in keys}

    async def replace(self, rig: Rig, number: int) -> None:
        version = Version(number, rig.device.now)
        self._versions.append(version)
        try:
            view = await rig.engine.begin_import(TABLE, ttl_seconds=3600)
        except ImportTooLarge:
            self._versions.remove(version)
            return
        content = self.content(number)
        for spec, (start, stop) in zip(SPECS, ((0, 600), (600, 640)), strict=True):
            upload = rig.engine.begin_import_part(view.import_id, spec.name)
            await upload.add(list(content), b"".join(value[start:stop] for value in content.values()))
            await upload.end()
        try:
            await rig.engine.commit_import(view.import_id, ImportPolicy.REJECT)
        except NamespaceWiped:  # another import took its place in this very moment
            self._versions.remove(version)
            await rig.engine.abort_import(view.import_id)
        else:
            version.ended = rig.device.now

    async def check(self, engine: Engine, moment: int) -> None:
        """D2: a commit is flushed, so also a power loss leaves the newest that was answered, or one begun since."""
        begun = [v for v in self._versions if v.started <= moment]
        newest = max((v.started for v in begun if 0 <= v.ended <= moment), default=0)
        allowed = [v for v in begun if v.ended < 0 or v.ended > moment or v.ended >= newest]
        page = await engine.list_entries(TABLE, limit=1000)
        found = {entry.key: await get(engine, entry.key, namespace=TABLE) for entry in page.entries}
        matching = [v for v in allowed if self.content(v.number) == found]
        assert matching, f"{len(found)} entries after a crash at {moment}: of no import, or of several"
        assert not engine._index.namespaces.importing()
        self._versions = [matching[-1]]


@dataclass(frozen=True)
class Life:
    steps: list[Step]
    moment: float
    """Where in the life's events the crash comes, 0 to 1."""
    power_loss: bool
    seed: int


lives = st.builds(
    Life,
    steps=st.lists(steps, min_size=1, max_size=16),
    moment=st.floats(0.3, 1.0),
    power_loss=st.booleans(),
    seed=st.integers(0, 1 << 16),
)


@pytest.mark.timeout(300)
@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(lives, min_size=1, max_size=3))
def test_every_crash_leaves_what_was_acknowledged_or_something_newer(plan: list[Life]) -> None:
    with short_journal(64, reserve=8):
        asyncio.run(_live(plan))


async def _live(plan: list[Life]) -> None:
    rig = Rig(formatted_image(journal_blocks=64), options=CRASH_OPTIONS)
    try:
        await rig.start()
        known: dict[bytes, bytes | None] = dict.fromkeys(KEYS)
        await rig.engine.set_namespace(TABLE, SCHEMA)
        await rig.reopen()
        table = Table()
        number = 0
        for life in plan:
            rng = random.Random(life.seed)
            rig.device.order = rng
            ledger = _ledger_of(rig, known)
            table.begin_life()
            waiting: list[asyncio.Task[None]] = []
            for step in life.steps:
                number += 1
                waiting.append(asyncio.create_task(_take(rig, ledger, table, step, number)))
                if not step.together:
                    await asyncio.gather(*waiting)
                    waiting.clear()
            first = rig.device.now if waiting else 0
            if waiting:  # the crash may come while these run
                await asyncio.gather(*waiting)
            last = rig.device.now
            moment = first + int((last - first) * life.moment) if first else int(last * life.moment)
            image = rig.device.crash_image(moment, power_loss=life.power_loss, keep=torn(rng))
            await rig.crash(image)
            await look(rig.engine, ledger, moment, power_loss=life.power_loss)
            await table.check(rig.engine, moment)
            known = {key: await peek(rig.engine, key) for key in KEYS}
        await rig.reopen()
        assert {key: await peek(rig.engine, key) for key in KEYS} == known
        check_accounts(rig.engine)
        await rig.stop()
    finally:
        cut_all()


def _ledger_of(rig: Rig, known: dict[bytes, bytes | None]) -> Ledger:
    """A ledger that starts from what a recovery found. It stands: the start flushed the journal before it served."""
    ledger = Ledger(rig.device)
    for key, value in known.items():
        with ledger._mutation(key, value, Durability.FLUSH) as mutation:
            pass
        mutation.started = mutation.ended = 0
    return ledger


async def _take(rig: Rig, ledger: Ledger, table: Table, step: Step, number: int) -> None:
    engine = rig.engine
    if step.what == "checkpoint":
        await engine.checkpoint()
    elif step.what == "flush":
        await engine.flush()
    elif step.what == "put_parts":
        parts = [
            Part("a", "uint8", (step.size_bytes // 2,)),
            Part("b", "uint8", (step.size_bytes - step.size_bytes // 2,)),
        ]
        with contextlib.suppress(NamespaceWiped):
            await ledger.put(engine, step.key, payload_of(number, step.size_bytes), step.durability, parts=parts)
    elif step.what == "snapshot":
        # It holds slots until the crash: what it holds back comes back with the next start.
        with contextlib.suppress(NamespaceNotFound, LeasesFull):
            await engine.take_snapshot("n", ttl_seconds=3600)
    elif step.what == "import":
        await table.replace(rig, number)
    elif step.what == "put_many":
        await ledger.put_many(
            engine, {k: payload_of(number, step.size_bytes + i) for i, k in enumerate(KEYS[:3])}, step.durability
        )
    elif step.what == "delete_many":
        await ledger.delete_many(engine, KEYS[1:], step.durability)
    elif step.what == "wipe":
        await ledger.wipe(engine, KEYS)
    elif step.what == "touch":
        # The same entry under a new row: it must be found whichever of its rows the crash left.
        with contextlib.suppress(EntryNotFound):
            await engine.touch("n", step.key, expires_at=0, durability=step.durability)
    elif step.what == "delete":
        try:
            await ledger.delete(engine, step.key, step.durability)
        except EntryNotFound:
            return
    else:
        conditions = Conditions(must_be_absent=step.what == "put_absent")
        try:
            await ledger.put(engine, step.key, payload_of(number, step.size_bytes), step.durability, conditions)
        except (PreconditionFailed, NamespaceWiped):
            return
