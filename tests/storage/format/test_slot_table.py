"""Row ids and places: one row id for each slot and one slot for each row id, whatever the block size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from storage.format.geometry import NO_CLASS, plan
from storage.format.row import SlotState, implausible_of, seed_of
from storage.slot_table import SlotTable
from tests.storage.format.bits import UUID

SEED = seed_of(UUID)


@pytest.fixture(params=[(4096, 4096), (4096, 12288), (8192, 8192), (16384, 16384), (65536, 65536)], ids=str)
def table(request: pytest.FixtureRequest) -> Iterator[SlotTable]:
    block_bytes, smallest = request.param
    made = SlotTable(plan(512 << 20, block_bytes=block_bytes, smallest_slot_bytes=smallest, slab_bytes=1 << 20))
    yield made
    made.close()


def test_every_slot_has_a_row_id_of_its_own(table: SlotTable) -> None:
    geometry = table.geometry
    lines = geometry.block_bytes // 64
    seen = set()
    for slab in (0, 1, geometry.slabs - 1):
        for slot in range(geometry.slots_per_slab_max):
            row_id = table.row_id(slab, slot)
            assert table.place_of(row_id) == (slab, slot)
            assert row_id % lines != 0, "line 0 of a page is its header"
            assert 0 < row_id < geometry.pages * lines
            assert table.page_of(row_id) == row_id // lines
            assert table.page_of(row_id) // geometry.pages_per_slab == slab
            seen.add(row_id)
    assert len(seen) == 3 * geometry.slots_per_slab_max


def test_row_ids_of_a_slab_are_its_slots_in_order(table: SlotTable) -> None:
    geometry = table.geometry
    assert len(table.row_ids()) == 0
    for slab, slot_class in ((2, 0), (1, len(geometry.class_bytes) - 1), (0, 1)):
        row_ids = table.give_slab(slab, slot_class, generation=9, seq=slab + 1, seed=SEED)
        slots = geometry.slots_per_slab(slot_class)
        assert row_ids.tolist() == [table.row_id(slab, slot) for slot in range(slots)]
        assert table.row_ids_of_slab(slab).tolist() == row_ids.tolist()
        for slot in (0, slots - 1):
            row_id = table.row_id(slab, slot)
            assert table.slot_offset(row_id) == geometry.slot_offset(slab, slot, slot_class)
            assert table.slot_bytes(row_id) == geometry.class_bytes[slot_class]
    assert table.row_ids().tolist() == sorted(table.row_ids().tolist())
    assert len(table.row_ids_of_slab(3)) == 0


def test_lines_of_slabs_hold_their_slots_and_no_other(table: SlotTable) -> None:
    geometry = table.geometry
    for slab, slot_class in ((2, 0), (1, len(geometry.class_bytes) - 1), (0, 1)):
        table.give_slab(slab, slot_class, generation=9, seq=slab + 1, seed=SEED)
    parts = list(table.slabs_lines())
    assert [(part.slab, part.slot_class) for part in parts] == [
        (slab, int(table.slab_class[slab])) for slab in (0, 1, 2)
    ]
    for part in parts:
        row_ids = table.row_ids_of_slab(part.slab).tolist()
        assert part.row_ids(np.ones(len(part.lines), dtype=bool)).tolist() == row_ids
        assert part.lines["slot"][part.are_slots].tolist() == list(range(len(row_ids)))
    chosen = table.row_ids()[::7]
    table.lines["state"][chosen] = SlotState.LIVE
    assert table.live_row_ids().tolist() == chosen.tolist()
    lines = geometry.block_bytes // 64
    pages = np.arange(3 * geometry.pages_per_slab)
    assert (np.flatnonzero(table.are_slots(pages)) + pages[0] * lines).tolist() == table.row_ids().tolist()


def test_a_slab_given_to_another_class_keeps_no_row(table: SlotTable) -> None:
    geometry = table.geometry
    table.give_slab(1, 0, generation=1, seq=5, seed=SEED)
    last = len(geometry.class_bytes) - 1
    table.give_slab(1, last, generation=2, seq=6, seed=SEED)
    assert (int(table.slab_class[1]), int(table.slab_generation[1]), int(table.slab_seq[1])) == (last, 2, 6)
    rows = table.lines[table.row_ids_of_slab(1)]
    assert not implausible_of(rows).any()
    assert (rows["state"] == SlotState.FREE).all()
    assert (rows["seq"] == 6).all()
    first = table.row_id(1, 0)
    lines = geometry.pages_per_slab * (geometry.block_bytes // 64)
    others = np.delete(table.lines[first - 1 : first - 1 + lines], rows["slot"] + 1)
    assert not others.view(np.uint8).any()


def test_page_seqs_are_the_highest_of_their_rows(table: SlotTable) -> None:
    row_ids = table.give_slab(0, 0, generation=1, seq=5, seed=SEED)
    raw = table.raw(int(row_ids[-1]))
    table.set_row(int(row_ids[-1]), raw, 77)
    assert int(table.page_seq[table.page_of(int(row_ids[-1]))]) == 77
    assert int(table.page_seq.max()) == 77
    table.refresh_page_seqs()
    assert int(table.page_seq.max()) == 5, "what the rows say"
    assert set(np.flatnonzero(table.page_seq).tolist()) == {table.page_of(r) for r in row_ids.tolist()}


def test_no_slab_has_a_class_at_first(table: SlotTable) -> None:
    assert (table.slab_class == NO_CLASS).all()
