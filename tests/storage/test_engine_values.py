"""Values: put, get, head, delete, sizes at every limit, ranges, expiry, conditions (B1, B2, D1, D3)."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest

from storage.device.counters import OpKind
from storage.device.opening import open_device
from storage.engine import Engine
from storage.entries import Conditions, Durability
from storage.errors import (
    EntryNotFound,
    KeyInvalid,
    LengthMismatch,
    MetadataInvalid,
    NamespaceInvalid,
    PreconditionFailed,
    ValueTooLarge,
)
from storage.formatting import format_device
from storage.limits import CHUNK_BYTES, KEY_MAX_BYTES, TRANSFER_MAX_BYTES
from tests.support.engines import (
    OPTIONS,
    Rig,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    peek,
    put,
    short_journal,
    turns,
    until,
)

MIB = 1 << 20
ABSENT = Conditions(must_be_absent=True)
PRESENT = Conditions(must_be_present=True)


@pytest.mark.parametrize("durability", list(Durability))
async def test_d1_put_get_head_delete_at_each_level(rig: Rig, durability: Durability) -> None:
    engine = rig.engine
    result = await put(
        engine,
        b"key",
        b"value",
        durability=durability,
        content_type="text/plain",
        metadata=(("color", "blue"),),
        expires_at=int(rig.clock()) + 60,
    )
    assert result.created
    assert result.durability is durability
    await until(lambda: not engine.status().capacity.slots.in_flight)
    info = await engine.head("n", b"key")
    assert (info.namespace, info.key, info.write_id, info.payload_bytes) == ("n", b"key", result.write_id, 5)
    assert (info.content_type, info.metadata, info.expires_at) == (
        "text/plain",
        (("color", "blue"),),
        int(rig.clock()) + 60,
    )
    assert info.stored_at == rig.clock()
    assert await get(engine, b"key") == b"value"
    second = await put(engine, b"key", b"another value", durability=durability)
    assert not second.created
    assert second.write_id > result.write_id
    await until(lambda: not engine.status().capacity.slots.in_flight)
    assert await get(engine, b"key") == b"another value"
    deleted = await engine.delete("n", b"key", durability=durability)
    assert deleted == second.write_id
    assert await peek(engine, b"key") is None
    with pytest.raises(EntryNotFound):
        await engine.delete("n", b"key")
    with pytest.raises(EntryNotFound):
        await engine.head("n", b"key")


async def test_d1_levels_wait_for_exactly_what_they_promise(rig: Rig) -> None:
    """The order of events on the device: payload, then journal row, then (flush) a flush that follows it (D3)."""
    engine, device = rig.engine, rig.device
    await put(engine, b"warm", b"namespace and slab are there")
    geometry = engine._index.geometry
    begin = device.now
    await put(engine, b"key", payload_of(1, 3000))
    events = device.events[begin:]
    kinds = [(what, type(record).__name__) for what, record in events]
    assert kinds == [("issued", "Write"), ("done", "Write")] * 2
    assert events[0][1].offset_bytes >= geometry.slabs_offset  # type: ignore[union-attr]
    assert events[2][1].offset_bytes < geometry.slabs_offset  # type: ignore[union-attr]
    begin = device.now
    await put(engine, b"key", payload_of(2, 3000), durability=Durability.FLUSH)
    kinds = [(what, type(record).__name__) for what, record in device.events[begin:]]
    assert kinds == [("issued", "Write"), ("done", "Write")] * 2 + [("issued", "Flush"), ("done", "Flush")]
    begin = device.now
    device.hold = lambda kind, offset, size: kind is OpKind.WRITE
    result = await put(engine, b"key", payload_of(3, 3000), durability=Durability.NONE)
    assert result.durability is Durability.NONE
    device.release_all()
    await until(lambda: not engine.status().capacity.slots.in_flight)
    assert await get(engine, b"key") == payload_of(3, 3000)


def _sizes(engine: Engine) -> list[int]:
    sizes = {0, 1, 63, 64, 65, 4095, 4096, 4097}
    for size in (CHUNK_BYTES, 2 * CHUNK_BYTES, TRANSFER_MAX_BYTES):
        sizes |= {size - 1, size, size + 1}
    for slot_bytes in engine._index.geometry.class_bytes:
        for header_bytes in range(128, 320, 64):
            sizes |= {slot_bytes - header_bytes + step for step in (-1, 0, 1)}
    top = engine.status().capacity.max_value_bytes
    return sorted(size for size in sizes | {top - 1, top} if 0 <= size <= top)


async def test_b1_sizes_at_class_limits_chunks_and_transfers(rig: Rig) -> None:
    engine = rig.engine
    for size in _sizes(engine):
        value = payload_of(size, size)
        await put(engine, b"key %d" % size, value)
        assert await get(engine, b"key %d" % size) == value, size
        assert (await engine.head("n", b"key %d" % size)).payload_bytes == size
        await engine.delete("n", b"key %d" % size)
        await engine.flush()
    assert engine.status().capacity.used_bytes == 0


async def test_b1_values_arrive_in_pieces_of_any_size(rig: Rig) -> None:
    engine = rig.engine
    value = payload_of(1, 900_001)
    for step in (1021, 65_536, 300_000, 900_001):
        session = await engine.begin_put("n", b"key", len(value))
        for begin in range(0, len(value), step):
            await session.write(memoryview(value)[begin : begin + step])
        await session.commit()
        assert await get(engine, b"key") == value


@pytest.mark.parametrize("size", [1, 5000, CHUNK_BYTES + 7, 1_050_000])
async def test_b1_ranges(rig: Rig, size: int) -> None:
    engine = rig.engine
    value = payload_of(7, size)
    await put(engine, b"key", value)
    edges = {0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, size // 2, size - 1, size}
    for start in sorted(e for e in edges if e <= size):
        for stop in [*sorted(e for e in edges if start <= e <= size), None, size + 100]:
            assert await get(engine, b"key", start=start, stop=stop) == value[start:stop]


async def test_values_that_imitate_records_and_odd_keys(rig: Rig) -> None:
    """B1, B3: a value that is a whole record of the device, put into a slot, is a value; keys are any bytes."""
    engine = rig.engine
    await put(engine, b"victim", payload_of(1, 3000))
    row_id = engine._commit.published(engine._identity.digest(1, b"victim"))[0]  # type: ignore[index]
    record = rig.device.image.read(engine._index.table.slot_offset(row_id), 4096)
    keys = [b"\0", b"\xff" * KEY_MAX_BYTES, b"a/b?c#d", b"\r\n"]
    for key in keys:
        await put(engine, key, record)
    for key in keys:
        assert await get(engine, key) == record
    assert await get(engine, b"victim") == payload_of(1, 3000)


async def test_refusals_before_anything_is_reserved(rig: Rig) -> None:
    engine = rig.engine
    top = engine.status().capacity.max_value_bytes
    for key in (b"", b"x" * (KEY_MAX_BYTES + 1)):
        with pytest.raises(KeyInvalid):
            await engine.begin_put("n", key, 1)
    for namespace in ("", "a b", "x" * 129, "ä"):
        with pytest.raises(NamespaceInvalid):
            await engine.begin_put(namespace, b"key", 1)
    with pytest.raises(ValueTooLarge):
        await engine.begin_put("n", b"key", top + 4096)
    with pytest.raises(MetadataInvalid):
        await engine.begin_put("n", b"key", 1, metadata=(("a", "x" * 9000),))
    assert engine.counters.puts["refused"] == 8
    rejections = {reason: count for reason, count in engine.counters.put_rejections.items() if count}
    assert rejections == {"key_invalid": 2, "namespace_invalid": 4, "value_too_large": 1, "metadata_invalid": 1}
    assert engine.status().capacity.slots.in_flight == 0


async def test_a_put_that_is_longer_or_shorter_than_declared(rig: Rig) -> None:
    engine = rig.engine
    session = await engine.begin_put("n", b"key", 10)
    await session.write(b"12345")
    with pytest.raises(LengthMismatch):
        await session.write(b"678901")
    with pytest.raises(LengthMismatch):
        await session.commit()
    session.abort()
    session.abort()
    assert await peek(engine, b"key") is None


async def test_d3_aborted_puts_leak_nothing_at_any_stage(rig: Rig) -> None:
    engine, device = rig.engine, rig.device
    value = payload_of(1, 1_050_000)
    await put(engine, b"key", b"kept")
    free = engine.status().capacity.slots

    async def ends(stage: str) -> None:
        session = await engine.begin_put("n", b"key", len(value))
        if stage != "begun":
            await session.write(value[: len(value) // 2 if stage == "half" else len(value)])
        if stage == "cancelled":
            device.hold = lambda kind, offset, size: kind is OpKind.WRITE
            commit = asyncio.create_task(session.commit())
            await until(lambda: bool(device.held))
            commit.cancel()
            session.abort()
            await turns()
            assert engine.status().capacity.slots.in_flight == 1, "the device still writes to the slot"
            device.release_all()
            await asyncio.wait([commit])
        session.abort()
        await turns()

    for stage in ("begun", "half", "whole", "cancelled"):
        await ends(stage)
        slots = engine.status().capacity.slots
        assert slots.in_flight == 0, stage
        assert engine._arena.used_bytes == 0, stage
        assert slots.live == free.live
        check_accounts(engine)
    assert await get(engine, b"key") == b"kept"


async def test_expiry_by_the_clock_given(rig: Rig) -> None:
    engine, clock = rig.engine, rig.clock
    now = int(clock())
    await put(engine, b"soon", b"1", expires_at=now + 10)
    await put(engine, b"later", b"2", expires_at=now + 20)
    await put(engine, b"never", b"3")
    clock.advance(9)
    assert await get(engine, b"soon") == b"1"
    clock.advance(1)
    assert await peek(engine, b"soon") is None
    assert engine.counters.lookups["expired"] == 1
    await put(engine, b"soon", b"4", conditions=ABSENT)
    clock.advance(10)
    await engine.expire()
    assert engine.counters.evictions["expired"] == 2
    assert await peek(engine, b"later") is None
    assert await get(engine, b"never") == b"3"
    assert engine.status().capacity.slots.live == 2
    await put(engine, b"restart", b"5", expires_at=int(clock()) + 5)
    clock.advance(6)
    engine = await rig.reopen()
    assert await peek(engine, b"restart") is None
    assert engine.status().recovery.expired == 1


async def test_d3_conditions(rig: Rig) -> None:
    engine = rig.engine
    with pytest.raises(PreconditionFailed):
        await put(engine, b"key", b"1", conditions=PRESENT)
    first = await put(engine, b"key", b"1", conditions=ABSENT)
    with pytest.raises(PreconditionFailed) as refused:
        await put(engine, b"key", b"2", conditions=ABSENT)
    assert refused.value.present_write_id == first.write_id
    with pytest.raises(PreconditionFailed):
        await put(engine, b"key", b"2", conditions=Conditions(write_ids=frozenset({first.write_id + 1})))
    second = await put(engine, b"key", b"2", conditions=Conditions(write_ids=frozenset({first.write_id})))
    with pytest.raises(PreconditionFailed):
        await engine.delete("n", b"key", conditions=Conditions(write_ids=frozenset({first.write_id})))
    assert await get(engine, b"key") == b"2"
    assert await engine.delete("n", b"key", conditions=PRESENT) == second.write_id


async def test_d3_of_many_puts_if_absent_at_once_exactly_one_wins(rig: Rig) -> None:
    engine = rig.engine
    values = [payload_of(n, 100 + n) for n in range(40)]
    results = await asyncio.gather(
        *(put(engine, b"key", value, conditions=ABSENT) for value in values), return_exceptions=True
    )
    won = [n for n, result in enumerate(results) if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert sum(isinstance(result, PreconditionFailed) for result in results) == 39
    assert await get(engine, b"key") == values[won[0]]


async def test_namespaces_are_apart(rig: Rig) -> None:
    """A2: usage per namespace is exact; the same key in two namespaces is two entries."""
    engine = rig.engine
    await asyncio.gather(*(put(engine, b"key", b"x" * n, namespace=f"space-{n % 5}") for n in range(50)))
    status = engine.status()
    assert {name: usage.entries for name, usage in status.namespaces.items()} == {f"space-{n}": 1 for n in range(5)}
    await engine.delete("space-3", b"key")
    assert engine.status().namespaces["space-3"].entries == 0
    assert engine.status().namespaces["space-3"].used_bytes == 0
    assert await peek(engine, b"key", namespace="space-3") is None
    assert await peek(engine, b"key", namespace="space-2") is not None


async def test_write_ids_never_repeat_over_restarts(rig: Rig) -> None:
    seen: set[int] = set()
    for life in range(6):
        for number in range(5):
            result = await put(rig.engine, b"key %d" % number, b"x")
            assert result.write_id not in seen
            seen.add(result.write_id)
        if life % 2:
            await rig.reopen()
        else:
            await rig.crash(rig.device.crash_image(power_loss=True))


async def test_r9_start_and_stop_change_nothing(rig: Rig) -> None:
    for number in range(30):
        await put(rig.engine, b"key %d" % number, payload_of(number, 100 * number))
    engine = await rig.reopen()
    first = engine.status()
    for _ in range(4):
        engine = await rig.reopen()
        status = engine.status()
        assert status.capacity == first.capacity
        assert status.namespaces == first.namespaces
        assert status.recovery.recovered_entries == 30
        assert engine.counters.checkpoints["success"] == 0
        check_accounts(engine)
    await rig.stop()
    await rig.stop()


class _MemoryWithoutHugePages(mmap.mmap):
    """As of a kernel that was built without transparent huge pages."""

    def madvise(self, option: int, *rest: int) -> None:
        if option == mmap.MADV_HUGEPAGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        super().madvise(option, *rest)


async def test_an_engine_starts_where_the_kernel_has_no_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", _MemoryWithoutHugePages)
    with short_journal():
        rig = Rig(formatted_image())
        engine = await rig.start()
        await put(engine, b"key", b"value")
        engine = await rig.reopen()
        assert await get(engine, b"key") == b"value"
        await rig.stop()


async def test_the_engine_on_a_real_file(tmp_path: Path) -> None:
    """Whole lives over a file and the real I/O engine."""
    path = str(tmp_path / "cache")
    format_device(path, size_bytes=64 * MIB, slab_bytes=MIB, allow_buffered=True)
    values = {b"key %d" % n: payload_of(n, n * n * 977 % 900_000) for n in range(24)}
    for life in range(3):
        device = open_device(path, write=True, allow_buffered=True)
        engine = Engine(device, replace(OPTIONS, background=True))
        await engine.start()
        try:
            for key, value in values.items():
                assert await peek(engine, key) == (value if life else None)
            await asyncio.gather(*(put(engine, key, value) for key, value in values.items()))
            for key, value in values.items():
                assert await get(engine, key) == value
            check_accounts(engine)
        finally:
            await engine.stop()
            device.close()


@pytest.mark.parametrize("metadata_bytes", [10, 3800, 3900, 4000, 8000])
async def test_b1_ranges_of_a_large_value_behind_a_header_of_any_size(rig: Rig, metadata_bytes: int) -> None:
    """A value read piece by piece may have a header of several blocks: the first piece comes with all of them."""
    engine = rig.engine
    path = engine._read_path
    path.whole_max_bytes, path._piece_chunks = 4 * CHUNK_BYTES, 3
    size = 10 * CHUNK_BYTES + 7
    value = payload_of(3, size)
    await put(engine, b"key", value, metadata=(("a", "m" * metadata_bytes),))
    piece = 3 * CHUNK_BYTES
    edges = [0, 1, CHUNK_BYTES, piece - 1, piece, piece + 1, 2 * piece, size - 1, size]
    for start in edges:
        for stop in [edge for edge in edges if edge >= start]:
            assert await get(engine, b"key", start=start, stop=stop) == value[start:stop]
    reader = await engine.open_read("n", b"key", sparse=True)
    assert b"".join([bytes(part) async for part in reader.pieces(5, size - 5)]) == value[5:-5]
    reader.close()
    assert engine.status().capacity.slots.quarantined == 0
