"""What the HTTP layer may be told. The process layer fills this from its settings."""

from __future__ import annotations

from dataclasses import dataclass

from api.doors.selection import DoorChoice
from storage.entries import Durability


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Times in seconds."""

    default_durability: Durability = Durability.JOURNAL
    """Level of a mutation whose request names none."""
    body_timeout_seconds: float = 30.0
    """Longest time a client may take for ``limits.TRICKLE_BYTES`` of a body, before 408."""
    send_timeout_seconds: float = 30.0
    """Longest time a client may take for ``limits.SEND_MAX_BYTES`` of an answer, before the connection is cut."""
    retry_after_seconds: int = 1
    """``Retry-After`` of every 503."""
    doors: tuple[DoorChoice, ...] = ()
    """The open doors for build caches."""
