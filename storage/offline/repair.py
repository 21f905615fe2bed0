"""Repair without a daemon: what a start would find, and on request what a start would do, in one go (R5).

=========  ==================================================================================================
run        does
=========  ==================================================================================================
dry        recovers in memory and reports; nothing is written, so it works beside a daemon (``held``)
write      holds the device for itself; starts the engine, which writes what it found; with nothing left
           skipped a checkpoint follows, else the partial state stays for an operator
adopt      starts from an older copy: each live row is believed only with its record's header. Written, it
           is an acknowledged loss: skipped slots are freed and a checkpoint makes the state the newest one
=========  ==================================================================================================
"""

from __future__ import annotations

import asyncio
import enum
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.device.opening import open_device
from storage.engine import Engine
from storage.offline.opening import opened
from storage.options import EngineOptions
from storage.recovery.recover import RecoveryLimits, recover
from storage.recovery.report import RecoveryProgress, RecoveryReport
from storage.recovery.superblocks import read_superblock
from storage.status import CopyStatus

REPAIR_BUFFER_BYTES = 16 << 20
SKIPPED_LISTED_MAX = 1000
"""Skipped entries listed with their place; the counts stay exact beyond it."""
Clock = Callable[[], float]


class RepairVerdict(enum.StrEnum):
    """``clean``: nothing to repair. ``repairable``, ``repaired``: all of it, without loss. ``partial``: damage stays.

    ``adopted``: an older copy was written as the newest state, and what was skipped for it is accepted.
    """

    CLEAN = "clean"
    REPAIRABLE = "repairable"
    REPAIRED = "repaired"
    PARTIAL = "partial"
    ADOPTED = "adopted"


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """One skipped entry; ``slab`` and ``slot`` are 0 for a row that names no place of the device."""

    reason: str
    slab: int
    slot: int
    key: str


@dataclass(slots=True)
class RepairReport:
    """``written`` says whether the device was changed; without it everything else is what a start would report."""

    device: str
    uuid: str
    verdict: RepairVerdict
    written: bool
    held: bool
    adopted_seq: int | None
    recovered: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    expired: int = 0
    superseded: int = 0
    lost_unflushed: int = 0
    unknown_loss: str = ""
    journal: str = ""
    rebuilt: bool = False
    superblocks: list[str] = field(default_factory=list)
    copies: list[CopyStatus] = field(default_factory=list)
    entries: list[SkippedLine] = field(default_factory=list)

    @property
    def damage_stays(self) -> bool:
        return self.verdict is RepairVerdict.PARTIAL


def repair(
    path: str,
    *,
    adopt_seq: int | None = None,
    write: bool = False,
    accept_loss: bool = False,
    clock: Clock = time.time,
) -> RepairReport:
    """Report what a start would make of the cache on ``path``, or with ``write`` make it so.

    Raises DeviceRefused (DeviceInUse if it is held and ``write``), RecoveryRefused, DeviceFailed, SettingsInvalid (no
    copy has ``adopt_seq``). The device is unchanged then.
    """
    if write:
        return asyncio.run(_write(path, adopt_seq, accept_loss, clock))
    with opened(path) as cache:
        limits = RecoveryLimits(accept_loss=accept_loss, adopt_seq=adopt_seq)
        recovered = recover(cache.device, limits, RecoveryProgress(), clock())
        return _report(path, cache.uuid, recovered.report, adopt_seq, held=cache.held, written=False)


async def _write(path: str, adopt_seq: int | None, accept_loss: bool, clock: Clock) -> RepairReport:
    device = open_device(path, write=True, io_engine="threads")
    try:
        superblock, _ = read_superblock(device)
        options = EngineOptions(
            background=False, accept_loss=accept_loss, adopt_seq=adopt_seq, buffer_bytes=REPAIR_BUFFER_BYTES
        )
        engine = Engine(device, options, clock)
        started = False
        try:
            await engine.start()
            started = True
            # Before an acknowledgement: afterwards nothing counts as skipped any more.
            report = _report(path, superblock.uuid, engine.recovery_report, adopt_seq, held=False, written=True)
            if adopt_seq is not None and engine.status().partial_recovery:
                await engine.acknowledge()
            elif not engine.status().partial_recovery:
                await engine.checkpoint()
        finally:
            await engine.stop(checkpoint=False) if started else await device.stop()
    finally:
        device.close()
    return report


def _report(
    path: str, identity: bytes, report: RecoveryReport, adopt_seq: int | None, *, held: bool, written: bool
) -> RepairReport:
    return RepairReport(
        device=path,
        uuid=str(uuid.UUID(bytes=identity)),
        verdict=_verdict(report, adopt_seq, written=written),
        written=written,
        held=held,
        adopted_seq=adopt_seq,
        recovered=report.recovered,
        repaired={source: count for source, count in report.repaired.items() if count},
        skipped={reason: count for reason, count in report.by_reason().items() if count},
        expired=report.expired,
        superseded=report.superseded,
        lost_unflushed=report.lost_unflushed,
        unknown_loss=report.unknown_loss,
        journal=report.journal,
        rebuilt=report.rebuilt,
        superblocks=list(report.superblocks),
        copies=list(report.copies),
        entries=[
            SkippedLine(e.reason.value, e.slab, e.slot, e.key.decode("utf-8", "backslashreplace"))
            for e in report.skipped[:SKIPPED_LISTED_MAX]
        ],
    )


def _verdict(report: RecoveryReport, adopt_seq: int | None, *, written: bool) -> RepairVerdict:
    if adopt_seq is not None and written:
        return RepairVerdict.ADOPTED
    if report.partial:
        return RepairVerdict.PARTIAL
    damaged = any(report.repaired.values()) or report.rebuilt or report.superblocks != ["valid", "valid"]
    damaged = damaged or any(copy.verdict not in ("valid", "absent") for copy in report.copies)
    if not damaged:
        return RepairVerdict.CLEAN
    return RepairVerdict.REPAIRED if written else RepairVerdict.REPAIRABLE
