"""A whole run: make the device, rounds until the time is over, the verdict."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rawblockd.torture.daemon import DAEMON, DaemonRefusedStart
from rawblockd.torture.load import TortureFailed
from rawblockd.torture.rounds import Tally, Torture
from storage.errors import CachePresent, ForeignContent
from storage.formatting import Formatted, format_device
from storage.offline.check import check
from storage.recovery.errors import RecoveryRefused
from storage.torture.closed_device import clear

SIZE_BYTES = 256 << 20
ONLY_BLANK = "torture takes a fresh file or a blank device"


@dataclass(frozen=True, slots=True)
class TortureOptions:
    """``size_bytes`` makes a missing file that large, and is how much of a device is used."""

    path: str
    seconds: float
    size_bytes: int = SIZE_BYTES
    seed: str = "1"
    kills: int = 0
    """Go on, whatever the time, until there were so many."""
    server: tuple[str, ...] = DAEMON
    """The daemon under torture; anything else is for tests of the kit itself."""


@dataclass(slots=True)
class Verdict:
    """The outcome of a run."""

    verdict: str
    seed: str
    device: str
    kept: bool
    """The device still holds what was found, for inspection."""
    tally: Tally
    operations: int
    seconds: float
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    def facts(self) -> dict[str, Any]:
        """As one flat object."""
        plain = {name: getattr(self, name) for name in ("verdict", "seed", "device", "kept", "operations", "seconds")}
        return plain | dataclasses.asdict(self.tally) | {"failures": self.failures}


Progress = Callable[[float, Tally, str], None]
"""Told the share of the run that is over, what was done so far, and the kind of the last round."""


def run_torture(options: TortureOptions, progress: Progress = lambda _ratio, _tally, _kind: None) -> Verdict:
    """Torture a device of the daemon's own making.

    Raises what formatting raises: DeviceMissing, DeviceInUse, CachePresent, ForeignContent, GeometryInvalid,
    DirectIoRefused; then nothing was written.
    """
    began = time.monotonic()
    created = not os.path.lexists(options.path)
    formatted = _format(options)
    with Torture(options.path, formatted.geometry, options.seed, options.server) as torture:
        failures = _rounds(torture, options, began, progress)
        tally, operations = torture.tally, sum(torture.ledger.counts.values())
    if not failures:
        failures = _last_check(options.path)
    if not failures and created:
        os.unlink(options.path)
    elif not failures:
        clear(options.path, formatted.geometry.device_bytes)
    return Verdict(
        verdict="failed" if failures else "passed",
        seed=options.seed,
        device=options.path,
        kept=bool(failures),
        tally=tally,
        operations=operations,
        seconds=round(time.monotonic() - began, 3),
        failures=failures,
    )


def _format(options: TortureOptions) -> Formatted:
    """A cache on a fresh file or a blank device, and on nothing else."""
    regular = os.path.isfile(options.path)
    try:
        return format_device(options.path, size_bytes=None if regular else options.size_bytes)
    except CachePresent as error:
        raise CachePresent(f"{options.path}; {ONLY_BLANK}") from error
    except ForeignContent as error:
        detail = error.detail.split("; --force")[0]
        raise ForeignContent(f"{detail}; {ONLY_BLANK}") from error


def _rounds(torture: Torture, options: TortureOptions, began: float, progress: Progress) -> list[dict[str, Any]]:
    """The first failure ends the run: what comes behind it would say nothing."""
    kind = "preparation"
    tally = torture.tally
    try:
        torture.prepare()
        while True:
            elapsed = time.monotonic() - began
            progress(_ratio(elapsed, tally, options), tally, kind)
            if elapsed >= options.seconds and tally.kills >= options.kills:
                break
            kind = torture.next_kind
            torture.round()
        kind = "end"
        torture.finish()
    except (TortureFailed, DaemonRefusedStart, RecoveryRefused) as error:
        return [
            {
                "seed": f"{options.seed}/{tally.rounds}",
                "round": tally.rounds,
                "kind": kind,
                "what": str(error),
                "edits": [str(edit) for edit in torture.edits],
            }
        ]
    return []


def _ratio(elapsed: float, tally: Tally, options: TortureOptions) -> float:
    ratio = min(1.0, elapsed / options.seconds) if options.seconds else 1.0
    return min(ratio, tally.kills / options.kills) if options.kills else ratio


def _last_check(path: str) -> list[dict[str, Any]]:
    """After the orderly stop everything on the device verifies."""
    report = check(path, payloads=True)
    if not report.damaged:
        return []
    damage = {kind: count for kind, count in report.damage.items() if count}
    what = f"the check of the stopped device found {damage}: {report.findings[:3]}"
    return [{"seed": "", "round": -1, "kind": "check", "what": what, "edits": []}]
