"""Eviction in the running engine: restarts, classes whose values change in size, and what a full device takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from storage.errors import NotAdmitted, WriteBudgetSpent
from storage.eviction.admission import Admission
from storage.eviction.class_balance import ClassBalance
from storage.eviction.interface import MAIN, READS
from storage.eviction.none import NoEviction
from storage.eviction.queued import QueuedEviction
from storage.format.row import SlotState
from storage.namespace_settings import NamespaceSettings
from storage.options import AdmissionPolicy, EvictionPolicy
from tests.support.engines import OPTIONS, SLAB_BYTES, Rig, check_accounts, formatted_image, get, payload_of, peek, put

CLOCK = replace(OPTIONS, eviction=EvictionPolicy.CLOCK)
SMALL, LARGE = 3500, 100_000
LARGE_PER_SLAB = 9


def live_rows(rig: Rig) -> list[int]:
    table = rig.engine._index.table
    row_ids = table.row_ids()
    rows: list[int] = row_ids[table.lines["state"][row_ids] == SlotState.LIVE].tolist()
    return rows


def check_queues(rig: Rig) -> None:
    """Each live row is in the one queue that its class and access byte name."""
    eviction = rig.engine._index.eviction
    assert isinstance(eviction, QueuedEviction)
    table = rig.engine._index.table
    seen = []
    for queue, length in enumerate(eviction.queues.lengths):
        rows = list(eviction.queues.rows(queue))
        assert len(rows) == length
        assert all(eviction.queue_of(table.row(r).slot_class, table.row(r).access) == queue for r in rows)
        seen += rows
    assert sorted(seen) == live_rows(rig)


def room_of(rig: Rig) -> int:
    geometry = rig.engine._index.geometry
    return geometry.slabs * geometry.slots_per_slab(0)


async def fill(rig: Rig, first: int, count: int, size: int = 700) -> None:
    for begin in range(first, first + count, 32):
        numbers = range(begin, min(begin + 32, first + count))
        await asyncio.gather(*(put(rig.engine, b"fill %d" % n, payload_of(n, size)) for n in numbers))


@pytest.mark.parametrize("policy", [EvictionPolicy.CLOCK, EvictionPolicy.S3FIFO])
async def test_recency_outlives_a_restart(rig: Rig, policy: EvictionPolicy) -> None:
    """What was read before the checkpoint is kept after it, in either way to end a process."""
    options = replace(OPTIONS, eviction=policy)
    await rig.reopen(options=options)
    room = room_of(rig)
    await fill(rig, 0, room)
    for _ in range(3):
        for number in range(60):
            await get(rig.engine, b"fill %d" % number)
    access = {r: rig.engine._index.table.row(r).access & READS for r in live_rows(rig)}
    await rig.engine.checkpoint()
    check_queues(rig)
    await rig.crash()
    check_queues(rig)
    assert {r: rig.engine._index.table.row(r).access & READS for r in live_rows(rig)} == access
    await fill(rig, room, room // 2)
    kept = [n for n in range(60) if await peek(rig.engine, b"fill %d" % n) is not None]
    assert len(kept) == 60
    check_queues(rig)


async def test_what_the_journal_alone_knows_starts_unread(rig: Rig) -> None:
    """After a crash entries newer than the checkpoint are there, unread and unproven: recency is kept coarsely."""
    await put(rig.engine, b"old", b"1")
    await get(rig.engine, b"old")
    await rig.engine.checkpoint()
    await put(rig.engine, b"new", b"2")
    await get(rig.engine, b"new")
    await rig.crash()
    table = rig.engine._index.table
    find = rig.engine._commit.published
    digest = rig.engine._identity.digest
    old, new = (find(digest(1, key)) for key in (b"old", b"new"))
    assert old is not None and new is not None
    assert table.row(old[0]).access & READS == 1
    assert table.row(new[0]).access & (READS | MAIN) == 0
    check_queues(rig)


async def test_a_policy_can_be_changed_between_two_starts(rig: Rig) -> None:
    room = room_of(rig)
    for policy in (EvictionPolicy.S3FIFO, EvictionPolicy.CLOCK, EvictionPolicy.S3FIFO, EvictionPolicy.NONE):
        await rig.reopen(options=replace(OPTIONS, eviction=policy))
        if policy is not EvictionPolicy.NONE:
            await fill(rig, 0, room + 200)
            check_queues(rig)
        else:
            assert isinstance(rig.engine._index.eviction, NoEviction)
    check_accounts(rig.engine)


async def requests(rig: Rig, keys: list[tuple[int, int]]) -> list[float]:
    """A get, and on a miss a put, for keys of two sizes: the hit ratios of the small and of the large ones."""
    hits, count = [0, 0], [0, 0]
    for kind, number in keys:
        key = b"%d %d" % (kind, number)
        count[kind] += 1
        if await peek(rig.engine, key) is not None:
            hits[kind] += 1
        else:
            await put(rig.engine, key, payload_of(number, LARGE if kind else SMALL))
    return [h / max(1, n) for h, n in zip(hits, count, strict=True)]


def slabs(rig: Rig) -> tuple[int, int]:
    index = rig.engine._index
    of_class, class_for = index.slots.slabs_of_class, index.geometry.class_for
    return of_class[class_for(SMALL + 256)], of_class[class_for(LARGE + 1024)]


@pytest.mark.parametrize("policy", [EvictionPolicy.CLOCK, EvictionPolicy.S3FIFO])
async def test_a_workload_whose_sizes_change_gets_the_slabs_it_needs(policy: EvictionPolicy) -> None:
    """Full of small values, then large ones, then both: no put is refused, space follows, and slabs come to rest."""
    rng = np.random.default_rng(3)
    rig = Rig(formatted_image(12, journal_blocks=4096), options=replace(OPTIONS, eviction=policy))
    await rig.start()
    small = [(0, int(k)) for k in rng.zipf(1.3, 1000) % 4000]
    await requests(rig, small + [(0, n) for n in range(3200)])
    assert slabs(rig) == (12, 0)
    await requests(rig, [(1, int(k)) for k in rng.integers(0, 90, 600)])
    assert slabs(rig)[1] >= 90 // LARGE_PER_SLAB, "the large values have what they use"
    hits = await requests(rig, [(1, int(k)) for k in rng.integers(0, 90, 300)])
    assert hits[1] > 0.95
    both = [(int(n < 0.3), int(n * 1e6) % (50 if n < 0.3 else 600)) for n in rng.random(4000)]
    await requests(rig, both)
    taken, at_rest = rig.engine.counters.slabs_taken, slabs(rig)
    hits = await requests(rig, both[:2000])
    assert min(hits) > 0.9
    assert rig.engine.counters.slabs_taken - taken <= 1, f"slabs go to and fro: {at_rest} {slabs(rig)}"
    check_accounts(rig.engine)
    check_queues(rig)
    await rig.stop()


class Returned(NoEviction):
    def __init__(self, *counts: int) -> None:
        self.counts = counts

    def returned(self, slot_class: int) -> int:
        return self.counts[slot_class]


def balance(hits: tuple[int, ...], stored: tuple[int, ...]) -> ClassBalance:
    made = ClassBalance((4096, 65536), 64 * SLAB_BYTES, (256, 16))
    made.hits[:], made.stored[:] = hits, stored
    return made


def test_an_idle_class_gives_its_last_slab_too_a_busy_one_does_not() -> None:
    assert balance((0, 10), (0, 100)).may_take(1, (1, 4), Returned(0, 0)) == [0]
    assert balance((1, 10), (1, 100)).may_take(1, (1, 4), Returned(0, 0)) == []
    assert balance((1, 10), (1, 100)).may_take(1, (2, 4), Returned(0, 0)) == [0]


def test_values_that_are_read_give_nothing_to_a_scan() -> None:
    assert balance((1000, 0), (10, 5000)).may_take(1, (4, 4), Returned(0, 0)) == []


def test_values_that_come_back_too_late_are_worth_a_slab() -> None:
    assert balance((1000, 0), (10, 5000)).may_take(1, (4, 4), Returned(0, 4000)) == [0]


def test_a_scan_gives_to_values_that_are_read() -> None:
    assert balance((1000, 0), (900, 40)).may_take(0, (4, 12), Returned(0, 0)) == [1]


def test_no_two_classes_take_from_one_another() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20_000):
        numbers = [int(n) for n in rng.integers(0, 10 ** rng.integers(1, 6), 6)]
        owned = (int(rng.integers(2, 30)), int(rng.integers(2, 30)))
        made = balance((numbers[0], numbers[1]), (numbers[2], numbers[3]))
        returned = Returned(numbers[4], numbers[5])
        assert not (made.may_take(0, owned, returned) and made.may_take(1, owned, returned)), (numbers, owned)


def test_what_lies_back_counts_less_and_less() -> None:
    made = balance((1000, 0), (1000, 0))
    assert made.givers((2, 2)) == [1, 0]
    for _ in range(14):
        made.hits[1] += 2000
        made.end_window(NoEviction(), 100)
    assert made.givers((2, 2)) == [0, 1]
    made.stored[1] += 100
    assert made.may_take(1, (1, 4), Returned(0, 0)) == [0], "idle by now"


async def test_second_put_is_admitted_where_the_first_would_cost_an_entry(rig: Rig) -> None:
    await rig.reopen(options=replace(OPTIONS, admission=AdmissionPolicy.SECOND_PUT))
    engine, room = rig.engine, room_of(rig)
    for number in range(room):
        await put(engine, b"first %d" % number, payload_of(number, 700))
    assert engine.counters.put_rejections["not_admitted"] == 0, "nothing is refused while slots are free"
    with pytest.raises(NotAdmitted) as refused:
        await put(engine, b"new", b"1")
    assert (refused.value.http_status, refused.value.code) == (507, "not_admitted")
    assert await peek(engine, b"new") is None
    await put(engine, b"new", b"1")
    assert await get(engine, b"new") == b"1"
    await put(engine, b"new", b"2")  # replacing costs nothing
    with pytest.raises(NotAdmitted):
        await put(engine, b"other", b"1")
    assert engine.counters.put_rejections["not_admitted"] == 2
    assert engine.counters.puts["refused"] == 2
    assert engine.counters.evictions["evicted"] < 10, "for one new key, and a few ahead of need"


def test_a_key_evicted_lately_is_admitted() -> None:
    class Remembers(NoEviction):
        def was_evicted(self, digest: bytes) -> bool:
            return digest == bytes(16)

    admission = Admission(AdmissionPolicy.SECOND_PUT, 0, Remembers(), lambda: 0.0)
    admission.judge(bytes(16), 1000)
    with pytest.raises(NotAdmitted):
        admission.judge(bytes(range(16)), 1000)


def test_the_write_budget_holds_in_the_long_run() -> None:
    """However large the puts and however often it is asked: what was written is the rate, and at most one put more."""
    now = 0.0
    admission = Admission(AdmissionPolicy.ALL, 1000, NoEviction(), lambda: now)
    written = refused = 0
    for _ in range(2000):
        now += 0.05
        try:
            admission.check_budget()
        except WriteBudgetSpent as error:
            assert (error.http_status, error.code) == (429, "write_budget")
            assert 1 <= error.retry_after_seconds <= 5
            refused += 1
        else:
            admission.spend(4000)
            written += 4000
    assert refused > 0
    assert 1000 * now <= written <= 1000 * now + 1000 + 4000


async def test_puts_above_the_write_budget_are_refused_before_their_body(rig: Rig) -> None:
    engine = await rig.reopen(options=replace(OPTIONS, write_budget_bytes_per_second=16 << 10))

    async def put_one_after_the_other() -> None:
        for number in range(100):
            await put(engine, b"fill %d" % number, payload_of(number, 3500))

    with pytest.raises(WriteBudgetSpent):
        await put_one_after_the_other()
    assert engine.counters.put_rejections["write_budget"] == 1
    assert 4 <= engine.counters.puts["created"] < 100
    assert await peek(engine, b"fill 0") is not None


async def test_without_settings_everything_is_admitted(rig: Rig) -> None:
    await rig.reopen(options=CLOCK)
    await fill(rig, 0, 2 * room_of(rig))
    assert rig.engine.counters.puts["refused"] == 0


async def test_a_namespace_of_twice_the_weight_keeps_twice_as_many_entries(rig: Rig) -> None:
    engine = await rig.reopen(options=CLOCK)
    for name, percent in (("light", 50), ("heavy", 100)):
        await engine.set_namespace(name, NamespaceSettings(eviction_weight_percent=percent))
    for number in range(0, 4 * room_of(rig), 16):
        names = ("light", "heavy")
        await asyncio.gather(*(put(engine, b"%d" % (number + n), b"v", namespace=names[n % 2]) for n in range(16)))
    usage = engine.status().namespaces
    assert usage["heavy"].entries == pytest.approx(2 * usage["light"].entries, rel=0.15)
    check_queues(rig)
