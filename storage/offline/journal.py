"""The journal judged strictly: the chain since each copy, every row and every record in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from storage.format.checkpoint_copy import CopyHeader
from storage.format.geometry import LINE_BYTES, Geometry
from storage.format.journal_block import JOURNAL, JournalHeader, catalogue_records, decode_journal_header
from storage.format.layout import Undecodable
from storage.format.row import ROW_DTYPE, checksums_of, implausible_of
from storage.offline.findings import Damage, Findings
from storage.offline.opening import OpenCache
from storage.offline.pages import UNREADABLE, Mask
from storage.recovery.copies import FoundCopy
from storage.recovery.journal_scan import FoundJournal, find_chain, read_ring
from storage.recovery.reading import SPAN_BYTES
from storage.recovery.report import RecoveryProgress


@dataclass(slots=True)
class Chain:
    """The journal since the oldest valid copy. ``history_missing`` are lost blocks that only older copies need."""

    found: FoundJournal
    headers: list[JournalHeader] = field(default_factory=list)
    history_missing: list[int] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        return self.history_missing + self.found.missing

    @property
    def rows(self) -> int:
        return sum(header.rows for header in self.headers)


def read_chain(cache: OpenCache, valid: list[FoundCopy]) -> Chain:
    """The chain as a recovery finds it: from the newest of the valid copies, and what older copies need of it.

    Without a copy it begins at the tail that the newest block names.
    """
    ring = read_ring(cache.reader, cache.geometry, cache.uuid, RecoveryProgress())
    headers = [copy.header for copy in valid if copy.header is not None]
    if not headers:
        newest_block = max(ring.valid.values(), key=lambda block: (block.start_count, block.number), default=None)
        first = newest_block.tail if newest_block is not None else 1
        found = find_chain(ring, cache.geometry, first=first, known_flushed=first - 1)
        return Chain(found, list(found.chain))
    newest = max(headers, key=_number)
    first = newest.journal_block
    found = find_chain(ring, cache.geometry, first=first, known_flushed=first - 1)
    chain = Chain(found, list(found.chain))
    # Blocks before the tail were given up on purpose, whatever an older copy would have liked.
    oldest = min(header.journal_block for header in headers)
    oldest = max(oldest, found.tail if found.chain else newest.tail)
    if oldest < first:
        history = find_chain(ring, cache.geometry, first=oldest, known_flushed=first - 1)
        chain.history_missing = [number for number in history.missing if number < first]
        chain.headers = [header for header in history.chain if header.number < first] + chain.headers
    return chain


def _number(header: CopyHeader) -> int:
    return header.number


def check_chain(cache: OpenCache, chain: Chain, seed: int, findings: Findings) -> None:
    """Blocks that are missing, and rows and records of the others that were written wrong."""
    for number in chain.missing:
        findings.add(Damage.JOURNAL_BLOCK, f"journal block {number}", _why_missing(cache, number))
    geometry = cache.geometry
    size = geometry.block_bytes
    for run in runs_of_blocks(geometry, chain.headers):
        view, _ = cache.reader.span(geometry.journal_block_offset(run[0].number), len(run) * size)
        lines = np.frombuffer(view, dtype=ROW_DTYPE).reshape(len(run), size // LINE_BYTES)
        _check_rows(geometry, run, lines, seed, findings)
        for position, header in enumerate(run):
            if header.catalogue_bytes:
                _check_records(view[position * size : (position + 1) * size], header, findings)


def _why_missing(cache: OpenCache, number: int) -> str:
    """Why the block is not where it should be; ``replaced`` if another one, which verifies, stands there."""
    block = cache.reader.block(cache.geometry.journal_block_offset(number))
    if block is None:
        return UNREADABLE
    ring = cache.geometry.journal_blocks
    try:
        header = decode_journal_header(block, cache.uuid, position=number % ring, journal_blocks=ring)
    except Undecodable as error:
        return error.reason
    return "does not follow its predecessor" if header.number == number else f"replaced by block {header.number}"


def _check_rows(geometry: Geometry, run: list[JournalHeader], lines: np.ndarray, seed: int, findings: Findings) -> None:
    counts = np.array([header.rows for header in run])
    first = JOURNAL.size_bytes // LINE_BYTES
    positions = np.arange(lines.shape[1])
    used = (positions >= first) & (positions < first + counts[:, None])
    rows = lines[used]
    blocks = np.repeat([header.number for header in run], counts)
    wrong: Mask = (rows["checksum"] != checksums_of(seed, rows)) | implausible_of(rows)
    wrong |= (rows["slab"] >= geometry.slabs) | (rows["slot"] >= geometry.slots_per_slab_max)
    wrong |= rows["slot_class"] >= len(geometry.class_bytes)
    for index in np.flatnonzero(wrong).tolist():
        place = f"slab {rows['slab'][index]} slot {rows['slot'][index]}"
        findings.add(Damage.JOURNAL_ROW, f"journal block {blocks[index]}", f"invalid row for {place}")


def _check_records(block: memoryview, header: JournalHeader, findings: Findings) -> None:
    try:
        catalogue_records(block, header)
    except Undecodable as error:
        findings.add(Damage.JOURNAL_RECORD, f"journal block {header.number}", str(error))


def runs_of_blocks(geometry: Geometry, chain: list[JournalHeader]) -> Iterator[list[JournalHeader]]:
    """Blocks of the chain that lie behind one another on the device, at most a span of them together."""
    longest = SPAN_BYTES // geometry.block_bytes
    run: list[JournalHeader] = []
    for header in chain:
        wraps = header.number % geometry.journal_blocks == 0
        if run and (header.number != run[-1].number + 1 or wraps or len(run) >= longest):
            yield run
            run = []
        run.append(header)
    if run:
        yield run
