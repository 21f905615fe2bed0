"""Writing the header of a slab that is given to a class."""

from __future__ import annotations

from storage.buffers import BufferArena
from storage.device.interface import BlockDevice
from storage.format.geometry import Geometry
from storage.format.slab_header import SlabHeader, encode_slab_header
from storage.identity import Identity


class SlabHeaders:
    def __init__(
        self,
        device: BlockDevice,
        geometry: Geometry,
        identity: Identity,
        arena: BufferArena,
        wait_timeout_seconds: float,
    ) -> None:
        self._device = device
        self._geometry = geometry
        self._identity = identity
        self._arena = arena
        self._wait_timeout_seconds = wait_timeout_seconds

    async def write(self, slab: int, slot_class: int) -> int:
        """Write the header under a new generation, which is returned. Raises WriteFailed, Busy, Unavailable."""
        generation = self._identity.draw_write_id()
        size = self._geometry.block_bytes
        block = encode_slab_header(
            SlabHeader(slab, slot_class, generation),
            uuid=self._identity.uuid,
            secret=self._identity.secret,
            block_bytes=size,
        )
        buffer = await self._arena.acquire(size, self._wait_timeout_seconds)
        try:
            buffer.view[:size] = block
            await self._device.write(self._geometry.slab_offset(slab), buffer.view[:size])
        finally:
            buffer.release()
        return generation
