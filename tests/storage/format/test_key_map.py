"""The key map against a dict: probing, removal with its backward shift, and the build as arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage.format.geometry import plan
from storage.key_map import KeyMap
from storage.slot_table import SlotTable

GEOMETRY = plan(32 << 20)
ENTRIES = 8
"""The map then has its smallest size, 1024 buckets."""
BUCKETS = 1024
NOWHERE = 119
"""A row id that is never in the map."""
HOMES = st.sampled_from([0, 1, 2, 3, 1020, 1021, 1022, 1023])
"""Few homes at both ends of the table: long probes, and probes that run over the end."""


def digest_of(home: int, number: int) -> bytes:
    return (home + BUCKETS * number).to_bytes(16, "little")


class KeyMapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(GEOMETRY)
        self.map = KeyMap(self.table, ENTRIES)
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
        digest = digest_of(home, 10_000_000)
        assert self.map.find(digest) == 0
        with pytest.raises(KeyError):
            self.map.remove(digest, NOWHERE)

    @rule()
    def rebuild(self) -> None:
        self.map = KeyMap(self.table, ENTRIES)
        self.map.build(np.array(sorted(self.model.values()), dtype=np.int64))

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
    built, inserted = KeyMap(table, len(row_ids)), KeyMap(table, len(row_ids))
    built.build(row_ids)
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
    built = KeyMap(table, ENTRIES)
    built.build(np.empty(0, dtype=np.int64))
    assert built.entries == 0
    assert built.find(bytes(16)) == 0
    table.close()
