"""Rebuilding the slot table when no checkpoint copy can be used: slab headers, record headers, and the journal (R1).

The journal is exact for every slot changed after the seq it is complete since; for the others the record header in the
slot speaks, which is void if the slot was freed before that seq. What decides:

==============================================  ======================================================================
the slot                                        verdict
==============================================  ======================================================================
a journal row speaks of it                      as the row says
header of this device, place and generation     live, unless the journal or a newer header speaks of its key
anything else that is no header                 free
a damaged header                                skipped, quarantined
==============================================  ======================================================================

A header that a value imitates stands in the wrong place: place, class and generation are under its keyed sum.
"""

from __future__ import annotations

import logging

import numpy as np

from storage.format.catalogue import NamespaceRecord, SlabRecord
from storage.format.checksums import key_digest, keyed_sum
from storage.format.geometry import NO_CLASS
from storage.format.layout import Undecodable, round_up
from storage.format.record import (
    HEADER_UNIT_BYTES,
    MAGIC,
    RECORD,
    RecordHeader,
    read_header,
)
from storage.format.row import FreeReason, QuarantineReason, Rows, SlotState, fresh_rows
from storage.format.slab_header import decode_slab_header
from storage.format.superblock import Superblock
from storage.index import Index
from storage.limits import HEADER_MAX_BYTES
from storage.recovery.journal_scan import FoundJournal, JournalContent
from storage.recovery.live_row import put_live_row
from storage.recovery.pages import BadLine
from storage.recovery.reading import SPAN_BYTES, BlockReader
from storage.recovery.replay import REMOVES_KEY, CatalogueState, apply_rows, row_ids_of
from storage.recovery.report import RecoveryProgress, RecoveryReport, RepairSource, SkipReason

log = logging.getLogger("rawblockd.storage")

OF_KEY = [FreeReason.REPLACED, *REMOVES_KEY]
"""Reasons of free rows that speak of the key, not of the slot alone."""
FIRST_SEQ = 1
"""Seq of rows whose own seq died with the copies: at or below every seq the journal still holds."""


def rebuild_rows(
    reader: BlockReader,
    index: Index,
    superblock: Superblock,
    catalogue: CatalogueState,
    content: JournalContent,
    found: FoundJournal,
    report: RecoveryReport,
    progress: RecoveryProgress,
) -> tuple[list[BadLine], list[str]]:
    """Fill the table from headers and the flushed journal; returns lines to skip, and what of the slabs is lost.

    Slots for which an unflushed put waits are left to its proof (``storage.recovery.unflushed``).
    """
    rebuilder = Rebuilder(reader, index, superblock, progress)
    lost = rebuilder.find_slabs(catalogue)
    catalogue.install_slabs(index)
    rebuilder.scan()
    rebuilder.find_namespaces(catalogue)
    catalogue.install_namespaces(index)
    flushed = content.row_blocks <= found.flushed_through
    spoken_of, bad = apply_rows(index, content.rows[flushed])
    waiting = content.rows[~flushed]
    waiting_ids, _ = row_ids_of(index, waiting)
    slots = set(spoken_of.tolist()) | set(waiting_ids[waiting["state"] == SlotState.LIVE].tolist())
    digests = _keys_spoken_of(content.rows[flushed], found.complete_since)
    return bad + rebuilder.settle(slots, digests, max(found.complete_since, FIRST_SEQ), report), lost


def _keys_spoken_of(rows: Rows, complete_since: int) -> set[bytes]:
    """Digests of keys that were put or removed after ``complete_since``.

    Older rows are in the journal only because they were renewed for their slot's sake; and that a slot was set aside,
    released or retired says nothing of the key it once held, which may have been put elsewhere long before.
    """
    of_key = (rows["state"] == SlotState.LIVE) | ((rows["state"] == SlotState.FREE) & np.isin(rows["reason"], OF_KEY))
    of_key |= (rows["state"] == SlotState.QUARANTINED) & (rows["reason"] != QuarantineReason.SKIPPED)
    return {digest.tobytes() for digest in rows["digest"][of_key & (rows["seq"] > complete_since)]}


