"""Which puts a full device takes: two ways to spare the flash, both off unless set.

``second_put``: what nobody asks for again is not worth an entry that somebody may read. A new key is refused at its
first put and remembered; a put within as many others as there are entries is taken, and so is a key that was evicted
lately. Replacing an entry is always taken, and so is everything while slots are free.

The write budget: puts spend the bytes that they write, a rate fills the account up to what it gives in a second. A put
is taken while anything is left, so the account may go below zero once; then puts are refused until it is filled again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from storage.errors import NotAdmitted, WriteBudgetSpent
from storage.eviction.fingerprints import Fingerprints
from storage.eviction.interface import Eviction
from storage.options import AdmissionPolicy


class Admission:
    """``clock`` is monotonic, in seconds."""

    def __init__(
        self, policy: AdmissionPolicy, bytes_per_second: int, eviction: Eviction, clock: Callable[[], float]
    ) -> None:
        self._eviction = eviction
        self._seen = Fingerprints() if policy is AdmissionPolicy.SECOND_PUT else None
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._left_bytes = float(bytes_per_second)
        self._filled_at = clock()

    @property
    def is_choosy(self) -> bool:
        """Whether new keys are judged."""
        return self._seen is not None

    @property
    def admits_all(self) -> bool:
        """Whether neither keys are judged nor bytes are counted."""
        return self._seen is None and not self._bytes_per_second

    def judge(self, digest: bytes, entries: int) -> None:
        """A put of a new key to a full device that holds so many entries. Raises NotAdmitted."""
        if self._seen is None or self._eviction.was_evicted(digest):
            return
        self._seen.resize(entries)
        if not self._seen.forget(digest):
            self._seen.add(digest)
            raise NotAdmitted

    def check_budget(self) -> None:
        """Raises WriteBudgetSpent while nothing is left."""
        if not self._bytes_per_second:
            return
        now = self._clock()
        self._left_bytes += (now - self._filled_at) * self._bytes_per_second
        self._left_bytes = min(self._left_bytes, float(self._bytes_per_second))
        self._filled_at = now
        if self._left_bytes <= 0:
            raise WriteBudgetSpent(retry_after_seconds=max(1, math.ceil(-self._left_bytes / self._bytes_per_second)))

    def spend(self, size_bytes: int) -> None:
        """A put that is going to write so many bytes."""
        if self._bytes_per_second:
            self._left_bytes -= size_bytes
