"""Recovery, step by step. Nothing is written: what the engine must write is in the result.

====  ==========================================================================================================
step  what
====  ==========================================================================================================
1     superblocks: who the device is
2     copies: headers, directories, catalogues; the newest valid one is the base; without any, steps 4 to 7 go by
      slab and record headers instead (``storage.recovery.rebuild``)
3     journal: the chain since the oldest usable copy; torn tail, gap
4     catalogue: the base's, then the journal's records
5     pages: from the newest copy that has each as named; rows judged strictly
6     journal rows up to the last flush, the newest of each slot
7     lines of pages no copy has, settled by row and record header
8     keys held twice
9     rows behind the last flush, each put proven against its record
10    the verdict: refuse (R6), or the report; then what the journal tells of the past, for the event feed
====  ==========================================================================================================
"""

from __future__ import annotations

import logging
import time

from storage.device.interface import BlockDevice
from storage.errors import FormatUnsupported
from storage.format.layout import Undecodable
from storage.format.superblock import writable
from storage.limits import WRITE_ID_START_BITS
from storage.recovery.copies import FoundCopy, copy_header
from storage.recovery.errors import InvalidRowsFound
from storage.recovery.history import nothing_known, read_history
from storage.recovery.journal_scan import FoundJournal, JournalContent, find_chain
from storage.recovery.reading import BlockReader
from storage.recovery.rebuild import rebuild_rows
from storage.recovery.report import RecoveryProgress
from storage.recovery.result import Recovered, RecoveryLimits
from storage.recovery.rows import RowRecovery
from storage.recovery.sources import Sources
from storage.recovery.superblocks import read_superblock
from storage.recovery.verdict import Verdict
from storage.recovery.work import RecoveryWork

__all__ = ["Recovered", "RecoveryLimits", "recover"]

log = logging.getLogger("rawblockd.storage")


def recover(device: BlockDevice, limits: RecoveryLimits, progress: RecoveryProgress, now_seconds: float) -> Recovered:
    """Recover the index, on any thread. Raises DeviceRefused, RecoveryRefused, DeviceFailed, SettingsInvalid."""
    started = time.monotonic()
    progress.step = "superblocks"
    superblock, verdicts = read_superblock(device)
    if not writable(superblock):
        raise FormatUnsupported(f"features {superblock.ro_compat:#x}: this program may only read the device")
    if superblock.start_count + 1 >= 1 << WRITE_ID_START_BITS:
        raise FormatUnsupported(f"all {1 << WRITE_ID_START_BITS} starts of this device are used up; format it again")
    reader = BlockReader(device, superblock.geometry.block_bytes)
    try:
        recovered = _run(RecoveryWork(device, reader, superblock, progress), limits, now_seconds)
    except Undecodable as error:
        # A block whose checksum is right does not decode: it was written wrong (B4).
        raise InvalidRowsFound(str(error)) from error
    finally:
        reader.close()
    recovered.report.superblocks = verdicts
    recovered.report.duration_seconds = time.monotonic() - started
    progress.step, progress.ratio = "done", 1.0
    return recovered


def _run(work: RecoveryWork, limits: RecoveryLimits, now_seconds: float) -> Recovered:
    sources, rows, verdict = Sources(work), RowRecovery(work), Verdict(work)
    copies = sources.read_copies()
    usable = sorted((c for c in copies if c.valid), key=lambda c: -copy_header(c).number)
    if limits.adopt_seq is not None:
        usable = sources.adopt(usable, limits.adopt_seq)
    if usable:
        found, content = _from_copies(work, sources, rows, usable)
    else:
        found, content = _from_headers(work, sources)
    rows.settle_duplicates()
    if limits.adopt_seq is not None:
        rows.prove_live_rows(usable[0].copy)
    unflushed = rows.prove_unflushed(content, found)
    verdict.count(now_seconds)
    verdict.judge(limits)
    number = max((c.header.number for c in copies if c.header is not None), default=0)
    recovered = verdict.result(copies, number, found, content, unflushed)
    if recovered.newly_unknown or work.report.rebuilt or limits.adopt_seq is not None:
        recovered.history = nothing_known(recovered.position)
    else:
        recovered.history = read_history(work.index, content, found, recovered.corrections, recovered.position)
    return recovered


def _from_copies(
    work: RecoveryWork, sources: Sources, rows: RowRecovery, usable: list[FoundCopy]
) -> tuple[FoundJournal, JournalContent]:
    """Steps 3 to 7 on the newest copy, with the older ones as second sources."""
    found = sources.scan(usable)
    usable = sources.reaching(usable, found)
    content = sources.read_content(found)
    sources.note_gaps(found, content, copy_header(usable[0]).seq)
    sources.flushed_by_pages(usable[0], content, found)
    work.progress.step = "catalogue"
    assert usable[0].catalogue is not None
    work.catalogue.apply(usable[0].catalogue)
    work.catalogue.apply(sorted((record for _, record in content.records), key=lambda r: r.seq))
    work.catalogue.install_slabs(work.index)
    work.catalogue.install_namespaces(work.index)
    rows.load(usable, content, found)
    return found, content


def _from_headers(work: RecoveryWork, sources: Sources) -> tuple[FoundJournal, JournalContent]:
    """Steps 3 to 7 without any copy: the journal, and the headers on the device for what it does not reach."""
    log.warning("no checkpoint copy can be used: rebuilding the index from record headers", extra={"fields": {}})
    ring = sources.read_ring()
    newest = max(ring.valid.values(), key=lambda h: (h.start_count, h.number), default=None)
    first = newest.tail if newest is not None else 1
    found = find_chain(ring, work.geometry, first=first, known_flushed=first - 1)
    work.report.journal = found.verdict()
    if newest is None and work.superblock.start_count:
        work.report.note_unknown_loss("all copies and the journal are lost: deletions since may be undone")
    content = sources.read_content(found)
    sources.note_gaps(found, content, None)
    work.catalogue.apply(sorted((record for _, record in content.records), key=lambda r: r.seq))
    work.progress.step = "headers"
    bad, lost = rebuild_rows(
        work.reader, work.index, work.superblock, work.catalogue, content, found, work.report, work.progress
    )
    work.bad += bad
    for why in lost:
        work.report.note_unknown_loss(why)
    work.report.rebuilt = True
    return found, content