class Rebuilder:
    def __init__(self, reader: BlockReader, index: Index, superblock: Superblock, progress: RecoveryProgress) -> None:
        self._reader = reader
        self._index = index
        self._superblock = superblock
        self._geometry = superblock.geometry
        self._progress = progress
        self._found: list[tuple[int, RecordHeader]] = []
        self._damaged: list[BadLine] = []

    def find_slabs(self, catalogue: CatalogueState) -> list[str]:
        """Add to the catalogue the slabs only their headers know; returns what could not be read."""
        lost: list[str] = []
        for slab in range(self._geometry.slabs):
            if slab in catalogue.slabs:
                continue
            block = self._reader.block(self._geometry.slab_offset(slab))
            if block is None:
                lost.append(f"the header of slab {slab} can't be read")
                continue
            try:
                header = decode_slab_header(
                    block,
                    uuid=self._superblock.uuid,
                    secret=self._superblock.secret,
                    slab=slab,
                    classes=len(self._geometry.class_bytes),
                )
            except Undecodable as error:
                if any(block) and error.reason not in ("magic", "wrong_device"):
                    lost.append(f"the header of slab {slab} is damaged ({error.reason})")
                continue
            catalogue.slabs[slab] = SlabRecord(FIRST_SEQ, slab, header.slot_class, header.generation)
        return lost

    def scan(self) -> None:
        """Read the header of every slot of every owned slab."""
        table = self._index.table
        slabs = np.flatnonzero(table.slab_class != NO_CLASS).tolist()
        for done, slab in enumerate(slabs):
            self._progress.ratio = 0.4 + 0.4 * done / len(slabs)
            slot_class = int(table.slab_class[slab])
            slots = self._geometry.slots_per_slab(slot_class)
            row_ids = table.row_ids_of_slab(slab)
            table.lines[row_ids] = fresh_rows(self._index.seed, slab, slot_class, slots, int(table.slab_seq[slab]))
            self._scan_slab(slab, slot_class, row_ids.tolist())

    def _scan_slab(self, slab: int, slot_class: int, row_ids: list[int]) -> None:
        """Small slots together in one span, of large ones only the part a header may fill."""
        slot_bytes = self._geometry.class_bytes[slot_class]
        head_bytes = min(slot_bytes, round_up(HEADER_MAX_BYTES, self._geometry.block_bytes))
        per_span = max(1, SPAN_BYTES // slot_bytes) if slot_bytes <= 4 * head_bytes else 1
        for begin in range(0, len(row_ids), per_span):
            batch = row_ids[begin : begin + per_span]
            offset = self._geometry.slot_offset(slab, begin, slot_class)
            size = slot_bytes * len(batch) if per_span > 1 else head_bytes
            view, unreadable = self._reader.span(offset, size)
            for position, row_id in enumerate(batch):
                start = position * slot_bytes
                bad = start // self._geometry.block_bytes in unreadable
                self._note(row_id, slab, begin + position, view[start : start + head_bytes], unreadable=bad)

    def _note(self, row_id: int, slab: int, slot: int, head: memoryview, *, unreadable: bool) -> None:
        if unreadable:
            self._skip(row_id, SkipReason.UNREADABLE)
            return
        try:
            header = read_header(head, uuid=self._superblock.uuid, secret=self._superblock.secret)
        except Undecodable:
            if head[: len(MAGIC)] == MAGIC or self._sum_holds(head):
                self._skip(row_id, SkipReason.CHECKSUM)
            return
        table = self._index.table
        place = (slab, slot, int(table.slab_class[slab]), int(table.slab_generation[slab]))
        if (header.slab, header.slot, header.slot_class, header.generation) != place:
            return
        if header.digest != key_digest(self._superblock.secret, header.namespace_id, header.map.key):
            self._skip(row_id, SkipReason.HEADER_MISMATCH)
            return
        self._found.append((row_id, header))

    def _sum_holds(self, head: memoryview) -> bool:
        """A header whose magic alone is damaged still has the sum of its rest."""
        units = int.from_bytes(head[RECORD.offsets["header_units"] :][:2], "little")
        size = units * HEADER_UNIT_BYTES
        if not RECORD.size_bytes <= size <= len(head):
            return False
        start = RECORD.offsets["version"]
        return bytes(head[8:start]) == keyed_sum(self._superblock.secret, head[start:size])

    def _skip(self, row_id: int, reason: SkipReason) -> None:
        page = self._index.table.page_of(row_id)
        self._damaged.append(BadLine(row_id, -1, page, reason, bytes(64)))

    # -- verdicts -------------------------------------------------------------------------------------------------

    def find_namespaces(self, catalogue: CatalogueState) -> None:
        """Names and ids from the record headers, with the default settings, where the journal, which names them all, is
        lost.

        Of two ids with one name the older one has it: the other is of an import that was never committed, or its
        commit was lost with the journal.
        """
        taken = {record.name for record in catalogue.namespaces.values() if "im" not in record.settings}
        for _, header in sorted(self._found, key=lambda found: found[1].namespace_id):
            if header.namespace_id in catalogue.namespaces or header.namespace_id in catalogue.wiped:
                continue
            if header.map.namespace in taken:
                catalogue.wiped[header.namespace_id] = FIRST_SEQ
            else:
                taken.add(header.map.namespace)
                record = NamespaceRecord(FIRST_SEQ, header.namespace_id, header.map.namespace, {})
                catalogue.namespaces[header.namespace_id] = record
                catalogue.next_namespace_id = max(catalogue.next_namespace_id, header.namespace_id + 1)

    def settle(self, spoken_of: set[int], known_digests: set[bytes], seq: int, report: RecoveryReport) -> list[BadLine]:
        """Make live what headers prove; returns the lines that must be skipped.

        ``spoken_of`` are row ids and ``known_digests`` keys that the journal speaks of: it decides about them.
        """
        taken: set[bytes] = set()
        for row_id, header in sorted(self._found, key=lambda item: -item[1].write_id):
            if row_id in spoken_of:
                continue
            wiped = header.namespace_id in self._index.namespaces.wiped
            if wiped or header.digest in known_digests or header.digest in taken:
                report.superseded += 1
                report.stale_headers.append(row_id)
                continue
            taken.add(header.digest)
            self._put_live(row_id, header, seq)
            report.repaired[RepairSource.RECORD_HEADER] += 1
        skipped = [line for line in self._damaged if line.row_id not in spoken_of]
        for line in skipped:
            self._index.table.lines[line.row_id] = np.zeros((), dtype=self._index.table.lines.dtype)
        return skipped

    def _put_live(self, row_id: int, header: RecordHeader, seq: int) -> None:
        put_live_row(self._index, row_id, header, header.slot_class, seq, max(seq, FIRST_SEQ))
