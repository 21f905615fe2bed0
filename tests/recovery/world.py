"""One populated device and all that is true of it: what every damage is measured against.

The truth comes from the calls that were made and from the engine that carried them out, never from a recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.engine import Engine
from storage.entries import Durability
from storage.format.geometry import NO_CLASS, Geometry
from storage.format.row import Row, SlotState
from storage.format.superblock import Superblock
from storage.options import EngineOptions
from tests.support.engines import OPTIONS, SECRET, UUID, FakeClock, Rig, formatted_image, geometry_of, payload_of, put
from tests.support.simulated_device import Image
from tests.support.victim import Victim

JOURNAL_BLOCKS = 256
SLABS = 4
LIFETIME_SECONDS = 100


@dataclass(eq=False)
class Mutation:
    """What one call made of a key, and the journal block it lies in."""

    key: bytes
    value: bytes | None
    block: int


@dataclass(eq=False)
class World:
    """``copies`` are newest first. Rows are as they stand at the end of the journal."""

    image: Image
    geometry: Geometry
    clock: FakeClock
    copies: list[int] = field(default_factory=list)
    seqs: dict[int, int] = field(default_factory=dict)
    first_blocks: dict[int, int] = field(default_factory=dict)
    """Of each copy the number of the first journal block behind it."""
    last_block: int = 0
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Entries that a client may see."""
    expired: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    """Keys that were deleted."""
    mutations: list[Mutation] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    raws: dict[int, bytes] = field(default_factory=dict)
    lines: dict[int, set[bytes]] = field(default_factory=dict)
    """Every row that a slot ever had, access counters zeroed."""
    keys: dict[int, bytes] = field(default_factory=dict)
    """Row id of a live row → its key."""
    pages: dict[int, list[int]] = field(default_factory=dict)
    """Page → row ids of the slots it speaks of."""
    older_pages: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(copy, page) → what stood there before the copy was written the last time."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Row id → where the slot begins."""
    free: dict[int, set[int]] = field(default_factory=dict)

    @property
    def superblock(self) -> Superblock:
        return Superblock(UUID, SECRET, 1_600_000_000_000, self.geometry)

    @property
    def newest(self) -> int:
        return self.copies[0]

    def victim(self) -> Victim:
        return Victim(self.image, self.superblock)

    def row_of(self, key: bytes) -> int:
        return next(row_id for row_id, own in self.keys.items() if own == key)

    def live_in(self, page: int) -> list[int]:
        return [row_id for row_id in self.pages[page] if self.rows[row_id].state == SlotState.LIVE]

    def spoken_of(self, row_id: int, since_copy: int) -> bool:
        """Whether the journal since a copy holds the slot's row."""
        return self.rows[row_id].seq > self.seqs[since_copy]

    def before(self, mutation: Mutation) -> bytes | None:
        """What the key held before a mutation."""
        value = None
        for other in self.mutations:
            if other is mutation:
                return value
            if other.key == mutation.key:
                value = other.value
        raise AssertionError("not a mutation of this world")

    def tail_mutations(self) -> list[Mutation]:
        """Mutations behind the newest copy, which only the journal holds."""
        return [m for m in self.mutations if m.block >= self.first_blocks[self.newest]]


