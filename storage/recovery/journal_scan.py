"""Reading the journal: which blocks belong to it, where it ends, and whether anything is missing.

The ring is read once; each block that verifies is noted by its number. Then the chain is walked from the block the
oldest usable copy names. Where it breaks, one question decides (R3): was that block known to be flushed? If so, a
part of the journal is lost (a gap, a loss of unknown extent) and the walk goes on behind it; if not, it is the tail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.format.catalogue import CatalogueRecord
from storage.format.geometry import Geometry
from storage.format.journal_block import (
    JOURNAL_DTYPE,
    JournalHeader,
    catalogue_records,
    decodable,
    decode_journal_header,
    row_lines,
)
from storage.format.layout import Defect, Undecodable
from storage.format.row import ROW_DTYPE, Rows
from storage.recovery.reading import SPAN_BYTES, BlockReader
from storage.recovery.report import RecoveryProgress


@dataclass(slots=True)
class FoundJournal:
    """``chain`` are the headers of the blocks that count, ascending by number."""

    chain: list[JournalHeader] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Numbers of blocks at or below ``flushed_through`` that are gone."""
    torn: bool = False
    """Something unfinished lies behind the end."""
    dropped: list[JournalHeader] = field(default_factory=list)
    """Blocks of the newest start that lie behind a hole in the unflushed tail."""
    flushed_through: int = 0
    complete_since: int = 0
    tail: int = 1
    start_count: int = 0
    last_block: int = 0
    last_checksum: int = 0

    def verdict(self) -> str:
        if self.missing:
            return "gap"
        return "torn_tail" if self.torn else "clean"


class RingBlocks(Mapping[int, JournalHeader]):
    """The ring's valid blocks by number: 56 bytes for each place of the ring that was ever written. A header is made
    when it is asked for; most of a ring are blocks that nobody needs any more."""

    def __init__(self, journal_blocks: int) -> None:
        self._columns = np.zeros(journal_blocks, dtype=[(name, JOURNAL_DTYPE[name]) for name in JournalHeader._fields])

    def add(self, positions: npt.NDArray[np.int64], headers: npt.NDArray[np.void]) -> None:
        """Blocks at places of the ring."""
        self._columns[positions] = headers

    def __getitem__(self, number: int) -> JournalHeader:
        line = self._columns[number % len(self._columns)]
        if number < 1 or line["number"] != number:
            raise KeyError(number)
        return JournalHeader(*line.item())

    def __iter__(self) -> Iterator[int]:
        numbers = self._columns["number"]
        yield from numbers[numbers > 0].tolist()

    def __len__(self) -> int:
        return int(np.count_nonzero(self._columns["number"]))

    def since(self, first: int) -> dict[int, JournalHeader]:
        """The blocks from number ``first`` on."""
        lines = self._columns[self._columns["number"] >= max(first, 1)]
        return {line[_NUMBER]: JournalHeader(*line) for line in lines.tolist()}

    @property
    def start_count(self) -> int:
        """The highest of all blocks."""
        return int(self._columns["start_count"].max())


_NUMBER = JournalHeader._fields.index("number")


@dataclass(slots=True)
class Ring:
    """What lies in the journal's area. ``is_damaged`` says of a position without a valid block whether it is blank."""

    valid: RingBlocks
    is_damaged: Callable[[int], bool]


def find_chain(ring: Ring, geometry: Geometry, *, first: int, known_flushed: int) -> FoundJournal:
    """The chain from block ``first`` on; blocks up to ``known_flushed`` were flushed by a checkpoint."""
    valid = ring.valid
    found = FoundJournal(flushed_through=known_flushed)
    needed = valid.since(first)
    found.start_count = valid.start_count
    flushed = max((h.flushed_through for h in needed.values()), default=0)
    found.flushed_through = max(flushed, known_flushed)
    number, previous = first, valid.get(first - 1)
    while True:
        header = needed.get(number)
        if header is not None and _follows(header, previous, found):
            found.chain.append(header)
            previous = header
        elif number <= found.flushed_through:
            found.missing.append(number)
            previous = None
        else:
            break
        number += 1
    newest = found.chain[-1] if found.chain else None
    _look_behind(found, needed, ring, number, newest, geometry)
    if newest is not None:
        found.tail, found.complete_since = newest.tail, newest.complete_since
        found.last_block, found.last_checksum = newest.number, newest.checksum
        # A compaction gave up what lies before the tail: it is not missed.
        found.missing = [number for number in found.missing if number >= found.tail]
    if found.missing and found.missing[-1] > found.last_block:
        # The chain ends in lost blocks: go on behind them, without a predecessor to prove.
        found.last_block, found.last_checksum = found.missing[-1], 0
    if not found.chain and not found.missing:
        found.last_block = first - 1
        before = valid.get(first - 1)
        found.last_checksum = before.checksum if before is not None else 0
    return found


