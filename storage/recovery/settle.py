"""Settling lines of pages that no copy has whole, by the row itself and by the record header in the slot (R1).

================================  ==================================  ========================================
the line                          the header in the slot              verdict
================================  ==================================  ========================================
a row of the journal names it     –                                   settled by the journal
verifies, live                    is that record's                    live (repaired by the row)
verifies, free                    void, or the freed record's         free
does not verify                   verifies, newest under its key      live (repaired by the record header)
does not verify                   void (all zero)                     free
anything else                                                         skipped, quarantined
================================  ==================================  ========================================

A header proves life only because headers of freed slots are made void before their freeing rows leave the journal,
and the whole journal was applied before.
"""

from __future__ import annotations

from storage.format.checksums import key_digest
from storage.format.geometry import LINE_BYTES
from storage.format.layout import Undecodable, round_up
from storage.format.record import RecordHeader, pack_chunk_checksums, payload_checksum, read_header
from storage.format.row import Row, SlotState, decode_row, encode_row
from storage.format.superblock import Superblock
from storage.index import Index
from storage.limits import HEADER_MAX_BYTES
from storage.recovery.live_row import put_live_row
from storage.recovery.pages import BadLine, BadPage
from storage.recovery.reading import BlockReader
from storage.recovery.report import RecoveryReport, RepairSource, SkipReason


