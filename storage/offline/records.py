"""Headers and payloads of live entries, read in spans in the order of the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage.format.checksums import key_digest
from storage.format.layout import Defect, Undecodable, round_up
from storage.format.record import RecordHeader
from storage.format.row import Row
from storage.identity import Identity
from storage.index import Index
from storage.limits import CHUNK_BYTES
from storage.offline.pages import UNREADABLE
from storage.recovery.reading import SPAN_BYTES, BlockReader
from storage.slot_table import RowIds
from storage.verify import verified_header, verify_chunks

GAP_BYTES = 128 * 1024
"""Read over rather than around: seeking costs a device about as much as reading this."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """The record of a live row: its header if it is the row's, else why not.

    ``payload_defect`` is empty if the payload verifies or was not asked for.
    """

    row_id: int
    row: Row
    header: RecordHeader | None
    defect: str = ""
    payload_defect: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    row_id: int
    row: Row
    offset_bytes: int
    size_bytes: int


class RecordScan:
    """Reads the records of rows that live in ``index``."""

    def __init__(self, reader: BlockReader, index: Index, identity: Identity, *, payloads: bool) -> None:
        self._reader = reader
        self._index = index
        self._identity = identity
        self._payloads = payloads

    def read(self, row_ids: RowIds) -> Iterator[ReadRecord]:
        """A record per row, in the order of ``row_ids``, which are ascending. Raises DeviceGone."""
        for group in self._groups(row_ids):
            if group[0].size_bytes > SPAN_BYTES:
                yield self._read_long(group[0])
            else:
                yield from self._read_group(group)

    def _groups(self, row_ids: RowIds) -> Iterator[list[_Wanted]]:
        """Records that one read covers; a record longer than a read stands alone."""
        group: list[_Wanted] = []
        block_bytes = self._index.geometry.block_bytes
        for row_id in row_ids.tolist():
            row = self._index.table.row(row_id)
            size = round_up(row.record_bytes if self._payloads else row.header_bytes, block_bytes)
            wanted = _Wanted(row_id, row, self._index.table.slot_offset(row_id), size)
            if group and not _joins(group, wanted):
                yield group
                group = []
            group.append(wanted)
        if group:
            yield group

    def _read_group(self, group: list[_Wanted]) -> Iterator[ReadRecord]:
        start = group[0].offset_bytes
        end = group[-1].offset_bytes + group[-1].size_bytes
        view, unreadable = self._reader.span(start, end - start)
        bad = np.array(unreadable, dtype=np.int64) * self._index.geometry.block_bytes + start
        found = []
        for wanted in group:
            last = wanted.offset_bytes + wanted.size_bytes
            if ((bad >= wanted.offset_bytes) & (bad < last)).any():
                found.append(ReadRecord(wanted.row_id, wanted.row, None, UNREADABLE))
                continue
            found.append(self._judge(wanted, view[wanted.offset_bytes - start : last - start]))
        del view
        yield from found

    def _judge(self, wanted: _Wanted, view: memoryview) -> ReadRecord:
        row = wanted.row
        try:
            header = self._header(row, view)
        except Undecodable as error:
            return ReadRecord(wanted.row_id, row, None, str(error))
        if self._payloads:
            try:
                verify_chunks(header, 0, view[row.header_bytes : row.record_bytes])
            except Undecodable as error:
                return ReadRecord(wanted.row_id, row, header, payload_defect=str(error))
        return ReadRecord(wanted.row_id, row, header)

    def _header(self, row: Row, view: memoryview) -> RecordHeader:
        """The header, if it is this row's and names its own key. Raises Undecodable."""
        header = verified_header(view, row, int(self._index.table.slab_generation[row.slab]), self._identity)
        namespace = self._index.namespaces.by_id.get(row.namespace_id)
        if namespace is None or header.map.namespace != namespace.name:
            raise Undecodable(Defect.INVALID, "record header: another namespace's name")
        if key_digest(self._identity.secret, row.namespace_id, header.map.key) != row.digest:
            raise Undecodable(Defect.INVALID, "record header: the digest is not its key's")
        return header

    def _read_long(self, wanted: _Wanted) -> ReadRecord:
        """A record longer than a read: header first, then the payload in steps of whole chunks."""
        row, block_bytes = wanted.row, self._index.geometry.block_bytes
        view, unreadable = self._reader.span(wanted.offset_bytes, round_up(row.header_bytes, block_bytes))
        if unreadable:
            return ReadRecord(wanted.row_id, row, None, UNREADABLE)
        try:
            header = self._header(row, view)
        except Undecodable as error:
            return ReadRecord(wanted.row_id, row, None, str(error))
        # One chunk less than a span, so that the part of a block before a chunk fits too.
        step = SPAN_BYTES // CHUNK_BYTES - 1
        for chunk in range(0, len(header.chunk_checksums), step):
            begin = row.header_bytes + chunk * CHUNK_BYTES
            end = min(begin + step * CHUNK_BYTES, row.record_bytes)
            aligned = begin // block_bytes * block_bytes
            size = round_up(end - aligned, block_bytes)
            view, unreadable = self._reader.span(wanted.offset_bytes + aligned, size)
            if unreadable:
                return ReadRecord(wanted.row_id, row, header, payload_defect=UNREADABLE)
            try:
                verify_chunks(header, chunk, view[begin - aligned : end - aligned])
            except Undecodable as error:
                return ReadRecord(wanted.row_id, row, header, payload_defect=str(error))
        return ReadRecord(wanted.row_id, row, header)


def _joins(group: list[_Wanted], wanted: _Wanted) -> bool:
    end = group[-1].offset_bytes + group[-1].size_bytes
    whole = wanted.offset_bytes + wanted.size_bytes - group[0].offset_bytes
    return whole <= SPAN_BYTES and 0 <= wanted.offset_bytes - end <= GAP_BYTES
