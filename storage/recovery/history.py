"""What the journal tells of the time before this start: events for clients that come back.

The journal holds every row since the oldest copy, in seqs without a hole; a compaction drops rows and so makes one.
The longest run without a hole that ends with the last seq is the history. Rows that an earlier start corrected, because
they were not proven, are told too: the first row of a slot that frees something else than what it held says that what
it held is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from storage.announcing import RowReader, fields_of, skipped_event
from storage.events import DELETED, IMPORTED, STORED, TOO_FAR_BEHIND, UNKNOWN_LOSS, WIPED, Event, History
from storage.format.catalogue import (
    CatalogueRecord,
    NamespaceRecord,
    NamespaceWipedRecord,
    PartialRecord,
    RestoredRecord,
    SkippedRecord,
    StartRecord,
)
from storage.format.row import ROW_STRUCT, Row, Rows, SlotState, plausible
from storage.index import Index
from storage.journal import JournalPosition
from storage.namespace_settings import decode_settings
from storage.recovery.journal_scan import FoundJournal, JournalContent
from storage.recovery.replay import row_ids_of

HISTORY_MAX = 65536
"""Seqs looked at: more than the default feed keeps. 0.2 s."""

RECOVERY = "recovery"
_Held = dict[int, tuple[int, int]]
"""Row id → namespace id and write id of the entry that the journal last put there."""


def read_history(
    index: Index, content: JournalContent, found: FoundJournal, corrections: Iterable[int], position: JournalPosition
) -> History:
    """The events before this start, at ``position``, that the journal still tells. The index is recovered already."""
    reader = _HistoryReader(index, content)
    next_seq = position.next_seq
    history = History(starts=_starts(content, found, position))
    # A start leaves room for the seqs of lost blocks; where those lie before the end, none is missing at the end.
    room = len(found.missing) * index.geometry.block_bytes
    ends_whole = not found.missing or (bool(found.chain) and found.chain[-1].number > found.missing[-1])
    history.floor = reader.floor(next_seq - 1 - room) if ends_whole else next_seq
    rows, records = reader.window(history.floor)
    held = reader.held_before(history.floor, [*corrections, *reader.restated(_start_blocks(content, found))])
    reader.walk(history, rows, records, held)
    for row_id in corrections:
        if row_id in held:
            namespace_id, write_id = held[row_id]
            row = index.table.row(row_id)
            if row.state != SlotState.LIVE or row.write_id != write_id:
                history.lost[row_id] = (reader.names.get(namespace_id, ""), write_id)
    return history


def nothing_known(position: JournalPosition) -> History:
    """After a loss of unknown extent: nobody's index can be trusted, though it ends with the last seq that is left."""
    return History(floor=position.next_seq, reason=UNKNOWN_LOSS, starts=[(1, 0)])


def _starts(content: JournalContent, found: FoundJournal, position: JournalPosition) -> list[tuple[int, int]]:
    """Start count and first seq of each start of which it is known where it ends, ascending.

    The chain's first start is one of them, and the one before it if the chain has the first's very beginning.
    """
    if not found.chain:  # all of it is in the copies: what the last start wrote ends where this one begins
        return [(position.start_count - 1, 0)]
    first = found.chain[0]
    begun = {record.start_count: record.seq for _, record in content.records if isinstance(record, StartRecord)}
    whole = any(isinstance(r, StartRecord) and block == first.number for block, r in content.records)
    if not whole:
        begun[first.start_count] = 0
    return [*([(first.start_count - 1, 0)] if whole else []), *sorted(begun.items())]


def _start_blocks(content: JournalContent, found: FoundJournal) -> list[int]:
    """Numbers of the blocks with what starts wrote before they served: a flush ends it, so no block of it is past one.

    Among their rows are those that correct what had not arrived.
    """
    begun = {r.start_count: block for block, r in content.records if isinstance(r, StartRecord)}
    return [h.number for h in found.chain if h.flushed_through < begun.get(h.start_count, 0) <= h.number]


