"""A value read in windows that fit the device's transfers, each copied before the network gets it."""

from __future__ import annotations

from api.engine_face import EntryReader
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES

_WINDOW_CHUNKS = TRANSFER_MAX_BYTES // CHUNK_BYTES - 1
"""Chunks read for one window: one transfer of the device, with room for where the record starts within a block."""


def window_stop(start: int, stop: int) -> int:
    """Where the next window of a value ends: a small rest is taken whole, a large one in whole checksummed chunks."""
    if stop - start <= TRANSFER_MAX_BYTES:
        return stop
    return (start // CHUNK_BYTES + _WINDOW_CHUNKS) * CHUNK_BYTES


async def copy_window(reader: EntryReader, start: int, stop: int) -> bytes:
    """The verified bytes from ``start`` to ``stop``.

    The iteration comes to its end, so that the engine's buffers are free again before the network gets the bytes: a
    slow client holds a copy, never a buffer of the pool.
    """
    parts = [bytes(piece) async for piece in reader.pieces(start, stop)]
    return parts[0] if len(parts) == 1 else b"".join(parts)
