"""What lies where on a closed device: the same reading that a start does, kept to aim by."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.format.checkpoint_copy import CopyHeader
from storage.format.geometry import Geometry
from storage.format.journal_block import JournalHeader, row_lines
from storage.format.layout import Undecodable
from storage.format.record import read_header
from storage.format.row import Row, SlotState, decode_row
from storage.format.superblock import Superblock
from storage.limits import HEADER_MAX_BYTES
from storage.recovery.copies import FoundCopy, read_copies
from storage.recovery.journal_scan import FoundJournal, find_chain, read_ring
from storage.recovery.reading import BlockReader
from storage.recovery.recover import Recovered, RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress
from storage.torture.closed_device import ClosedDevice


@dataclass(frozen=True, slots=True)
class Survey:
    """``journal`` is the chain behind the newest copy, ``valid`` every block of the ring that verifies, by number."""

    superblock: Superblock
    copies: list[FoundCopy]
    journal: FoundJournal
    valid: Mapping[int, JournalHeader]
    recovered: Recovered

    @property
    def geometry(self) -> Geometry:
        return self.superblock.geometry

    @property
    def newest(self) -> CopyHeader:
        return max((_header(copy) for copy in self.copies if copy.valid), key=lambda header: header.number)

    @property
    def target(self) -> int:
        """The copy that the next checkpoint overwrites."""
        return min(self.copies, key=lambda copy: _header(copy).number if copy.valid else 0).copy

    @property
    def flushed_through(self) -> int:
        """The highest journal block that is known to be flushed."""
        return max(self.newest.journal_block - 1, self.recovered.position.flushed_through)

    def rows(self, state: SlotState) -> list[tuple[int, Row]]:
        """Row id and row of every slot in that state."""
        table = self.recovered.index.table
        row_ids = table.row_ids()
        return [(int(r), table.row(int(r))) for r in row_ids[table.lines["state"][row_ids] == state]]

    def slot_offset(self, row_id: int) -> int:
        return self.recovered.index.table.slot_offset(row_id)

    def pages_written(self) -> list[int]:
        """Pages that the newest copy holds."""
        return [int(page) for page in np.flatnonzero(self._page_seqs(self.newest.copy) > 0)]

    def pages_behind(self, copy: int) -> list[int]:
        """Pages that the newest copy has in a newer state: a checkpoint into ``copy`` writes these for certain."""
        return [int(page) for page in np.flatnonzero(self._page_seqs(self.newest.copy) > self._page_seqs(copy))]

    def _page_seqs(self, copy: int) -> npt.NDArray[np.uint64]:
        """The seq of each page as the copy's directory says; 0 if the copy can't be used."""
        found = self.copies[copy]
        if not found.valid or found.directory is None:
            return np.zeros(self.geometry.pages, dtype=np.uint64)
        seqs: npt.NDArray[np.uint64] = found.directory["seq"]
        return seqs


def survey(closed: ClosedDevice) -> Survey:
    """Raises what a recovery raises: an undamaged device is surveyed, before it is harmed."""
    recovered = recover(closed.device, RecoveryLimits(), RecoveryProgress(), time.time())
    superblock = recovered.superblock
    geometry = superblock.geometry
    reader = BlockReader(closed.device, geometry.block_bytes)
    try:
        copies = read_copies(reader, geometry, superblock.uuid)
        ring = read_ring(reader, geometry, superblock.uuid, RecoveryProgress())
        first = max((_header(copy).journal_block for copy in copies if copy.valid), default=1)
        journal = find_chain(ring, geometry, first=first, known_flushed=first - 1)
    finally:
        reader.close()
    return Survey(superblock, copies, journal, ring.valid, recovered)


def rows_of_block(closed: ClosedDevice, found: Survey, header: JournalHeader) -> list[Row]:
    geometry = found.geometry
    block = memoryview(closed.read(geometry.journal_block_offset(header.number), geometry.block_bytes))
    lines = bytes(row_lines(block, header))
    return [decode_row(found.recovered.index.seed, lines[at : at + 64]) for at in range(0, len(lines), 64)]


def write_id_in_slot(closed: ClosedDevice, found: Survey, row: Row) -> int:
    """The write id of the record header in a row's slot; 0 if none verifies there."""
    geometry = found.geometry
    offset = geometry.slot_offset(row.slab, row.slot, row.slot_class)
    size = min(HEADER_MAX_BYTES, geometry.class_bytes[row.slot_class])
    try:
        header = read_header(
            memoryview(closed.read(offset, size)), uuid=found.superblock.uuid, secret=found.superblock.secret
        )
    except Undecodable:
        return 0
    return header.write_id


def _header(copy: FoundCopy) -> CopyHeader:
    assert copy.header is not None
    return copy.header