class Settler:
    def __init__(self, reader: BlockReader, index: Index, superblock: Superblock, base_seq: int) -> None:
        self._reader = reader
        self._index = index
        self._superblock = superblock
        self._base_seq = base_seq

    def settle(self, pages: list[BadPage], wrong: set[int], report: RecoveryReport) -> list[BadLine]:
        """Settle all lines of the pages that the journal did not; returns those that must be skipped.

        ``wrong`` are slots whose newest row, in the journal, was written wrong: nothing older of them is true.
        """
        skipped: list[BadLine] = []
        candidates: list[tuple[int, BadPage, RecordHeader]] = []
        for bad in pages:
            for row_id in self._row_ids_of_page(bad.page):
                if row_id in wrong:
                    continue
                if self._index.table.lines["seq"][row_id]:
                    report.repaired[RepairSource.JOURNAL] += self._index.table.state(row_id) == SlotState.LIVE
                    continue
                line, header, blank = self._line(bad, row_id), *self._header(row_id)
                if line is not None and self._agree(line, header, blank):
                    self._put(row_id, self._raw(bad, row_id))
                    if line.state == SlotState.LIVE:
                        report.repaired[RepairSource.ROW] += 1
                elif line is None and blank:
                    self._put_free(row_id)
                elif line is None and header is not None:
                    candidates.append((row_id, bad, header))
                else:
                    skipped.append(self._skip(row_id, bad))
        return skipped + self._from_headers(candidates, report)

    def _from_headers(
        self, candidates: list[tuple[int, BadPage, RecordHeader]], report: RecoveryReport
    ) -> list[BadLine]:
        """Newest first, so that of two headers of a key the older one is a version that was replaced."""
        if not candidates:
            return []
        skipped = []
        lines = self._index.table.lines
        taken = {lines["digest"][r].tobytes() for r in self._index.table.live_row_ids().tolist()}
        for row_id, bad, header in sorted(candidates, key=lambda c: -c[2].write_id):
            if header.digest in taken or header.namespace_id in self._index.namespaces.wiped:
                self._put_free(row_id)
                report.superseded += 1
                report.stale_headers.append(row_id)
            elif header.namespace_id not in self._index.namespaces.by_id:
                skipped.append(self._skip(row_id, bad))
            else:
                taken.add(header.digest)
                self._put_live(row_id, header)
                report.repaired[RepairSource.RECORD_HEADER] += 1
        return skipped

    # -- evidence -------------------------------------------------------------------------------------------------

    def _row_ids_of_page(self, page: int) -> list[int]:
        geometry = self._index.geometry
        row_ids = self._index.table.row_ids_of_slab(page // geometry.pages_per_slab)
        return [int(r) for r in row_ids[row_ids // (geometry.block_bytes // LINE_BYTES) == page]]

    def _raw(self, bad: BadPage, row_id: int) -> bytes:
        line = row_id % (self._index.geometry.block_bytes // LINE_BYTES)
        return bad.image[line * LINE_BYTES : (line + 1) * LINE_BYTES]

    def _line(self, bad: BadPage, row_id: int) -> Row | None:
        """The line's row if it verifies and is this slot's."""
        try:
            row = decode_row(self._index.seed, self._raw(bad, row_id))
        except Undecodable:
            return None
        slab, slot = self._index.table.place_of(row_id)
        current = row.slot_class == self._index.table.slab_class[slab] and row.seq >= self._index.table.slab_seq[slab]
        return row if (row.slab, row.slot) == (slab, slot) and current else None

    def proves(self, row_id: int) -> bool:
        """Whether the record header in the slot is that of the live row in the table."""
        row, header = self._index.table.row(row_id), self.header(row_id)
        return header is not None and (
            header.write_id == row.write_id
            and header.digest == row.digest
            and header.namespace_id == row.namespace_id
            and header.header_bytes == row.header_bytes
            and header.payload_bytes == row.payload_bytes
            and payload_checksum(pack_chunk_checksums(header.chunk_checksums)) == row.payload_checksum
        )

    def header(self, row_id: int) -> RecordHeader | None:
        """The record header in a slot, if it verifies and belongs there."""
        return self._header(row_id)[0]

    def _header(self, row_id: int) -> tuple[RecordHeader | None, bool]:
        """The header in the slot if it verifies and belongs there; and whether the slot begins blank."""
        block_bytes = self._index.geometry.block_bytes
        size = min(round_up(HEADER_MAX_BYTES, block_bytes), self._index.table.slot_bytes(row_id))
        view, unreadable = self._reader.span(self._index.table.slot_offset(row_id), size)
        if unreadable and unreadable[0] == 0:
            return None, False
        if not any(view[:block_bytes]):
            return None, True
        try:
            header = read_header(view, uuid=self._superblock.uuid, secret=self._superblock.secret)
        except Undecodable:
            return None, False
        slab, slot = self._index.table.place_of(row_id)
        place = (slab, slot, int(self._index.table.slab_generation[slab]))
        own = header.digest == key_digest(self._superblock.secret, header.namespace_id, header.map.key)
        fits = header.header_bytes + header.payload_bytes <= self._index.table.slot_bytes(row_id)
        return (header if (header.slab, header.slot, header.generation) == place and own and fits else None), False

    def _agree(self, row: Row, header: RecordHeader | None, blank: bool) -> bool:
        if row.state in (SlotState.QUARANTINED, SlotState.RETIRED):
            return True
        if row.state == SlotState.FREE:
            return (
                blank
                or (header is not None and header.write_id == row.write_id)
                or (not row.write_id and header is None)
            )
        return header is not None and header.write_id == row.write_id

    # -- verdicts -------------------------------------------------------------------------------------------------

    def _put(self, row_id: int, raw: bytes) -> None:
        seq = int.from_bytes(raw[16:24], "little")
        self._index.table.set_row(row_id, raw, seq)

    def _put_free(self, row_id: int) -> None:
        slab, slot = self._index.table.place_of(row_id)
        table = self._index.table
        raw = encode_row(
            self._index.seed,
            state=SlotState.FREE,
            slot_class=int(table.slab_class[slab]),
            slab=slab,
            slot=slot,
            seq=int(table.slab_seq[slab]),
        )
        table.set_row(row_id, raw, int(table.slab_seq[slab]))

    def _put_live(self, row_id: int, header: RecordHeader) -> None:
        slot_class = int(self._index.table.slab_class[header.slab])
        put_live_row(self._index, row_id, header, slot_class, self._base_seq, self._base_seq)

    def _skip(self, row_id: int, bad: BadPage) -> BadLine:
        reason = SkipReason.HEADER_MISMATCH if self._line(bad, row_id) is not None else bad.reason
        return BadLine(row_id, bad.copy, bad.page, reason, self._raw(bad, row_id))
