"""Engines over simulated devices, small: a test fills them, wraps their journal and recovers them often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import lru_cache
from unittest import mock

import numpy as np

from storage.buffers import Buffer, BufferArena
from storage.engine import Engine
from storage.entries import UNCONDITIONAL, Conditions, Durability, PutResult
from storage.entry_reader import EntryReader
from storage.errors import EntryNotFound, GeometryInvalid, RawblockdError
from storage.format.geometry import NO_CLASS, Geometry, plan
from storage.format.parts import Part
from storage.format.row import SlotState
from storage.format.superblock import Superblock
from storage.formatting import write_format
from storage.options import EngineOptions
from tests.support.simulated_device import Image, SimulatedDevice

UUID = bytes(range(16))
SECRET = bytes(range(32))
POISON = b"\xfaPOISON\xfb"
"""What memory of the arena holds before it is filled: it must never reach the device (B2)."""
SHORT_JOURNAL_BLOCKS = 512
MIB = 1 << 20
SLAB_BYTES = MIB + MIB // 256
ABSENT = None


class PoisonedArena(BufferArena):
    """Every piece handed out is full of poison."""

    huge_bytes = 0
    """Not asked of the kernel, which takes milliseconds: such arenas are made by the thousand."""

    def _take(self, order: int) -> Buffer | None:
        buffer = super()._take(order)
        if buffer is not None:
            buffer.view[:] = POISON * (buffer.size_bytes // len(POISON))
        return buffer


class FakeClock:
    """Seconds since 1970, moved by hand."""

    def __init__(self, seconds: float = 1_700_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@contextmanager
def short_journal(blocks: int = SHORT_JOURNAL_BLOCKS, reserve: int = 32) -> Iterator[None]:
    """Let devices have a short journal: one that is read in milliseconds and wraps within a test."""
    with (
        mock.patch("storage.format.geometry.JOURNAL_MIN_BLOCKS", blocks),
        mock.patch("storage.journal.RESERVE_BLOCKS", reserve),
        mock.patch("storage.engine_life.BufferArena", PoisonedArena),
        mock.patch("storage.assembly.BufferArena", PoisonedArena),
        mock.patch("storage.assembly.INTERNAL_BUFFER_BYTES", 2 * MIB),
    ):
        yield


def geometry_of(slabs: int = 4, *, copies: int = 3, journal_blocks: int = SHORT_JOURNAL_BLOCKS) -> Geometry:
    """The smallest device of 4 KiB slots with so many slabs of 1 MiB."""
    size = slabs * SLAB_BYTES + journal_blocks * 4096
    while True:
        try:
            geometry = plan(size, slab_bytes=MIB, smallest_slot_bytes=4096, copies=copies)
        except GeometryInvalid:
            size += MIB // 4
        else:
            if geometry.slabs == slabs:
                return geometry
            size += MIB // 4


@lru_cache(maxsize=8)
def _formatted(slabs: int, copies: int, journal_blocks: int) -> Image:
    geometry = geometry_of(slabs, copies=copies, journal_blocks=journal_blocks)
    device = SimulatedDevice(Image(geometry.device_bytes))
    write_format(device, Superblock(UUID, SECRET, 1_600_000_000_000, geometry))
    blank = bytes(4096)
    return Image(geometry.device_bytes, {n: page for n, page in device.image.pages.items() if page != blank})


def formatted_image(slabs: int = 4, *, copies: int = 3, journal_blocks: int = SHORT_JOURNAL_BLOCKS) -> Image:
    """A freshly formatted device. ``short_journal`` must be in force."""
    return _formatted(slabs, copies, journal_blocks).copy()


OPTIONS = EngineOptions(buffer_bytes=8 * MIB, background=False, wait_timeout_seconds=2.0)
CRASH_OPTIONS = replace(OPTIONS, buffer_bytes=2 * MIB)
"""For engines made by the thousand."""


class Rig:
    """One device and the engine that serves it now."""

    def __init__(
        self, image: Image | None = None, *, options: EngineOptions = OPTIONS, clock: FakeClock | None = None
    ) -> None:
        self.device = SimulatedDevice(image if image is not None else formatted_image())
        self.options = options
        self.clock = clock or FakeClock()
        self.engine = Engine(self.device, options, self.clock)

    async def start(self) -> Engine:
        await self.engine.start()
        return self.engine

    async def stop(self, *, checkpoint: bool = True) -> None:
        await self.engine.stop(checkpoint=checkpoint)
        assert_clean(self.device)

    async def reopen(self, *, checkpoint: bool = True, options: EngineOptions | None = None) -> Engine:
        """Stop and start again over the same content."""
        if self.engine.state.value != "stopped":
            await self.stop(checkpoint=checkpoint)
        return await self.start_over(self.device.image, options=options)

    async def crash(self, image: Image | None = None, *, options: EngineOptions | None = None) -> Engine:
        """The process is killed; a new one starts from ``image``, by default from all that was written."""
        image = self.device.crash_image() if image is None else image
        await abandon(self.device)
        return await self.start_over(image, options=options)

    async def start_over(self, image: Image, *, options: EngineOptions | None = None) -> Engine:
        self.options = options or self.options
        self.device = SimulatedDevice(image.copy())
        self.engine = Engine(self.device, self.options, self.clock)
        return await self.start()


async def one_by_one(
    lists: AsyncGenerator[list[EntryReader | RawblockdError], None],
) -> AsyncGenerator[tuple[int, EntryReader | RawblockdError], None]:
    """Position and result of each key of a batch read."""
    position = 0
    async with aclosing(lists):
        async for results in lists:
            for result in results:
                yield position, result
                position += 1


async def abandon(device: SimulatedDevice) -> None:
    """End an engine as SIGKILL does: its tasks stop where they are, its device hears nothing more."""
    assert_clean(device)
    device.cut()
    mine = asyncio.current_task()
    while tasks := [task for task in asyncio.all_tasks() if task is not mine]:
        for task in tasks:  # a wait that ends in the same turn swallows a cancellation: ask again
            task.cancel()
        await asyncio.wait(tasks, timeout=0.01)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()


async def turns(count: int = 20) -> None:
    """Let the loop turn: what can go on does."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], *, limit: int = 20_000) -> None:
    """Let the loop turn until something is the case."""
    for _ in range(limit):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to pass")


