"""Lists of keys by their digests, compared as arrays: which are twice in one, which are in one and not in another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]
"""Two columns: the halves of each 128-bit digest."""
Positions = npt.NDArray[np.int64]


def as_digests(packed: bytes | bytearray) -> Digests:
    """Digests of 16 bytes, one behind the other."""
    return np.frombuffer(bytes(packed), dtype="<u8").reshape(-1, 2)


def repeated(digests: Digests) -> Positions:
    """Positions of digests that stand further ahead in the list, too."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    same = (digests[order][1:] == digests[order][:-1]).all(axis=1)
    return np.sort(order[1:][same])


def positions_in(wanted: Digests, listed: Digests) -> Positions:
    """Where each wanted digest stands in a list; -1 where it does not. No digest is twice in either."""
    both = np.concatenate((wanted, listed))
    order = np.lexsort((both[:, 1], both[:, 0]))
    same = np.flatnonzero((both[order][1:] == both[order][:-1]).all(axis=1))
    first, second = order[same], order[same + 1]
    found = np.full(len(wanted), -1, dtype=np.int64)
    # Of each pair one stands in either list; a stable sort does not say which comes first.
    swapped = first >= len(wanted)
    ours, theirs = np.where(swapped, second, first), np.where(swapped, first, second)
    found[ours] = theirs - len(wanted)
    return found


def missing_in(wanted: Digests, listed: Digests) -> Positions:
    """Positions of wanted digests that are not in a list."""
    return np.flatnonzero(positions_in(wanted, listed) < 0)