class Builder:
    """Makes a world by calls on a real engine."""

    def __init__(self, options: EngineOptions = OPTIONS) -> None:
        self.clock = FakeClock()
        self.rig = Rig(formatted_image(SLABS, journal_blocks=JOURNAL_BLOCKS), options=options, clock=self.clock)
        geometry = geometry_of(SLABS, journal_blocks=JOURNAL_BLOCKS)
        self.world = World(self.rig.device.image, geometry, self.clock)
        self.count = 0

    @property
    def engine(self) -> Engine:
        return self.rig.engine

    async def put(self, key: bytes, size_bytes: int, *, expires_at: int = 0) -> None:
        self.count += 1
        value = payload_of(self.count, size_bytes)
        await put(self.engine, key, value, expires_at=expires_at, metadata=(("colour", "red"),))
        self._note(key, value)
        if expires_at:
            self.world.expired.add(key)

    async def delete(self, key: bytes) -> None:
        await self.engine.delete("n", key, durability=Durability.JOURNAL)
        self._note(key, None)

    def _note(self, key: bytes, value: bytes | None) -> None:
        world = self.world
        world.mutations.append(Mutation(key, value, self.engine._journal.last_block))
        if value is None:
            world.values.pop(key)
            world.gone.add(key)
        else:
            world.values[key] = value
            world.gone.discard(key)
        self.see_rows()

    def see_rows(self) -> None:
        table = self.engine._index.table
        for row_id in table.row_ids().tolist():
            self.world.lines.setdefault(row_id, set()).add(without_access(table.raw(row_id)))

    async def checkpoint(self) -> None:
        """The copy's older pages are kept, for damage that brings them back."""
        world, checkpointer = self.world, self.engine._checkpointer
        target = checkpointer._target().copy
        before = self.rig.device.image.copy()
        await self.engine.checkpoint()
        written = checkpointer.newest
        assert written is not None and written.copy == target and written.header is not None
        for page in range(world.geometry.pages):
            offset = world.geometry.page_offset(target, page)
            world.older_pages[target, page] = before.read(offset, 4096)
        world.copies = [target, *(c for c in world.copies if c != target)]
        world.seqs[target] = written.header.seq
        world.first_blocks[target] = written.header.journal_block

    async def finish(self) -> World:
        """Everything flushed, no checkpoint; the truth is taken down before the engine stops."""
        world, engine = self.world, self.engine
        await engine.flush()
        for key in world.expired:
            world.values.pop(key, None)
        table = engine._index.table
        by_digest = {engine._identity.digest(1, m.key): m.key for m in world.mutations}
        for row_id in table.row_ids().tolist():
            row = table.row(row_id)
            world.rows[row_id] = row
            world.raws[row_id] = without_access(table.raw(row_id))
            world.offsets[row_id] = table.slot_offset(row_id)
            world.pages.setdefault(table.page_of(row_id), []).append(row_id)
            if row.state == SlotState.LIVE:
                world.keys[row_id] = by_digest[row.digest]
            else:
                slot_class = int(table.slab_class[table.place_of(row_id)[0]])
                world.free.setdefault(slot_class, set()).add(row_id)
        world.last_block = engine._journal.last_block
        assert int((table.slab_class != NO_CLASS).sum()) >= 3
        assert world.last_block > JOURNAL_BLOCKS, "the journal has wrapped"
        await self.rig.stop(checkpoint=False)
        world.image = self.rig.device.image
        self.clock.advance(2 * LIFETIME_SECONDS)
        return world


async def build_world() -> World:
    """Three slabs of three classes, a journal that wrapped, three copies, then mutations only the journal has."""
    made = Builder()
    await made.rig.start()
    for number in range(320):  # two rounds of the journal, with overwrites
        await made.put(b"churn %d" % (number % 20), 200 + number)
    for number in range(130):
        await made.put(b"small %d" % number, 100 + 25 * number)
    for number in range(12):
        await made.put(b"medium %d" % number, 6000 + 900 * number)
    for number in range(3):
        await made.put(b"large %d" % number, 70_000 + number)
    soon = int(made.clock()) + LIFETIME_SECONDS
    for number in range(4):
        await made.put(b"short-lived %d" % number, 500, expires_at=soon)
    for number in range(0, 20, 4):
        await made.delete(b"churn %d" % number)
    for round_number in range(3):
        for _ in range(3 if round_number == 0 else 1):  # at first, so that no older copy lacks what follows
            await made.checkpoint()
        await _mutate(made, round_number * 10)
    return await made.finish()


async def _mutate(made: Builder, first: int) -> None:
    """Overwrites, deletions and new entries, in both classes."""
    for number in range(first, first + 4):
        await made.put(b"small %d" % number, 300)
    for number in range(first + 4, first + 7):
        await made.delete(b"small %d" % number)
    for number in range(first, first + 3):
        await made.put(b"new %d" % number, 400)
    await made.put(b"medium %d" % (first // 10), 8000)
    await made.delete(b"medium %d" % (3 + first // 10))


def without_access(raw: bytes) -> bytes:
    """A row with its access counter zeroed: it changes with every hit and is no part of the truth."""
    return raw[:6] + b"\0" + raw[7:]