def _follows(header: JournalHeader, previous: JournalHeader | None, found: FoundJournal) -> bool:
    if previous is None:
        return not found.chain or header.start_count >= found.chain[-1].start_count
    return header.previous == previous.checksum and header.start_count >= previous.start_count


def _look_behind(
    found: FoundJournal,
    needed: dict[int, JournalHeader],
    ring: Ring,
    end: int,
    newest: JournalHeader | None,
    geometry: Geometry,
) -> None:
    """Blocks of the newest start behind the end, or a block there that does not verify, make the tail a torn one."""
    start_count = newest.start_count if newest is not None else found.start_count
    behind = [h for n, h in needed.items() if n >= end and h.start_count == start_count]
    # A block that follows a failed write's place may be of this start and yet not of the chain; it never was accepted.
    found.dropped = sorted((h for h in behind if h.number > end), key=lambda h: h.number)
    found.torn = bool(behind) or (end not in ring.valid and ring.is_damaged(end % geometry.journal_blocks))


def read_ring(reader: BlockReader, geometry: Geometry, uuid: bytes, progress: RecoveryProgress) -> Ring:
    """Read the whole ring once. Raises DeviceGone."""
    valid = RingBlocks(geometry.journal_blocks)
    size = geometry.block_bytes
    position = 0
    with contextlib.closing(reader.spans(geometry.journal_offset, geometry.journal_bytes)) as spans:
        for view, _ in spans:
            good, headers = decodable(view, size, uuid, position=position, journal_blocks=geometry.journal_blocks)
            valid.add(position + np.flatnonzero(good), headers[good])
            position += len(view) // size
            progress.ratio = 0.3 * position / geometry.journal_blocks
    return Ring(valid, lambda position: _is_damaged(reader, geometry, uuid, position))


def _is_damaged(reader: BlockReader, geometry: Geometry, uuid: bytes, position: int) -> bool:
    """Whether something else than a blank or valid block, of this cache or one that was here before, lies there."""
    block = reader.block(geometry.journal_offset + position * geometry.block_bytes)
    if block is None:
        return True
    if not any(block):
        return False
    try:
        decode_journal_header(block, uuid, position=position, journal_blocks=geometry.journal_blocks)
    except Undecodable as error:
        return error.reason != Defect.WRONG_DEVICE
    return False


@dataclass(slots=True)
class JournalContent:
    """Rows of the chain in the order of the journal, the block of each, and the catalogue records with theirs."""

    rows: Rows
    row_blocks: np.ndarray[tuple[int], np.dtype[np.int64]]
    records: list[tuple[int, CatalogueRecord]]

    def rows_through(self, block: int) -> Rows:
        """The rows of the blocks up to this one, without a copy."""
        return self.rows[: int(np.searchsorted(self.row_blocks, block, side="right"))]


def read_content(
    reader: BlockReader, geometry: Geometry, chain: list[JournalHeader], progress: RecoveryProgress
) -> JournalContent:
    """Rows and records of the chain. Raises Undecodable: a block that verifies yet does not decode is a bug."""
    total = sum(header.rows for header in chain)
    rows = np.zeros(total, dtype=ROW_DTYPE)
    blocks = np.zeros(total, dtype=np.int64)
    records: list[tuple[int, CatalogueRecord]] = []
    lines = rows.view(np.uint8).data if total else memoryview(bytearray())
    position = 0
    done = 0
    for run in _ring_runs(geometry, chain):
        size = geometry.block_bytes
        view, _ = reader.span(geometry.journal_block_offset(run[0].number), len(run) * size)
        for index, header in enumerate(run):
            block = view[index * size : (index + 1) * size]
            content = row_lines(block, header)
            lines[position * 64 : position * 64 + len(content)] = content
            blocks[position : position + header.rows] = header.number
            position += header.rows
            if header.catalogue_bytes:
                records += [(header.number, record) for record in catalogue_records(block, header)]
        done += len(run)
        progress.ratio = 0.3 + 0.2 * done / len(chain)
    return JournalContent(rows, blocks, records)


def _ring_runs(geometry: Geometry, chain: list[JournalHeader]) -> Iterator[list[JournalHeader]]:
    """Blocks that lie behind one another on the device, at most a span of them together."""
    longest = SPAN_BYTES // geometry.block_bytes
    run: list[JournalHeader] = []
    for header in chain:
        ring = geometry.journal_blocks
        if run and (header.number != run[-1].number + 1 or header.number % ring == 0 or len(run) >= longest):
            yield run
            run = []
        run.append(header)
    if run:
        yield run