def payload_of(seed: int, size_bytes: int) -> bytes:
    """Bytes that tell which value they are of, everywhere."""
    unit = b"<%d:%d>" % (seed, size_bytes)
    return (unit * (size_bytes // len(unit) + 1))[:size_bytes]


async def put(
    engine: Engine,
    key: bytes,
    payload: bytes,
    *,
    namespace: str = "n",
    durability: Durability = Durability.JOURNAL,
    conditions: Conditions = UNCONDITIONAL,
    expires_at: int = 0,
    content_type: str = "",
    metadata: tuple[tuple[str, str], ...] = (),
    parts: Sequence[Part] = (),
) -> PutResult:
    """One whole put."""
    session = await engine.begin_put(
        namespace,
        key,
        len(payload),
        durability=durability,
        conditions=conditions,
        expires_at=expires_at,
        content_type=content_type,
        metadata=metadata,
        parts=parts,
    )
    try:
        await session.write(payload)
        return await session.commit()
    finally:
        session.abort()


async def get(engine: Engine, key: bytes, *, namespace: str = "n", start: int = 0, stop: int | None = None) -> bytes:
    """The payload or a range of it. Raises as ``open_read``."""
    reader = await engine.open_read(namespace, key)
    try:
        return b"".join([bytes(piece) async for piece in reader.pieces(start, stop)])
    finally:
        reader.close()


async def peek(engine: Engine, key: bytes, *, namespace: str = "n") -> bytes | None:
    """The payload, None if there is no entry."""
    try:
        return await get(engine, key, namespace=namespace)
    except EntryNotFound:
        return ABSENT


def check_accounts(engine: Engine) -> None:
    """A1 and A2: every count equals one made anew from the rows."""
    index = engine._index
    table, geometry = index.table, index.geometry
    status = engine.status()
    in_flight, limbo = set(index.slots.in_flight), set(index.slots._limbo_ids)
    assert not in_flight & limbo
    used: dict[int, list[int]] = {}
    totals = [
        dict.fromkeys(("free", "live", "quarantined", "retired", "limbo", "in_flight"), 0) for _ in status.classes
    ]
    live_digests: set[bytes] = set()
    for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
        slot_class = int(table.slab_class[slab])
        free = set(index.slots._free[slot_class])
        counts = totals[slot_class]
        for row_id in table.row_ids_of_slab(slab).tolist():
            row = table.row(row_id)
            if row.state == SlotState.FREE:
                place = "in_flight" if row_id in in_flight else "limbo" if row_id in limbo else "free"
                if place != "free":
                    assert row_id not in free
                counts[place] += 1
                continue
            assert row_id not in free and row_id not in limbo and row_id not in in_flight
            wiped = row.state == SlotState.LIVE and row.namespace_id in index.namespaces.dying
            counts["limbo" if wiped else SlotState(row.state).name.lower()] += 1
            if row.state == SlotState.LIVE:
                assert row.digest not in live_digests, "two live rows of one key"
                live_digests.add(row.digest)
                assert index.keys.find(row.digest) == row_id
                sums = used.setdefault(row.namespace_id, [0, 0, 0])
                sums[0] += 1
                sums[1] += geometry.class_bytes[slot_class]
                sums[2] += row.payload_bytes
    assert index.keys.entries == len(live_digests)
    for slot_class, slot_status in enumerate(status.classes):
        counts = totals[slot_class]
        slots = slot_status.slots
        found = {name: getattr(slots, name) for name in counts}
        assert found == counts, (slot_class, found, counts)
        assert sum(counts.values()) == slots.total
    namespaces = {**index.namespaces.by_id, **index.namespaces.dying}
    for namespace in namespaces.values():
        expected = used.get(namespace.namespace_id, [0, 0, 0])
        assert [namespace.entries, namespace.used_bytes, namespace.payload_bytes] == expected, namespace.name
        if engine._commit.journal.idle:
            assert (namespace.queued_entries, namespace.queued_bytes) == (0, 0), namespace.name
    assert set(used) <= set(namespaces)


def free_slots(engine: Engine) -> dict[int, set[int]]:
    """The free row ids of each class, those in limbo included: what the rows alone decide."""
    index = engine._index
    row_ids = index.table.row_ids()
    free = row_ids[index.table.lines["state"][row_ids] == SlotState.FREE].tolist()
    by_class: dict[int, set[int]] = {}
    for row_id in free:
        by_class.setdefault(int(index.table.slab_class[index.table.place_of(row_id)[0]]), set()).add(row_id)
    return by_class


def assert_clean(device: SimulatedDevice) -> None:
    """No buffer changed under way, and no poison reached the device (B2)."""
    assert not device.violations, device.violations
    for write in device.writes:
        assert POISON not in write.content, f"old memory in a write at {write.offset_bytes}"
