"""A value read in windows that are one read of the device each, copied before the network gets them."""

from __future__ import annotations

from api.engine_face import EntryReader
from storage.limits import CHUNK_BYTES


def window_stop(reader: EntryReader, start: int, stop: int) -> int:
    """Where the next window of a value ends: with the piece that is read for it, or where the value does."""
    return min(stop, start // CHUNK_BYTES * CHUNK_BYTES + reader.piece_bytes)


async def copy_window(reader: EntryReader, start: int, stop: int) -> bytes:
    """The verified bytes from ``start`` to ``stop``.

    The iteration comes to its end, so that the engine's buffers are free again before the network gets the bytes: a
    slow client holds a copy, never a buffer of the pool.
    """
    parts = [bytes(piece) async for piece in reader.pieces(start, stop)]
    return parts[0] if len(parts) == 1 else b"".join(parts)
