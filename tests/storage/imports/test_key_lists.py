"""Lists of keys compared as arrays say what sets would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.imports.key_lists import as_digests, missing_in, positions_in, repeated

digests = st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=40)


@given(digests, st.lists(st.integers(0, 39)))
def test_repeated_keys(unique: list[bytes], again: list[int]) -> None:
    listed = unique + [unique[index] for index in again if index < len(unique)]
    seen: set[bytes] = set()
    expected = 0
    for digest in listed:
        expected += digest in seen
        seen.add(digest)
    assert len(repeated(as_digests(b"".join(listed)))) == expected


@given(digests, digests)
def test_positions_and_missing_keys(one: list[bytes], other: list[bytes]) -> None:
    other = [*one[::3], *(digest for digest in other if digest not in one)]
    wanted, listed = as_digests(b"".join(one)), as_digests(b"".join(other))
    assert positions_in(wanted, listed).tolist() == [other.index(d) if d in other else -1 for d in one]
    assert missing_in(wanted, listed).tolist() == [index for index, d in enumerate(one) if d not in other]