class _HistoryReader:
    def __init__(self, index: Index, content: JournalContent) -> None:
        self._index = index
        self._rows, self._blocks = content.rows, content.row_blocks
        self._records = {record.seq: record for _, record in content.records}
        self.names = {n.namespace_id: n.name for n in index.namespaces.by_id.values()}
        """Namespaces whose rows say something, by id."""
        self.names |= {r.namespace_id: r.name for _, r in content.records if isinstance(r, NamespaceRecord)}
        self._wiped: set[int] = set()
        # What an import gathers is nobody's until a second record binds it.
        self._importing = {n.namespace_id for n in index.namespaces.importing()}
        self._importing |= {
            r.namespace_id for _, r in content.records if isinstance(r, NamespaceRecord) and is_import(r)
        }
        for namespace_id in self._importing:
            self.names.pop(namespace_id, None)

    def floor(self, last_seq: int) -> int:
        """The seq behind which nothing is missing up to ``last_seq``."""
        oldest = last_seq - HISTORY_MAX
        seqs = self._rows["seq"]
        recent = seqs[(seqs > max(0, oldest)) & (seqs <= last_seq)].tolist()
        recent += [seq for seq in self._records if seq > oldest]
        known = np.unique(np.array(recent, dtype=np.uint64))
        if not len(known) or int(known[-1]) != last_seq:
            return last_seq
        holes = np.flatnonzero(np.diff(known) != 1)
        return int(known[holes[-1] + 1 if len(holes) else 0]) - 1

    def window(self, floor: int) -> tuple[Rows, list[CatalogueRecord]]:
        """Rows, each once, and records after ``floor``, in order."""
        rows = self._rows[self._rows["seq"] > floor]
        _, unique = np.unique(rows["seq"], return_index=True)
        for seq in sorted(self._records):
            if seq <= floor:
                self._bind(self._records[seq])
        return rows[unique], [self._records[seq] for seq in sorted(self._records) if seq > floor]

    def row_ids(self, rows: Rows) -> npt.NDArray[np.int64]:
        """0 for rows whose place the device does not have."""
        return row_ids_of(self._index, rows)[0]

    def restated(self, blocks: list[int]) -> list[int]:
        """Row ids that the rows of some blocks speak of."""
        if not blocks:
            return []
        return [int(row_id) for row_id in self.row_ids(self._rows[np.isin(self._blocks, blocks)])]

    def held_before(self, floor: int, row_ids: list[int]) -> _Held:
        """What some slots held at ``floor``, as far as the journal reaches."""
        if not row_ids:
            return {}
        slabs = {self._index.table.place_of(row_id)[0] for row_id in row_ids if row_id}
        rows = self._rows[np.isin(self._rows["slab"], list(slabs))]
        rows = rows[rows["seq"] <= floor]
        places = self.row_ids(rows)
        wanted = np.isin(places, np.unique(np.array(row_ids, dtype=np.int64)))
        rows, places = rows[wanted], places[wanted]
        order = np.lexsort((rows["seq"], places))
        rows, places = rows[order], places[order]
        newest = np.append(places[1:] != places[:-1], True) if len(places) else np.empty(0, dtype=bool)
        held: _Held = {}
        for row_id, line in zip(places[newest].tolist(), rows[newest], strict=True):
            _note(held, row_id, Row._make(ROW_STRUCT.unpack(line.tobytes())))
        return held

    def walk(self, history: History, rows: Rows, records: list[CatalogueRecord], held: _Held) -> None:
        """Tell rows and records in order; ``held`` moves along."""
        restored = {record.seq - 1 for record in records if isinstance(record, RestoredRecord)}
        said: set[bytes] = set()
        reader = RowReader()
        for seq, row_id, line, record in _merged(rows, self.row_ids(rows), records):
            if record is not None:
                self._tell_record(history, record, said)
                continue
            row = Row._make(ROW_STRUCT.unpack(line))
            if plausible(row):
                lost = held.get(row_id)
                _note(held, row_id, row)
                if lost is not None and row.state != SlotState.QUARANTINED and row.write_id != lost[1]:
                    self._tell_lost(history, row, lost)
                    continue
                name = self.names.get(row.namespace_id)
                event = reader.event(fields_of(line), name, RECOVERY if seq in restored else "") if name else None
                if event is not None:
                    history.events.append(event)

    def _tell_lost(self, history: History, row: Row, lost: tuple[int, int]) -> None:
        """A start found that what the slot held had not arrived."""
        name = self.names.get(lost[0], "")
        if row.state == SlotState.LIVE:
            history.events.append(
                Event(row.seq, STORED, name, row.write_id, RECOVERY, lost[1], row.payload_bytes, row.expires_at)
            )
        elif name:
            history.events.append(Event(row.seq, DELETED, name, lost[1], RECOVERY, slab=row.slab, slot=row.slot))

    def _tell_record(self, history: History, record: CatalogueRecord, said: set[bytes]) -> None:
        """``said`` are the raw rows of skipped entries told already: a compaction repeats them."""
        if isinstance(record, NamespaceWipedRecord):
            self._tell_wiped(history, record)
        elif isinstance(record, NamespaceRecord):
            if self._bind(record):
                history.events.append(Event(record.seq, IMPORTED, record.name))
        elif isinstance(record, PartialRecord) and record.unknown_loss:
            _cut(history, record.seq, UNKNOWN_LOSS)
        elif isinstance(record, SkippedRecord) and record.raw not in said:
            said.add(record.raw)
            event = skipped_event(record, self._index.seed, lambda number: self.names.get(number, ""))
            if event is None:
                _cut(history, record.seq, UNKNOWN_LOSS)
            else:
                history.events.append(event)

    def _bind(self, record: CatalogueRecord) -> bool:
        """True for the record that makes what an import gathered somebody's."""
        if not isinstance(record, NamespaceRecord) or is_import(record) or record.namespace_id not in self._importing:
            return False
        self._importing.discard(record.namespace_id)
        self.names[record.namespace_id] = record.name
        return True

    def _tell_wiped(self, history: History, record: NamespaceWipedRecord) -> None:
        if record.namespace_id in self._wiped:
            return
        self._wiped.add(record.namespace_id)
        if record.namespace_id in self._importing:
            return  # an import that was given up
        name = self.names.pop(record.namespace_id, None)  # from now on its rows say nothing more
        if name is None:
            _cut(history, record.seq, TOO_FAR_BEHIND)
        else:
            history.events.append(Event(record.seq, WIPED, name))


def is_import(record: NamespaceRecord) -> bool:
    return decode_settings(record.settings).importing


def _note(held: _Held, row_id: int, row: Row) -> None:
    if row.state == SlotState.LIVE:
        held[row_id] = (row.namespace_id, row.write_id)
    else:
        held.pop(row_id, None)


def _cut(history: History, seq: int, reason: str) -> None:
    history.events.clear()
    history.floor, history.reason = seq, reason


def _merged(
    rows: Rows, row_ids: npt.NDArray[np.int64], records: list[CatalogueRecord]
) -> Iterator[tuple[int, int, bytes, CatalogueRecord | None]]:
    """Rows and records by seq: seq, row id, encoded row, record."""
    waiting = iter(records)
    record = next(waiting, None)
    for row_id, seq, line in zip(row_ids.tolist(), rows["seq"].tolist(), rows, strict=True):
        while record is not None and record.seq < seq:
            yield record.seq, 0, b"", record
            record = next(waiting, None)
        yield seq, row_id, line.tobytes(), None
    while record is not None:
        yield record.seq, 0, b"", record
        record = next(waiting, None)
