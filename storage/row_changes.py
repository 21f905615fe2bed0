"""Encoding what a mutation makes of a slot's row: each change under the next seq."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage.format.row import FreeReason, QuarantineReason, Row, SlotState, encode_fields, encode_row
from storage.slot_table import SlotTable

_FREE, _LIVE = SlotState.FREE, int(SlotState.LIVE)

Place = tuple[int, int, int, int, int]
"""Of a slot: slab, slot, class and generation of the slab, and where it begins on the device, in bytes."""


@dataclass(slots=True)
class PutIntent:
    """A record that lies in a slot and wants to become live.

    Never changed once made; not frozen, because one is made for every put, at a quarter of the price.
    """

    row_id: int
    namespace_id: int
    digest: bytes
    write_id: int
    payload_bytes: int
    payload_checksum: int
    header_units: int
    expires_at: int
    key: bytes = b""
    """Empty where only the digest is known."""
    place: Place | None = None
    """Of the slot, where it is known already."""


class RowChanges:
    """``last_seq`` is the seq of the row encoded last."""

    def __init__(self, table: SlotTable, seed: int) -> None:
        self._table = table
        self._seed = seed
        self.draw_seq: Callable[[], int]
        """The journal's; set once that is there."""
        self.last_seq = 0

    def _draw(self) -> int:
        self.last_seq = seq = self.draw_seq()
        return seq

    def live(self, intent: PutIntent) -> tuple[bytes, Row]:
        place = intent.place
        if place is not None:
            slab, slot, slot_class = place[0], place[1], place[2]
        else:
            slab, slot = self._table.place_of(intent.row_id)
            slot_class = self._table.class_of_slab[slab]
        fields = (
            _LIVE,
            slot_class,
            0,
            0,
            intent.namespace_id,
            slab,
            self._draw(),
            intent.write_id,
            intent.digest,
            intent.payload_bytes,
            intent.payload_checksum,
            intent.expires_at,
            slot,
            intent.header_units,
        )
        return encode_fields(self._seed, fields)

    def waiting(self, intent: PutIntent) -> Row:
        """The row of a put that no journal has taken yet: seq 0."""
        slab, slot = self._table.place_of(intent.row_id)
        return Row(
            0,
            SlotState.LIVE,
            int(self._table.slab_class[slab]),
            0,
            0,
            intent.namespace_id,
            slab,
            0,
            intent.write_id,
            intent.digest,
            intent.payload_bytes,
            intent.payload_checksum,
            intent.expires_at,
            slot,
            intent.header_units,
        )

    def free(self, row_id: int, row: Row, reason: FreeReason) -> bytes:
        """A free row that names what was freed."""
        slab, slot = self._table.place_of(row_id)
        return encode_row(
            self._seed,
            state=_FREE,
            slot_class=row.slot_class,
            slab=slab,
            slot=slot,
            seq=self._draw(),
            namespace_id=row.namespace_id,
            write_id=row.write_id,
            digest=row.digest,
            reason=reason,
        )

    def restated(self, row_id: int, row: Row, *, state: SlotState, reason: int = 0) -> bytes:
        """All of ``row`` in another state, at the place of ``row_id``."""
        slab, slot = self._table.place_of(row_id)
        return encode_row(
            self._seed,
            state=state,
            slot_class=int(self._table.slab_class[slab]),
            slab=slab,
            slot=slot,
            seq=self._draw(),
            namespace_id=row.namespace_id,
            write_id=row.write_id,
            digest=row.digest,
            payload_bytes=row.payload_bytes,
            payload_checksum=row.payload_checksum,
            expires_at=row.expires_at,
            header_units=row.header_units,
            reason=reason,
        )

    def quarantined(self, row_id: int, row: Row, reason: QuarantineReason) -> bytes:
        return self.restated(row_id, row, state=SlotState.QUARANTINED, reason=reason)
