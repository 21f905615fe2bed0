"""The sums over a table's rows are those of the rows, one by one (A1, A2)."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format.geometry import plan
from storage.format.row import SlotState
from storage.row_counts import DIRECT_MAX, count_rows
from storage.slot_table import SlotTable

GEOMETRY = plan(32 << 20)
NAMESPACES = st.integers(1, 3) | st.sampled_from([DIRECT_MAX, DIRECT_MAX + 1, 2**32 - 1])
ROW = st.tuples(st.sampled_from(SlotState), NAMESPACES, st.sampled_from([0, 100, 2**32 - 1]), st.sampled_from([0, 7]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.lists(ROW, max_size=80), st.randoms())
def test_a2_counts_are_those_of_the_rows(
    classes: list[int], rows: list[tuple[int, int, int, int]], random: Random
) -> None:
    table = SlotTable(GEOMETRY)
    for slab, slot_class in enumerate(classes):
        table.give_slab(slab, slot_class, 1, slab + 1, 0)
    places = table.row_ids().tolist()
    random.shuffle(places)
    for row_id, fields in zip(places, rows, strict=False):
        table.lines[["state", "namespace_id", "payload_bytes", "expires_at"]][row_id] = fields
    counts = count_rows(table)
    all_rows = [table.row(row_id) for row_id in sorted(places)]
    live = [row for row in all_rows if row.state == SlotState.LIVE]
    for state, found in (
        (SlotState.LIVE, counts.live),
        (SlotState.QUARANTINED, counts.quarantined),
        (SlotState.RETIRED, counts.retired),
    ):
        of_class = Counter(row.slot_class for row in all_rows if row.state == state)
        assert found == [of_class[slot_class] for slot_class in range(len(GEOMETRY.class_bytes))]
    assert counts.expiring == sum(row.expires_at > 0 for row in live)
    entries = Counter((row.namespace_id, row.slot_class) for row in live)
    payload: Counter[tuple[int, int]] = Counter()
    for row in live:
        payload[row.namespace_id, row.slot_class] += row.payload_bytes
    assert counts.usage == {key: (count, payload[key]) for key, count in entries.items()}
    quarantined = [r for r in sorted(places) if table.state(r) == SlotState.QUARANTINED]
    assert counts.quarantined_row_ids.tolist() == quarantined
    table.close()
