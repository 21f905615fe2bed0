"""What callers of the engine hand in and get back: entries, conditions, durability levels.

An entry's identity to the outside is its write id (the ETag).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage.format.parts import Part


class Durability(enum.StrEnum):
    """When a mutation is acknowledged (D1)."""

    NONE = "none"
    """The payload was accepted: a crash may lose it, never tear it."""
    JOURNAL = "journal"
    """Payload and journal row are written: survives SIGKILL."""
    FLUSH = "flush"
    """As journal, and a device flush followed: survives power loss."""


class EntryInfo(NamedTuple):
    """A live entry as stored. Times are seconds since 1970; ``expires_at`` is 0 for never.

    A tuple, because one is made for every read.
    """

    namespace: str
    key: bytes
    write_id: int
    payload_bytes: int
    stored_at: float
    expires_at: int
    content_type: str
    metadata: tuple[tuple[str, str], ...]
    """Client metadata as (name, value), names in lower case."""
    parts: tuple[Part, ...] = ()
    """Named arrays that the payload consists of, in the order of their bytes; none for a plain value."""


@dataclass(slots=True)
class EntrySketch:
    """What is known of a live entry without reading from the device. Never changed once made, as EntryInfo."""

    write_id: int
    payload_bytes: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a mutation, decided when its rows join a commit (D3).

    ``must_be_absent`` is ``If-None-Match: *``; ``must_be_present`` is ``If-Match: *``;
    ``write_ids`` are the ETags of ``If-Match`` (None: the header was not given).
    """

    must_be_absent: bool = False
    must_be_present: bool = False
    write_ids: frozenset[int] | None = None


UNCONDITIONAL = Conditions()


class PutTerms(NamedTuple):
    """What a put says of its value, besides key and size. ``expires_at`` is 0 for never."""

    content_type: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    expires_at: int = 0
    parts: Sequence[Part] = ()
    durability: Durability = Durability.JOURNAL
    conditions: Conditions = UNCONDITIONAL


@dataclass(slots=True)
class PutResult:
    """Never changed once made; not frozen, because one is made for every put."""

    write_id: int
    created: bool
    """False if the put replaced an entry."""
    durability: Durability
    """The level that was in fact reached."""
