"""Which of the journal's rows is a slot's newest: as arrays what it is one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.recovery.replay import newest_of_each

ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2**64 - 1) | st.integers(1, 5), st.booleans()))


@given(ROWS)
def test_the_newest_row_of_each_slot_is_the_one_with_the_highest_seq(rows: list[tuple[int, int, bool]]) -> None:
    expected: dict[int, int] = {}
    for position, (row_id, seq, chosen) in enumerate(rows):
        if chosen and (row_id not in expected or seq >= rows[expected[row_id]][1]):
            expected[row_id] = position
    row_ids, seqs = [np.array([row[column] for row in rows], dtype=np.uint64) for column in (0, 1)]
    at = np.flatnonzero(np.array([chosen for _, _, chosen in rows], dtype=bool))
    found, positions = newest_of_each(row_ids.astype(np.int64), seqs, at, 10)
    assert dict(zip(found.tolist(), positions.tolist(), strict=True)) == expected
    assert found.tolist() == sorted(expected)
