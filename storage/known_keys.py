"""Keys kept in memory, if the operator wants listings that need no reads: about 300 B an entry.

A slot holds one record for as long as its write id stands in the slot's row, so what is known goes by slot and counts
only together with that write id; nothing has to be forgotten when an entry goes. After a start it fills with what is
put and listed.
"""

from __future__ import annotations

from typing import NamedTuple


class KnownKey(NamedTuple):
    """What of an entry only its record header tells."""

    write_id: int
    key: bytes
    stored_at: float
    content_type: str


class KnownKeys:
    def __init__(self) -> None:
        self._by_row: dict[int, KnownKey] = {}

    def remember(self, row_id: int, known: KnownKey) -> None:
        self._by_row[row_id] = known

    def find(self, row_id: int, write_id: int) -> KnownKey | None:
        known = self._by_row.get(row_id)
        return known if known is not None and known.write_id == write_id else None
