"""One read of one entry, as it is handed out: its bytes, and what is held for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

from storage.buffers import Buffer
from storage.entries import EntryInfo
from storage.format.row import Row
from storage.verify import RecordHead

if TYPE_CHECKING:
    from storage.read_path import ReadPath

_new = tuple.__new__


class Memory(Protocol):
    """What a record that was read whole lies in."""

    def release(self) -> None:
        """The reader of that record needs it no more. Idempotence isn't asked for."""


class EntryReader:
    """One read of one entry. ``close`` must be called; pieces are valid until the next one is asked for."""

    # What most reads never change is the class's: there is one of these for each.
    _held = True
    _kept = False
    _has_first = False
    _ahead: Sequence[tuple[Buffer, asyncio.Future[None]]] = ()
    _late: Sequence[asyncio.Future[None]] = ()
    """Reads that nobody waits for any more, and the device is not done with."""

    def __init__(
        self,
        path: ReadPath,
        row_id: int,
        row: Row,
        head: RecordHead,
        record: memoryview | None = None,
        memory: Memory | None = None,
        first: tuple[Buffer, asyncio.Future[None]] | None = None,
    ) -> None:
        """``record`` is the whole of it, verified, in ``memory``. Else ``pieces`` reads it, all but the ``first`` piece
        if that is given."""
        self._path = path
        self._row_id = row_id
        self._row = row
        self._head = head
        self._record = record
        self._memory = memory
        if first is not None:
            self._ahead = [first]
            self._has_first = True

    @property
    def info(self) -> EntryInfo:
        """What is known of the entry."""
        key, namespace, stored_ms, content_type, metadata, parts = self._head.map
        row = self._row
        return _new(
            EntryInfo,
            (
                namespace,
                key,
                row.write_id,
                row.payload_bytes,
                stored_ms / 1000,
                row.expires_at,
                content_type,
                metadata,
                parts,
            ),
        )

    @property
    def piece_bytes(self) -> int:
        """Most bytes of one of the ``pieces``: what is read at once, from the start of a chunk on."""
        return self._path.piece_bytes

    def whole(self, start_byte: int, stop_byte: int) -> memoryview | None:
        """The verified bytes from ``start_byte`` to ``stop_byte`` at once, if the record was read whole; else None, and
        ``pieces`` reads them. Valid until ``close``."""
        record = self._record
        if record is None:
            return None
        base = self._head.header_bytes
        payload_bytes = self._row.payload_bytes
        return record[base + start_byte : base + (stop_byte if stop_byte < payload_bytes else payload_bytes)]

    async def pieces(self, start_byte: int = 0, stop_byte: int | None = None) -> AsyncGenerator[memoryview, None]:
        """The payload's bytes from ``start_byte`` to ``stop_byte``. Raises EntryCorrupt, EntryUnreadable mid-way."""
        stop = self._row.payload_bytes if stop_byte is None else min(stop_byte, self._row.payload_bytes)
        if start_byte >= stop:
            return
        piece = self.whole(start_byte, stop)
        if piece is not None:
            yield piece
            return
        try:
            async for piece in self._path.read_pieces(self, self._row_id, self._row, self._head, start_byte, stop):
                yield piece
        finally:
            # Who stops half-way waits for something else (a slow client), and holds no memory meanwhile.
            self._drop_ahead()

    def restart(self, first_chunk: int) -> list[tuple[Buffer, asyncio.Future[None]]]:
        """The window of pieces read ahead: the first piece, if it was read and the iteration begins there; else empty,
        for an iteration left half-way read other pieces than the next one."""
        if first_chunk or not self._has_first:
            self._drop_ahead()
        self._has_first = False
        self._ahead = window = list(self._ahead)
        return window

    def _drop_ahead(self) -> None:
        """Release what was read ahead."""
        for buffer, io in self._ahead:
            if not io.done():
                buffer.hold_for(io)
                self._late = [*self._late, io]
            else:
                io.exception()
            buffer.release()
        self._ahead = ()

    def keep(self) -> None:
        """Outlive the batch that this reader came from, as somebody who waits for a slow client may: only the slot is
        held, and pieces are read anew. No iteration may be under way."""
        self._kept = True
        if self._memory is not None:
            self._record = None
            self._memory.release()
            self._memory = None
        self._drop_ahead()

    def close(self) -> None:
        """Let go of the slot and of all memory. Idempotent."""
        if not self._held:
            return
        self._held = False
        if self._memory is not None:
            self._record = None
            self._memory.release()
        elif self._ahead or self._late:
            self._drop_ahead()
            if self._late:
                # The slot stays held until the device is done with it.
                last = asyncio.gather(*self._late, return_exceptions=True)
                last.add_done_callback(lambda _: self._path.let_go(self._row_id))
                return
        self._path.let_go(self._row_id)


def close_all(readers: Sequence[EntryReader]) -> None:
    """Close readers, of which many lie in the same memory: one step for all of their slots. Not those that somebody
    keeps."""
    row_ids = []
    for reader in readers:
        if reader._kept:
            continue
        if reader._held and reader._memory is not None:
            reader._held = False
            reader._record = None
            reader._memory.release()
            row_ids.append(reader._row_id)
        else:
            reader.close()
    if row_ids:
        readers[0]._path.space.let_go_each(row_ids)
