"""The check: everything on the device verified, nothing written; ends with a verdict and exact counts.

=======  ====================================================================================================
step     what is verified
=======  ====================================================================================================
1        both superblocks, and that they tell the same
2        of each copy: header, directory, catalogue; each page against its directory; each row strictly
3        the journal since the oldest copy: no block missing, each row and record strictly
4        what a recovery would do: which entries it would skip, whether it would refuse
5        the state it would make: A1, A2, keys held twice, slots that overlap, quarantined slots
6        the header of each slab against the catalogue
7        of each live entry the record header against its row; with ``payloads`` each payload checksum
=======  ====================================================================================================
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storage.errors import FormatUnsupported
from storage.format.checkpoint_copy import DIRECTORY_MAGIC, STREAM, decode_stream
from storage.format.geometry import NO_CLASS
from storage.format.layout import Defect, Undecodable
from storage.format.row import SlotState, seed_of
from storage.format.slab_header import SlabHeader, decode_slab_header
from storage.format.superblock import decode_superblock
from storage.identity import Identity
from storage.offline.findings import Damage, Finding, Findings, Note
from storage.offline.journal import check_chain, read_chain
from storage.offline.opening import OpenCache, opened
from storage.offline.pages import STALE, UNREADABLE, PageSpan, invalid_rows, read_span, runs_of
from storage.offline.records import RecordScan
from storage.offline.state import check_state, live_row_ids, recovered_state
from storage.recovery.copies import FoundCopy, read_copies
from storage.recovery.errors import RecoveryRefused
from storage.recovery.recover import Recovered

Advance = Callable[[float, str], None]

RECORDS_STEP = 4096
"""Records verified between two reports of progress."""

_PARTS = {
    "header": Damage.COPY_HEADER,
    "directory": Damage.COPY_DIRECTORY,
    "catalogue": Damage.COPY_CATALOGUE,
}


@dataclass(slots=True)
class CheckReport:
    """``damage`` and ``notes`` count every kind, also those that were not found; ``findings`` lists the first ones.

    ``held``: a daemon had the device, so that what was found may have been a moment's.
    """

    device: str
    uuid: str
    verdict: str
    held: bool
    payloads_checked: bool
    entries: int = 0
    damage: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)
    """What a start would report; empty if no state can be recovered at all."""
    refusal: str = ""
    findings: list[Finding] = field(default_factory=list)
    findings_not_listed: int = 0

    @property
    def damaged(self) -> bool:
        """Whether anything is not as it should be, repairable or not."""
        return self.verdict != "clean"


def check(
    path: str,
    payloads: bool = False,
    progress: Advance = lambda _ratio, _step: None,
    clock: Callable[[], float] = time.time,
) -> CheckReport:
    """Verify the cache on ``path``. ``progress`` is told the ratio done (0 to 1) and the step.

    Raises as ``opened`` if there is no cache to check, DeviceGone if the device fails.
    """
    with opened(path) as cache:
        return _Check(cache, payloads, progress, clock).run()


class _Check:
    def __init__(self, cache: OpenCache, payloads: bool, progress: Advance, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._geometry = cache.geometry
        self._payloads = payloads
        self._progress = progress
        self._clock = clock
        self._findings = Findings()
        self._seed = seed_of(cache.uuid)

    def run(self) -> CheckReport:
        self._progress(0.0, "superblocks")
        self._superblocks()
        copies = self._copies()
        valid = [copy for copy in copies if copy.valid]
        for copy in valid:
            self._pages(copy, valid)
        self._progress(0.4, "journal")
        chain = read_chain(self._cache, valid)
        check_chain(self._cache, chain, self._seed, self._findings)
        self._findings.note(Note.TORN_TAIL, int(chain.found.torn))
        self._findings.note(Note.DROPPED_BLOCK, len(chain.found.dropped))
        recovered = self._recover()
        if recovered is not None:
            check_state(recovered.index, self._findings)
            self._slabs(recovered)
            self._records(recovered)
        self._progress(1.0, "done")
        return self._report(recovered)

    # -- superblocks and copies -----------------------------------------------------------------------------------

    def _superblocks(self) -> None:
        for place, verdict in zip(("first", "last"), self._cache.superblock_verdicts, strict=True):
            if verdict != "valid":
                self._findings.add(Damage.SUPERBLOCK, f"{place} superblock", verdict)
        if self._cache.superblock_verdicts == ["valid", "valid"]:
            self._compare_superblocks()

    def _compare_superblocks(self) -> None:
        """A crash between the two writes of a start leaves different start counts, nothing else."""
        places = []
        for place, offset_bytes in enumerate(self._geometry.superblock_offsets):
            block = self._cache.reader.block(offset_bytes)
            if block is None:
                return  # readable a moment ago: a device in use, or one that begins to fail
            try:
                places.append(dataclasses.replace(decode_superblock(block, place), start_count=0))
            except Undecodable:
                return
        if places[0] != places[1]:
            self._findings.add(Damage.SUPERBLOCK, "last superblock", "differs from the first one")

    def _copies(self) -> list[FoundCopy]:
        self._progress(0.02, "copies")
        copies = read_copies(self._cache.reader, self._geometry, self._cache.uuid)
        newest = max((copy.header.number for copy in copies if copy.valid and copy.header is not None), default=0)
        for copy in copies:
            if copy.verdict == "absent":
                if self._was_written(copy.copy, newest):
                    self._findings.add(Damage.COPY_HEADER, f"copy {copy.copy}", "blank")
            elif not copy.valid:
                self._invalid_copy(copy, newest)
        return copies

    def _invalid_copy(self, copy: FoundCopy, newest: int) -> None:
        part, _, why = copy.verdict.partition(": ")
        # A checkpoint that a crash cut short has overwritten directory or catalogue of an older one, and its header
        # was still to come.
        if why == Defect.WRONG_PLACE and part != "header" and copy.header is not None and copy.header.number < newest:
            self._findings.note(Note.UNFINISHED_CHECKPOINT)
            return
        self._findings.add(_PARTS[part], f"copy {copy.copy}", why)

    def _was_written(self, copy: int, newest: int) -> bool:
        """Whether a copy with a blank header holds the directory of a checkpoint that was completed."""
        block = self._cache.reader.block(self._geometry.directory_offset(copy))
        if block is None:
            return False
        number = int(STREAM.struct.unpack_from(block, 0)[5])
        size = self._geometry.block_bytes
        try:
            decode_stream(DIRECTORY_MAGIC, block, uuid=self._cache.uuid, copy=copy, number=number, block_bytes=size)
        except Undecodable:
            return False
        return 0 < number <= newest

    # -- pages ----------------------------------------------------------------------------------------------------

    def _pages(self, copy: FoundCopy, valid: list[FoundCopy]) -> None:
        assert copy.directory is not None
        newest_seq = max(other.header.seq for other in valid if other.header is not None)
        named = np.flatnonzero(copy.directory["seq"] > 0)
        unfinished = False
        done = 0
        for run in runs_of(named, self._geometry):
            self._progress(0.05 + 0.35 * (copy.copy + done / len(named)) / self._geometry.copies, "pages")
            span = read_span(self._cache.reader, self._geometry, self._cache.uuid, copy, run)
            unfinished = self._judge_span(span, newest_seq) or unfinished
            for page, slot in invalid_rows(self._geometry, self._seed, span):
                self._findings.add(Damage.INVALID_ROW, f"copy {copy.copy} page {page} slot {slot}", "invalid row")
            done += len(run)
        self._findings.note(Note.UNFINISHED_CHECKPOINT, int(unfinished))

    def _judge_span(self, span: PageSpan, newest_seq: int) -> bool:
        """Returns whether a page is of a checkpoint that a crash cut short: later than all that were completed."""
        unfinished = False
        for page, header, reason in zip(span.pages, span.headers, span.reasons, strict=True):
            if reason == STALE and header is not None and header.seq > newest_seq:
                unfinished = True
            elif reason:
                kind = Damage.STALE_PAGE if reason == STALE else Damage.PAGE
                self._findings.add(kind, f"copy {span.copy} page {page}", reason)
        return unfinished

    # -- recovery and records -------------------------------------------------------------------------------------

    def _recover(self) -> Recovered | None:
        self._progress(0.5, "recovery")
        try:
            recovered = recovered_state(self._cache, self._findings, clock=self._clock)
        except (RecoveryRefused, FormatUnsupported) as error:
            self._findings.refusal = error.code
            return None
        except Undecodable as error:
            self._findings.refusal = f"undecodable: {error}"
            return None
        report = recovered.report
        for entry in report.skipped:
            where = f"slab {entry.slab} slot {entry.slot}"
            self._findings.add(Damage.SKIPPED_ENTRY, where, entry.reason.value)
        if report.unknown_loss:
            self._findings.add(Damage.UNKNOWN_LOSS, "journal", report.unknown_loss)
        self._findings.note(Note.LOST_UNFLUSHED, report.lost_unflushed)
        self._findings.note(Note.EXPIRED, report.expired)
        return recovered

    def _slabs(self, recovered: Recovered) -> None:
        """What a slab says of itself must be what the catalogue says of it: a rebuild without copies goes by it.

        Not of an empty slab: a crash may have cut off its way to another class, between its header and the journal.
        """
        table = recovered.index.table
        for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
            if (table.lines["state"][table.row_ids_of_slab(slab)] == SlotState.FREE).all():
                continue
            block = self._cache.reader.block(self._geometry.slab_offset(slab))
            expected = SlabHeader(slab, int(table.slab_class[slab]), int(table.slab_generation[slab]))
            why = UNREADABLE if block is None else self._slab_defect(block, expected)
            if why:
                self._findings.add(Damage.SLAB_HEADER, f"slab {slab}", why)

    def _slab_defect(self, block: bytes, expected: SlabHeader) -> str:
        superblock, classes = self._cache.superblock, len(self._geometry.class_bytes)
        try:
            header = decode_slab_header(
                block, uuid=superblock.uuid, secret=superblock.secret, slab=expected.slab, classes=classes
            )
        except Undecodable as error:
            return error.reason
        return "" if header == expected else "another class or generation than the catalogue has"

    def _records(self, recovered: Recovered) -> None:
        """Headers, and payloads if asked for, of all live entries."""
        live = live_row_ids(recovered.index)
        identity = Identity(self._cache.superblock, 1)
        scan = RecordScan(self._cache.reader, recovered.index, identity, payloads=self._payloads)
        for begin in range(0, len(live), RECORDS_STEP):
            self._progress(0.7 + 0.3 * begin / len(live), "records")
            for record in scan.read(live[begin : begin + RECORDS_STEP]):
                where = f"slab {record.row.slab} slot {record.row.slot}"
                if UNREADABLE in (record.defect, record.payload_defect):
                    self._findings.add(Damage.UNREADABLE_RECORD, where, UNREADABLE)
                elif record.defect:
                    self._findings.add(Damage.RECORD_HEADER, where, record.defect)
                elif record.payload_defect:
                    self._findings.add(Damage.RECORD_PAYLOAD, where, record.payload_defect)

    # -- report ---------------------------------------------------------------------------------------------------

    def _report(self, recovered: Recovered | None) -> CheckReport:
        findings = self._findings
        return CheckReport(
            device=self._cache.device.path,
            uuid=str(uuid.UUID(bytes=self._cache.uuid)),
            verdict=findings.verdict().value,
            held=self._cache.held,
            payloads_checked=self._payloads,
            entries=recovered.index.keys.entries if recovered is not None else 0,
            damage={kind.value: findings.counts[kind] for kind in Damage},
            notes={kind.value: findings.notes[kind] for kind in Note},
            recovery=_recovery_facts(recovered) if recovered is not None else {},
            refusal=findings.refusal,
            findings=findings.listed,
            findings_not_listed=findings.total - len(findings.listed),
        )


def _recovery_facts(recovered: Recovered) -> dict[str, Any]:
    report = recovered.report
    return {
        "recovered": report.recovered,
        "rebuilt": report.rebuilt,
        "repaired": {source: count for source, count in report.repaired.items() if count},
        "skipped": {reason: count for reason, count in report.by_reason().items() if count},
        "expired": report.expired,
        "superseded": report.superseded,
        "lost_unflushed": report.lost_unflushed,
        "unknown_loss": report.unknown_loss,
        "journal": report.journal,
    }
