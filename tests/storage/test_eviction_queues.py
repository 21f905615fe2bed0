"""The queues of eviction: no live row is lost from them or stands in two places, whatever happens to it."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from storage.eviction.clock import Clock
from storage.eviction.fingerprints import BUCKET, BYTES_PER_KEY, Fingerprints
from storage.eviction.interface import ACCESS_MAX, CALLS_MAX, FRUITLESS_MAX, MAIN, READS, STEPS_MAX
from storage.eviction.queued import QueuedEviction
from storage.eviction.queues import LINK_BYTES, Queues
from storage.eviction.s3fifo import S3Fifo
from storage.eviction.weights import Weights
from storage.format.row import FreeReason, SlotState
from storage.namespace_settings import NamespaceSettings
from storage.namespaces import Namespace, Namespaces
from storage.slot_table import SlotTable
from tests.support.engines import geometry_of, short_journal

POLICIES: list[type[QueuedEviction]] = [Clock, S3Fifo]
CLASSES = 3


def test_queues_are_what_deques_are() -> None:
    random_numbers = random.Random(1)
    queues, model = Queues(200, 3), [deque[int]() for _ in range(3)]
    for _ in range(20_000):
        row_id, queue = random_numbers.randrange(1, 200), random_numbers.randrange(3)
        place = next((n for n, rows in enumerate(model) if row_id in rows), None)
        if place is None:
            queues.append(queue, row_id)
            model[queue].append(row_id)
        elif random_numbers.random() < 0.5:
            queues.remove(place, row_id)
            model[place].remove(row_id)
        else:
            queues.move_to_end(place, row_id)
            model[place].remove(row_id)
            model[place].append(row_id)
    assert [list(queues.rows(n)) for n in range(3)] == [list(rows) for rows in model]
    assert queues.lengths == [len(rows) for rows in model]


def test_a_row_in_no_queue_can_not_be_removed() -> None:
    queues = Queues(10, 1)
    queues.fill(0, np.array([3, 5], dtype=np.uint64))
    queues.remove(0, 3)
    with pytest.raises(AssertionError, match="no queue"):
        queues.remove(0, 3)
    assert list(queues.rows(0)) == [5]


@dataclass
class World:
    """A slot table of three classes, and what the engine would tell a policy of it."""

    kind: type[QueuedEviction]
    namespaces: Namespaces = field(default_factory=Namespaces)
    free: list[list[int]] = field(default_factory=list)
    seq: int = 0

    def __post_init__(self) -> None:
        with short_journal():
            self.table = SlotTable(geometry_of(CLASSES + 1))
        for slab in range(CLASSES):
            row_ids = self.table.give_slab(slab, slab, 1, self.draw(), 0)
            self.free.append(row_ids.tolist())
        self.policy = self.fresh()

    def draw(self) -> int:
        self.seq += 1
        return self.seq

    def fresh(self) -> QueuedEviction:
        """The policy of a process that starts over this table."""
        policy = self.kind(self.table, Weights(self.namespaces))
        policy.load()
        return policy

    def store(self, slot_class: int, digest: bytes, namespace_id: int = 1) -> int:
        row_id = self.free[slot_class].pop()
        line = self.table.lines[row_id]
        line["state"], line["access"], line["digest"] = SlotState.LIVE, 0, digest
        line["namespace_id"], line["seq"] = namespace_id, self.draw()
        self.policy.on_store(row_id, self.table.row(row_id))
        return row_id

    def remove(self, row_id: int, reason: FreeReason | None = FreeReason.CLIENT) -> int:
        row = self.table.row(row_id)
        self.policy.on_free(row_id, row, reason)
        self.table.lines[row_id]["state"] = SlotState.FREE
        self.table.lines[row_id]["access"] = 0
        self.free[row.slot_class].append(row_id)
        return row.slot_class

    def live(self) -> list[int]:
        row_ids = self.table.row_ids()
        live: list[int] = row_ids[self.table.lines["state"][row_ids] == SlotState.LIVE].tolist()
        return live

    def check(self) -> None:
        """Each live row is in exactly one queue, the one of its class that its access byte names; no other row is."""
        seen: list[int] = []
        for queue, length in enumerate(self.policy.queues.lengths):
            rows = list(self.policy.queues.rows(queue))
            assert len(rows) == length
            for row_id in rows:
                row = self.table.row(row_id)
                assert self.policy.queue_of(row.slot_class, row.access) == queue
            seen += rows
        assert sorted(seen) == self.live()


def digest_of(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


@pytest.mark.parametrize("kind", POLICIES)
def test_every_live_row_is_in_exactly_one_queue(kind: type[QueuedEviction]) -> None:
    """Random lives: stored, read, replaced, deleted, set aside, evicted, held; restarts between."""
    random_numbers = random.Random(2)
    world = World(kind)
    held: set[int] = set()
    for step in range(6000):
        slot_class, dice = random_numbers.randrange(CLASSES), random_numbers.random()
        live = world.live() if dice > 0.45 else []
        if dice <= 0.45 and world.free[slot_class]:
            world.store(slot_class, digest_of(random_numbers.randrange(3000)))
        elif dice < 0.7 and live:
            world.table.touch(random_numbers.choice(live), ACCESS_MAX)
        elif dice < 0.8 and live:
            row_id = random_numbers.choice(live)
            held.discard(row_id)
            before = world.table.row(row_id)
            world.remove(row_id, FreeReason.REPLACED)
            again = world.table.row(world.store(before.slot_class, before.digest))
            assert again.access == before.access, "what is known of a key outlives its replacement"
        elif dice < 0.85 and live:
            row_id = random_numbers.choice(live)
            held.discard(row_id)
            world.remove(row_id, random_numbers.choice([FreeReason.CLIENT, FreeReason.EXPIRED, None]))
        elif dice < 0.88 and live:
            held.add(random_numbers.choice(live))
        elif dice < 0.995:
            victims = world.policy.victims(slot_class, random_numbers.randrange(1, 9), lambda r: r not in held)
            assert len(victims) == len(set(victims)) and not held & set(victims)
            for row_id in victims[: random_numbers.randrange(9)]:  # not all are freed: the journal may fail
                assert world.remove(row_id, FreeReason.EVICTED) == slot_class
        else:
            lengths = list(world.policy.queues.lengths)
            world.policy = world.fresh()
            assert world.policy.queues.lengths == lengths
        if step % 50 == 0:
            world.check()
    world.check()


@pytest.mark.parametrize("kind", POLICIES)
def test_a_class_can_be_evicted_to_the_last_entry(kind: type[QueuedEviction]) -> None:
    world = World(kind)
    for number in range(40):
        world.table.touch(world.store(0, digest_of(number)), ACCESS_MAX)
    gone = 0
    for _ in range(40 * CALLS_MAX):
        for row_id in world.policy.victims(0, 7, lambda _: True):
            world.remove(row_id, FreeReason.EVICTED)
            gone += 1
        if not world.policy.length(0):
            break
    assert gone == 40
    assert world.policy.victims(0, 1, lambda _: True) == []


@pytest.mark.parametrize("kind", POLICIES)
def test_the_work_of_one_call_is_bounded(kind: type[QueuedEviction]) -> None:
    """Where all entries were read, or all are held, a call ends after so many of them; and room is made in the end."""
    world = World(kind)
    for number in range(200):
        row_id = world.store(0, digest_of(number))
        world.table.set_access(row_id, MAIN * (kind is S3Fifo) | 3)
    world.policy = world.fresh()
    asked = 0

    def never(_: int) -> bool:
        nonlocal asked
        asked += 1
        return False

    for _ in range(CALLS_MAX):
        before = asked
        assert world.policy.victims(0, 5, never) == []
        assert asked - before <= 2 * STEPS_MAX
    for row_id in world.live():
        world.table.set_access(row_id, MAIN * (kind is S3Fifo) | 3)
    world.policy._fruitless[0] = FRUITLESS_MAX
    assert len(world.policy.victims(0, 5, lambda _: True)) == 5, "all are alike: the first ones go, read or not"
    world.check()


@pytest.mark.parametrize("kind", POLICIES)
def test_after_a_start_the_oldest_stand_in_front(kind: type[QueuedEviction]) -> None:
    world = World(kind)
    rows = [world.store(0, digest_of(number)) for number in range(50)]
    world.remove(rows[10])
    rows[10] = world.store(0, digest_of(10))  # written last
    for row_id in rows:
        world.table.set_access(row_id, 0)
    world.policy = world.fresh()
    assert list(world.policy.queues.rows(0)) == rows[:10] + rows[11:] + [rows[10]]


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("highest", [1 << 20, 1 << 62])
def test_a_start_orders_each_queue_by_seq(kind: type[QueuedEviction], highest: int) -> None:
    """Whatever the seqs; rows that are too old to be told apart stand in front, in the order of the table."""
    world = World(kind)
    rows = [world.store(int(number % 10 == 0), digest_of(number)) for number in range(120)]
    draw = np.random.default_rng(7)
    seqs = draw.integers(1, highest, len(rows)).tolist()
    for row_id, seq, access in zip(rows, seqs, draw.integers(0, 256, len(rows)).tolist(), strict=True):
        world.table.lines[row_id]["seq"] = seq
        world.table.set_access(row_id, access)
    world.table.refresh_page_seqs()
    world.policy = world.fresh()
    world.check()
    oldest = max(0, max(seqs) - (1 << 64 - len(world.table.lines).bit_length()) + 1)
    for queue in range(len(world.policy.queues.lengths)):
        found = list(world.policy.queues.rows(queue))
        assert found == sorted(found, key=lambda r: (max(oldest, int(world.table.lines["seq"][r])), r))
    assert all(world.table.lines["access"][rows] & ~np.uint8(7) == 0)


def test_s3fifo_keeps_what_was_read_twice_and_remembers_what_went() -> None:
    world = World(S3Fifo)
    rows = [world.store(0, digest_of(number)) for number in range(100)]
    for row_id in rows:
        world.table.set_access(row_id, 0)  # as if all were new
    world.policy = world.fresh()
    for row_id in rows[:3]:
        world.table.touch(row_id, ACCESS_MAX)
        world.table.touch(row_id, ACCESS_MAX)
    world.table.touch(rows[3], ACCESS_MAX)
    victims = world.policy.victims(0, 5, lambda _: True)
    assert victims == rows[3:8], "read once is not enough; those read twice moved on"
    assert all(world.table.row(row_id).access == MAIN for row_id in rows[:3])
    for row_id in victims:
        world.remove(row_id, FreeReason.EVICTED)
    assert world.policy.was_evicted(digest_of(3)) and not world.policy.was_evicted(digest_of(0))
    back = world.table.row(world.store(0, digest_of(3)))
    fresh = world.table.row(world.store(0, digest_of(1000)))
    assert (back.access & MAIN, fresh.access & MAIN) == (MAIN, 0)
    assert world.policy.returned(0) == 1
    assert not world.policy.was_evicted(digest_of(3))


@pytest.mark.parametrize("kind", POLICIES)
def test_an_entry_of_twice_the_weight_ages_half_as_fast(kind: type[QueuedEviction]) -> None:
    world = World(kind)
    for namespace_id, percent in ((1, 50), (2, 100)):
        settings = NamespaceSettings(eviction_weight_percent=percent)
        world.namespaces.add(Namespace(namespace_id, f"n{namespace_id}", settings))
        world.namespaces.by_id[namespace_id].slots = {0: 100}
    evicted, present = {1: 0, 2: 0}, {1: 0, 2: 0}
    number = live = 0
    while number < 6000:
        while live < 200:
            world.store(0, digest_of(number), 1 + number % 2)
            number += 1
            live += 1
        for row_id in world.policy.victims(0, 4, lambda _: True):
            evicted[world.table.namespace_of(row_id)] += number > 1000
            world.remove(row_id, FreeReason.EVICTED)
            live -= 1
        for row_id in world.policy.queues.rows(0):  # of s3fifo the small queue: nothing is read, nothing else moves
            present[world.table.namespace_of(row_id)] += number > 1000
    # Both come at the same rate, so both go at the same rate: those that stay twice as long are twice as many.
    assert evicted[1] == pytest.approx(evicted[2], rel=0.05)
    assert present[2] == pytest.approx(2 * present[1], rel=0.1)
    world.check()


def test_weights_that_are_alike_change_nothing() -> None:
    namespaces = Namespaces()
    for namespace_id in (1, 2):
        settings = NamespaceSettings(eviction_weight_percent=300)
        namespaces.add(Namespace(namespace_id, f"n{namespace_id}", settings))
        namespaces.by_id[namespace_id].slots = {0: 5}
    weights = Weights(namespaces)
    assert weights.look(0) == {}
    assert all(weights.has_turn(1, {}) for _ in range(10))


def test_fingerprints_reach_back_as_far_as_the_window() -> None:
    seen = Fingerprints()
    seen.resize(5000)
    for number in range(20_000):
        seen.add(digest_of(number))
    assert sum(seen.knows(digest_of(n)) for n in range(15_500, 20_000)) >= 0.95 * 4500
    assert sum(seen.knows(digest_of(n)) for n in range(14_900)) <= 5
    assert sum(seen.knows(digest_of(n)) for n in range(50_000, 60_000)) <= 10
    assert seen.forget(digest_of(19_999)) and not seen.knows(digest_of(19_999))
    assert not seen.forget(digest_of(19_999))


def test_fingerprints_outlive_growth() -> None:
    seen = Fingerprints()
    seen.resize(700)
    for number in range(700):
        seen.add(digest_of(number))
    known = sum(seen.knows(digest_of(n)) for n in range(700))
    seen.resize(40_000)
    assert sum(seen.knows(digest_of(n)) for n in range(700)) == known >= 650
    for number in range(700, 30_000):
        seen.add(digest_of(number))
    assert sum(seen.knows(digest_of(n)) for n in range(700, 30_000)) >= 0.95 * 29_300


def test_memory_per_entry_is_a_few_bytes() -> None:
    """8 bytes of links a row, and at most 11 of fingerprints a key remembered (a power of two, three quarters full)."""
    queues = Queues(100_000, 2)
    assert len(queues._memory) / 100_000 == pytest.approx(LINK_BYTES, rel=0.001)
    seen = Fingerprints()
    for window in (10_000, 98_000, 100_000, 1_000_000):
        seen.resize(window)
        assert BYTES_PER_KEY <= seen.memory_bytes / window <= 11
    assert seen.memory_bytes % (BUCKET * BYTES_PER_KEY) == 0


def test_a_counter_of_reads_leaves_the_other_bits_alone() -> None:
    world = World(S3Fifo)
    row_id = world.store(0, digest_of(1))
    world.table.set_access(row_id, MAIN)
    for _ in range(10):
        world.table.touch(row_id, ACCESS_MAX)
    assert world.table.row(row_id).access == MAIN | ACCESS_MAX
    assert ACCESS_MAX & READS == ACCESS_MAX
