"""Keys of events that don't have them: read from the record's header, as long as it still lies there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from storage.buffers import BufferArena
from storage.device.interface import BlockDevice
from storage.errors import Busy, DeviceFailed
from storage.events import WIPED, Event
from storage.format.geometry import NO_CLASS
from storage.format.layout import Undecodable, round_up
from storage.format.record import read_header
from storage.identity import Identity
from storage.index import Index
from storage.limits import HEADER_MAX_BYTES

READS_AT_ONCE = 8
"""For all who follow events together: requests have the rest of the device's depth."""


class EventKeys:
    """Nothing is held: a slot may be used again while it is read. A header that verifies and carries the event's write
    id is that event's, wherever it was found.
    """

    def __init__(
        self, device: BlockDevice, index: Index, arena: BufferArena, identity: Identity, wait_timeout_seconds: float
    ) -> None:
        self._device = device
        self._index = index
        self._arena = arena
        self._identity = identity
        self._wait_timeout_seconds = wait_timeout_seconds
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    async def add(self, events: Sequence[Event]) -> list[Event]:
        """The events with the keys that can still be known; empty where the record is gone or can't be read."""
        return list(await asyncio.gather(*(self._with_key(event) for event in events)))

    async def _with_key(self, event: Event) -> Event:
        if event.key or event.kind == WIPED or not event.write_id:
            return event
        async with self._turns:
            return event._replace(key=await self._read(event))

    async def _read(self, event: Event) -> bytes:
        table, geometry = self._index.table, self._index.geometry
        slot_class = int(table.slab_class[event.slab])
        if slot_class == NO_CLASS or event.slot >= geometry.slots_per_slab(slot_class):
            return b""  # the slab has another class now
        row_id = table.row_id(event.slab, event.slot)
        size = min(table.slot_bytes(row_id), round_up(HEADER_MAX_BYTES, geometry.block_bytes))
        try:
            buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        except Busy:
            return b""
        try:
            io = self._device.read(table.slot_offset(row_id), buffer.view[:size])
            buffer.hold_for(io)  # who follows may leave meanwhile
            await io
            header = read_header(buffer.view[:size], uuid=self._identity.uuid, secret=self._identity.secret)
        except (DeviceFailed, Undecodable):
            return b""
        finally:
            buffer.release()
        return header.map.key if header.write_id == event.write_id else b""
