"""The key map against a dict: probing, removal with its backward shift, and the build as arrays."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage.format.geometry import plan
from storage.format.row import SlotState
from storage.key_map import KeyMap, SortedKeys, keys_of, orders_of, same_start, sorted_keys
from storage.slot_table import SlotTable

GEOMETRY = plan(32 << 20)
BUCKETS = 1024
NOWHERE = 119
"""A row id that is never in the map."""
HOMES = st.sampled_from([0, 1, 2, 3, 1020, 1021, 1022, 1023])
"""Few homes at both ends of the table: long probes, and probes that run over the end."""


def digest_of(home: int, number: int) -> bytes:
    return (home << 22 | number).to_bytes(4, "big") + bytes(12)


def keys_at(table: SlotTable, row_ids: list[int]) -> SortedKeys:
    at = np.array(row_ids, dtype=np.int64)
    return np.sort(keys_of(table.lines["digest"][at], at))


class KeyMapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(GEOMETRY)
        self.map = KeyMap(self.table, BUCKETS)
        self.model: dict[bytes, int] = {}
        self.numbers = 0
        self.free = [row_id for row_id in range(1, NOWHERE) if row_id % 64]

    def teardown(self) -> None:
        self.table.close()

    @precondition(lambda self: self.free)
    @rule(home=HOMES, data=st.data())
    def insert(self, home: int, data: st.DataObject) -> None:
        self.numbers += 1
        digest = digest_of(home, self.numbers)
        row_id = self.free.pop(data.draw(st.integers(0, len(self.free) - 1)))
        self.table.lines["digest"][row_id] = np.void(digest)
        self.map.insert(digest, row_id)
        self.model[digest] = row_id

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.model)))
        row_id = self.model.pop(digest)
        self.map.remove(digest, row_id)
        self.free.append(row_id)
        assert self.map.find(digest) == 0

    @rule(home=HOMES)
    def absent(self, home: int) -> None:
        digest = digest_of(home, 4_000_000)
        assert self.map.find(digest) == 0
        with pytest.raises(KeyError):
            self.map.remove(digest, NOWHERE)

    @rule()
    def rebuild(self) -> None:
        self.map = KeyMap(self.table, BUCKETS)
        self.map.build(keys_at(self.table, list(self.model.values())))

    @invariant()
    def finds_what_the_model_holds(self) -> None:
        assert self.map.entries == len(self.model)
        for digest, row_id in self.model.items():
            assert self.map.find(digest) == row_id


TestKeyMap = KeyMapMachine.TestCase
TestKeyMap.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


def test_a_build_equals_inserts() -> None:
    table = SlotTable(plan(64 << 20))
    row_ids = np.array([r for r in range(1, 6000) if r % 64], dtype=np.int64)
    digests = np.random.default_rng(3).integers(0, 256, (len(row_ids), 16), dtype=np.uint8)
    digests[::3, :2] = 0xFF  # a third of them crowds the last buckets
    table.lines["digest"][row_ids] = digests.view("V16").reshape(-1)
    size = len(row_ids) * 3 // 2
    built, inserted = KeyMap(table, size), KeyMap(table, size)
    built.build(keys_at(table, row_ids.tolist()))
    for row_id, digest in zip(row_ids.tolist(), digests, strict=True):
        inserted.insert(digest.tobytes(), row_id)
    assert built.entries == inserted.entries == len(row_ids)
    for row_id, digest in zip(row_ids.tolist(), digests, strict=True):
        assert built.find(digest.tobytes()) == inserted.find(digest.tobytes()) == row_id
    for row_id, digest in zip(row_ids[::2].tolist(), digests[::2], strict=True):
        built.remove(digest.tobytes(), row_id)
    for position, (row_id, digest) in enumerate(zip(row_ids.tolist(), digests, strict=True)):
        assert built.find(digest.tobytes()) == (row_id if position % 2 else 0)
    table.close()


def test_an_empty_build() -> None:
    table = SlotTable(GEOMETRY)
    built = KeyMap(table, BUCKETS)
    built.build(keys_at(table, []))
    assert built.entries == 0
    assert built.find(bytes(16)) == 0
    table.close()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 1 << 32, 1 << 96, 1 << 127, 3 << 126]) | st.integers(0, (1 << 128) - 1)), st.data()
)
def test_sorted_keys_and_same_starts_are_what_digests_say(numbers: list[int], data: st.DataObject) -> None:
    table = SlotTable(GEOMETRY)
    row_ids = table.give_slab(1, 0, 1, 1, 0)[: len(numbers)].tolist()
    digests = {row_id: number.to_bytes(16, "big") for row_id, number in zip(row_ids, numbers, strict=False)}
    for row_id, digest in digests.items():
        table.lines["digest"][row_id] = np.void(digest)
        table.lines["state"][row_id] = SlotState.LIVE
    dead = data.draw(st.sets(st.sampled_from(row_ids)) if row_ids else st.just(set()))
    table.lines["state"][list(dead)] = SlotState.FREE
    live = [row_id for row_id in row_ids if row_id not in dead]
    keys = sorted_keys(table)
    assert keys.tolist() == sorted(int.from_bytes(digests[r][:4], "big") << 32 | r for r in live)
    starts = [digests[r][:4] for r in live]
    with mock.patch("storage.key_map.BUILD_STEP", 3):
        assert same_start(keys).tolist() == [r for r in live if starts.count(digests[r][:4]) > 1]
    columns = orders_of(np.array([digests[r] for r in live], dtype="V16"))
    order = np.lexsort(columns[::-1]).tolist()
    assert [digests[live[i]] for i in order] == sorted(digests[r] for r in live)
    table.close()
