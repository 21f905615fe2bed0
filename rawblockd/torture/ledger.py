"""What clients were promised of each key, from what they sent and what they were answered.

Every attempt has a beginning and, once acknowledged, an end on one logical clock. What an attempt made of a key is
admissible as long as no attempt that holds began after that one's end: two that overlapped may have come into force in
either order, and one that was never answered may or may not have. After a kill everything acknowledged at level
``journal`` or higher holds, after a power loss only level ``flush``; what a restarted daemon was found to hold is the
key's only past (D1, D2).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

ABSENT = 0
"""The version of a key that is not there."""
FOUND = "found"
"""The level of what a restarted daemon held."""
HOLDS_A_KILL = frozenset({"journal", "flush", FOUND})
HOLDS_A_POWER_LOSS = frozenset({"flush", FOUND})


@dataclass(slots=True, eq=False)
class Attempt:
    """A put (``version`` > 0) or a delete (ABSENT). ``ended`` is None until it was acknowledged."""

    key: str
    version: int
    level: str
    began: int
    ended: int | None = None


@dataclass(slots=True, eq=False)
class Reading:
    """A read under way, and the versions it may find: admissible at its beginning, or begun since."""

    key: str
    versions: set[int]


@dataclass
class Ledger:
    """Shared by the threads of a load; every method may be called on any thread."""

    counts: Counter[str] = field(default_factory=Counter)
    """Answers by kind."""
    _attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    _readings: list[Reading] = field(default_factory=list)
    _clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _answers: int = 0
    _life_began: int = 0

    def draw_version(self) -> int:
        with self._changed:
            return next(self._versions)

    def begin(self, key: str, version: int, level: str) -> Attempt:
        """An attempt is about to be sent."""
        with self._changed:
            attempt = Attempt(key, version, level, next(self._clock))
            self._attempts.setdefault(key, []).append(attempt)
            for reading in self._readings:
                if reading.key == key:
                    reading.versions.add(version)
            return attempt

    def acknowledge(self, attempt: Attempt, count: str) -> None:
        with self._changed:
            attempt.ended = next(self._clock)
            self._answered(count)

    def refuse(self, attempt: Attempt, count: str) -> None:
        """It was answered that nothing was done."""
        with self._changed:
            self._attempts[attempt.key].remove(attempt)
            self._answered(count)

    def count(self, name: str) -> None:
        with self._changed:
            self._answered(name)

    def _answered(self, count: str) -> None:
        self.counts[count] += 1
        self._answers += 1
        self._changed.notify_all()

    def wait_for_answers(self, number: int, ended: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until so many answers of this life came, or ``ended``; False if neither happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._answers >= number or ended(), timeout_seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def admissible(self, key: str, levels: frozenset[str] = HOLDS_A_KILL) -> set[int]:
        """Versions that a read which begins now may find, if attempts at these levels hold."""
        with self._changed:
            return self._admissible(key, levels)

    def _admissible(self, key: str, levels: frozenset[str]) -> set[int]:
        attempts = self._attempts.get(key, [])
        newest = max((a.began for a in attempts if a.ended is not None and a.level in levels), default=0)
        versions = {a.version for a in attempts if a.ended is None or a.ended > newest}
        return versions if newest else versions | {ABSENT}

    def history(self, key: str) -> str:
        """Who put and deleted the key since it was last found."""
        with self._changed:
            attempts = self._attempts.get(key, [])[-12:]
            return "; ".join(f"{a.version} at {a.level}, {a.began} to {a.ended}" for a in attempts)

    def begin_read(self, key: str) -> Reading:
        with self._changed:
            reading = Reading(key, self._admissible(key, HOLDS_A_KILL))
            self._readings.append(reading)
            return reading

    def end_read(self, reading: Reading) -> None:
        with self._changed:
            self._readings.remove(reading)

    def unanswered(self) -> int:
        """Attempts of this life that nobody will answer any more."""
        with self._changed:
            attempts = [a for listed in self._attempts.values() for a in listed]
            return sum(a.ended is None and a.began > self._life_began for a in attempts)

    def found(self, key: str, version: int) -> None:
        """What a restarted daemon holds: from now on the key's only past."""
        with self._changed:
            attempt = Attempt(key, version, FOUND, next(self._clock))
            attempt.ended = next(self._clock)
            self._attempts[key] = [attempt]

    def begin_life(self) -> None:
        with self._changed:
            self._life_began = next(self._clock)
            self._answers = 0
