"""The plain get: a whole record by one read, whose end is told directly (``ReadPath.begin``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from storage.buffers import Buffer
from storage.device.direct_read import DirectRead
from storage.entry_reader import EntryReader
from storage.format.layout import Undecodable
from storage.format.row import Row
from storage.namespaces import Namespace

if TYPE_CHECKING:
    from storage.read_path import ReadPath


class WholeRead(DirectRead):
    """It holds the slot and the memory, which the reader takes over."""

    def __init__(
        self,
        path: ReadPath,
        known: Namespace,
        row_id: int,
        row: Row,
        key: bytes,
        buffer: Buffer,
        length: int,
        done: Callable[[EntryReader | None], None],
    ) -> None:
        self._path = path
        self._known = known
        self._row_id = row_id
        self._row = row
        self._key = key
        self._buffer = buffer
        self._done = done
        self.length = length
        view = buffer.view
        self.view = view if len(view) == length else view[:length]
        self.offset_bytes = path.offset_of(row.slab, row.slot, row.slot_class)

    def ended(self) -> None:
        reader = None
        try:
            if self.error is None:
                reader = self._reader()
        finally:
            if reader is None:
                self._buffer.release()
                self._path.let_go(self._row_id)
            self._done(reader)

    def _reader(self) -> EntryReader | None:
        """None if the record does not verify, or is another key's."""
        path, known, row, row_id = self._path, self._known, self._row, self._row_id
        try:
            head = path.verified(self.view, row, self._key, known.name)
        except Undecodable:
            return None
        if head is None:
            return None
        path.note_hit(row_id, row)
        if known.settings.sliding_ttl:
            path.slide(known.settings, row)
        return EntryReader(path, row_id, row, head, self.view, self._buffer)
