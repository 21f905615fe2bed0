"""What a door consists of: routes, each with its methods and the form of its keys."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from api.doors.selection import DoorName
from api.errors import BuildKeyInvalid
from api.value_request import ValueRequest
from storage.errors import EntryNotFound, EntryUnreadable, RawblockdError, ReadFailed

Answer = Callable[[ValueRequest], Awaitable[int]]
"""Answers a request whose namespace and key are filled in, and returns the status."""

READS = frozenset({"GET", "HEAD", "PROPFIND"})
"""Methods of any door that change nothing; all others write."""

MISSES: tuple[type[RawblockdError], ...] = (EntryUnreadable, ReadFailed)
"""Failures of a single entry. A build tool that gets a 503 for one gives up the whole cache, or asks for it again and
again; as a miss it costs what any miss costs (R2)."""


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of path of a door. ``template`` is its name in metrics and in the OpenAPI document."""

    template: str
    read_key: Callable[[bytes], bytes]
    """The key of the raw path behind the door's name. Raises ``KeyInvalid``."""
    answers: Mapping[str, Answer]
    """By method."""
    shape: str = ".+"
    """A regular expression of keys without a slash, for the OpenAPI document: not all that are taken, but all it has
    are."""


@dataclass(frozen=True, slots=True)
class Door:
    """``routes`` are all it has; ``find`` chooses the one of a raw path behind the door's name, None if there is none.

    That path is empty or begins with a slash.
    """

    name: DoorName
    routes: tuple[Route, ...]
    find: Callable[[bytes], Route | None]
    misses: tuple[type[RawblockdError], ...] = MISSES
    """What this door's clients are better told as a miss, when they read."""

    def soften(self, method: str, error: RawblockdError) -> RawblockdError:
        """The error to answer instead of ``error``: a miss, or the error itself."""
        if method in READS and isinstance(error, self.misses):
            return EntryNotFound(f"the entry can't be read now: {error.code}")
        return error


def below(prefix: bytes, pattern: bytes, form: str) -> Callable[[bytes], bytes]:
    """``read_key`` of the paths ``prefix`` + what ``pattern`` matches; the key is the path without its first slash.

    ``form`` says in words what the pattern takes.
    """
    compiled = re.compile(pattern)

    def read_key(path: bytes) -> bytes:
        if compiled.fullmatch(path, len(prefix)) is None:
            raise BuildKeyInvalid(form)
        return path[1:]

    return read_key
