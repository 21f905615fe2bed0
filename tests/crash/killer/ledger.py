"""What a client may expect of each key, from what it sent and what it was answered.

Every attempt has a beginning and, if it was answered, an end on one logical clock. A state of a key is admissible as
long as no attempt that was acknowledged at a level that holds began after that state's own acknowledgement: two
attempts that overlapped may have come into force in either order, one that was never answered may or may not have.
A level holds a crash from ``journal`` upwards; ``none`` may be lost, but what is older than a later acknowledged
attempt does not come back (D2).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

ABSENT = 0
"""The version of a key that isn't there."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A put (``version`` > 0) or a delete (ABSENT). ``ended`` is None until it was acknowledged."""

    key: str
    version: int
    level: str
    began: int
    ended: int | None = None

    @property
    def holds(self) -> bool:
        return self.ended is not None and self.level != "none"


@dataclass(slots=True, eq=False)
class Reading:
    """A read under way, and the versions it may find: those admissible at its beginning and all that began since."""

    key: str
    versions: set[int]


@dataclass(slots=True)
class Ledger:
    """Attempts of all keys, from several threads. ``counts`` is what the test prints."""

    counts: Counter[str] = field(default_factory=Counter)
    _attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    _readings: list[Reading] = field(default_factory=list)
    _clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _answers: int = 0
    _life_began: int = 0

    @property
    def keys(self) -> list[str]:
        return sorted(self._attempts)

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
            self._forget_older(attempt)
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

    def _forget_older(self, later: Attempt) -> None:
        """Drop what can't be admissible any more, so that a key's list stays short."""
        if later.holds:
            kept = [a for a in self._attempts[later.key] if a.ended is None or a.ended >= later.began or a is later]
            self._attempts[later.key] = kept

    def admissible(self, key: str) -> set[int]:
        """Versions that a read which begins now may find, leaving aside what begins meanwhile."""
        with self._changed:
            return self._admissible(key)

    def _admissible(self, key: str) -> set[int]:
        attempts = self._attempts.get(key, [])
        versions = {a.version for a in attempts if not self._is_past(a, attempts)}
        return versions if any(a.holds for a in attempts) else versions | {ABSENT}

    @staticmethod
    def _is_past(attempt: Attempt, attempts: list[Attempt]) -> bool:
        ended = attempt.ended
        return ended is not None and any(a.holds and a.began > ended for a in attempts)

    def history(self, key: str) -> str:
        """Who put and deleted the key, as far as it still matters."""
        with self._changed:
            attempts = self._attempts.get(key, [])
            return "; ".join(f"{a.version} at {a.level}: {a.began} to {a.ended}" for a in attempts)

    def begin_read(self, key: str) -> Reading:
        with self._changed:
            reading = Reading(key, self._admissible(key))
            self._readings.append(reading)
            return reading

    def end_read(self, reading: Reading) -> None:
        with self._changed:
            self._readings.remove(reading)

    def unanswered(self) -> int:
        """Attempts of this life that nobody will answer any more."""
        with self._changed:
            open_attempts = [a for attempts in self._attempts.values() for a in attempts if a.ended is None]
            return sum(a.began > self._life_began for a in open_attempts)

    def found(self, key: str, version: int) -> None:
        """What a restarted daemon holds: from now on the key's only past."""
        with self._changed:
            attempt = Attempt(key, version, "journal", next(self._clock))
            attempt.ended = next(self._clock)
            self._attempts[key] = [attempt]

    def begin_life(self) -> None:
        with self._changed:
            self._life_began = next(self._clock)
            self._answers = 0
