"""``python -m bench.service [--full] [--rows 1,3] [--series get-4k,peers]``: see ``--help``."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.service import huge_pages, machine, report, results
from bench.service.checkpoints import measure_checkpoints
from bench.service.daemon import ROOT, Daemon
from bench.service.eviction import measure_full_device
from bench.service.files import GIB, NoRoom, check_room, write_whole
from bench.service.fio import Fio, FioFailed
from bench.service.generator.compiling import compiled
from bench.service.generator.running import Generator, LoadFailed
from bench.service.in_process import measure_in_process
from bench.service.limit import measure_limit
from bench.service.measuring import Contenders, measure, say
from bench.service.network import enter_own_network
from bench.service.packages import PackagesMissing, install_debian, peers_python
from bench.service.peers.asgi import Constant, Executor, Naive
from bench.service.peers.memcached import Memcached
from bench.service.peers.nginx import Nginx
from bench.service.peers.redis import Redis
from bench.service.processes import ServerFailed
from bench.service.restarting import measure_restart
from bench.service.results import Results
from bench.service.series import KEYS, KEYS_QUICK, Series, all_series, chosen
from bench.service.server import Place, Server
from bench.service.targets import TITLES, missing_rows

OWN_ROWS = {"restart": {9, 10}, "checkpoint": {11, 12}}
"""Parts beside the series, with the rows of the table that they are for."""
PARTS = (*OWN_ROWS, "eviction", "in-process", "limit")
DEVICE_GIB = 4
NEEDED_GIB = {"full": 8, "quick": 4, "parts": 0}
"""For the peers' files, beside the device and its twin; when these are gone, for a device for many entries."""
FIO_BUFFER_BYTES = (32 * 4 + 32) << 20
INTERRUPTED = "interrupted"
FAILURES = (ServerFailed, LoadFailed, FioFailed)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    full: bool
    series: list[Series]
    parts: set[str]
    rows: set[int]
    runs: int
    seconds: float

    @property
    def kind(self) -> str:
        return "parts" if not self.series else "full" if self.full else "quick"

    @property
    def keys(self) -> dict[int, int]:
        return KEYS if self.full else KEYS_QUICK


def plan_of(arguments: argparse.Namespace) -> Plan:
    names = [name for name in arguments.series.replace(",", " ").split() if name]
    rows = {int(word) for word in arguments.rows.replace(",", " ").split()}
    parts = {name for name in names if name in PARTS} | {part for part, of in OWN_ROWS.items() if of & rows}
    if not names and not rows:
        parts = set(PARTS) if arguments.full else {*OWN_ROWS, "limit"}
    rest = [name for name in names if name not in PARTS]
    known = chosen(all_series(), rest, rows, full=arguments.full) if rest or rows or not names else []
    if not known and not parts:
        raise SystemExit(f"no series is called {arguments.series!r}")
    wanted = rows or (set() if names else set(TITLES))
    runs = arguments.runs or (5 if arguments.full else 3)
    return Plan(arguments.full, known, parts, wanted, runs, arguments.seconds or (1.5 if arguments.full else 0.8))


@contextmanager
def own_folder(base: Path) -> Iterator[Path]:
    """For the files of the run; emptied before and after. One run at a time."""
    base.mkdir(parents=True, exist_ok=True)
    with open(base / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SystemExit("another bench is running") from error
        folder = base / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def makers(place: Place, device: Path, tree: Path) -> dict[str, Callable[[], Server]]:
    kinds = (Nginx, Redis, Memcached, Constant, Executor, Naive)
    made: dict[str, Callable[[], Server]] = {kind.name: lambda kind=kind: kind(place) for kind in kinds}  # type: ignore[misc]
    made["rawblockd"] = lambda: Daemon(place, device, tree=tree)
    return made


class Run:
    def __init__(self, plan: Plan, place: Place, device: Path, tree: Path, found: Results) -> None:
        self._plan = plan
        self._place = place
        self._device = device
        self._tree = tree
        self._found = found

    def series(self, *, huge: bool) -> None:
        fio = Fio(self._device, self._place.twin, huge_pages=huge)
        with ExitStack() as stack:
            contenders = Contenders(fio, makers(self._place, self._device, self._tree), self._plan.keys, stack)
            for item in self._plan.series:
                # Rows are medians of all repetitions; what is only shown beside them makes do with three.
                runs = self._plan.runs if item.rows else min(3, self._plan.runs)
                with self._noting(item.name):
                    found = measure(item, contenders, runs, self._plan.seconds, self._problem)
                    self._found.measured[item.name] = found

    def limit(self) -> None:
        with self._noting("limit of the load generator"):
            sizes = (4 << 10, 64 << 10, 1 << 20)
            folder = self._place.folder.parent
            self._found.limits = measure_limit(self._place.generator, folder, sizes, self._plan.seconds)

    def checkpoint(self) -> None:
        with self._noting("checkpoint"):
            self._found.checkpoints = measure_checkpoints(self._place, self._tree, 1_000_000, max(3, self._plan.runs))

    def restart(self) -> None:
        for entries in (1_000_000, 10_000_000) if self._plan.full else (1_000_000,):
            with self._noting(f"restart with {entries:,} entries"):
                self._found.restarts.append(measure_restart(self._place.folder, self._tree, entries, 3))

    def eviction(self) -> None:
        with self._noting("eviction"):
            self._found.full_device = measure_full_device(self._place, self._tree, 3, self._plan.seconds)

    def in_process(self) -> None:
        with self._noting("in process"):
            self._found.in_process = measure_in_process(self._place, self._device, self._tree, 3, 0.7)

    def all(self, *, huge: bool) -> None:
        if "limit" in self._plan.parts:
            self.limit()
        self.series(huge=huge)
        # The peers' files are not needed any more, and the disk is only so large.
        for part, measured in (
            ("in-process", self.in_process),
            ("eviction", self.eviction),
            ("checkpoint", self.checkpoint),
            ("restart", self.restart),
        ):
            if part in self._plan.parts:
                measured()

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """What fails is told of, and the rest goes on."""
        try:
            yield
        except FAILURES as failed:
            self._problem(f"{name}: {failed}")

    def _problem(self, text: str) -> None:
        text = " ".join(text.split())
        self._found.problems.append(text)
        say(f"failed: {text}")


def run(arguments: argparse.Namespace, plan: Plan) -> Results:
    """Raises ``NoRoom`` and ``PackagesMissing``."""
    base = Path(arguments.folder).resolve()
    tree = Path(arguments.tree).resolve()
    conditions: dict[str, Any] = {"runs": plan.runs, "seconds": plan.seconds, "load_average": machine.busy()}
    install_debian()
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder(base))
        check_room(folder, (2 * arguments.gib + NEEDED_GIB[plan.kind]) * GIB)
        python = peers_python(base / "peers")
        generator = Generator(compiled("load", base))
        conditions["network"] = enter_own_network()
        huge = stack.enter_context(huge_pages.reserved(FIO_BUFFER_BYTES))
        conditions["huge_pages"] = huge
        if not huge:
            say("no huge pages for fio: it will be slower than the device allows")
        device, twin = folder / "device", folder / "twin"
        if plan.series or "in-process" in plan.parts:
            say("writing the files")
            for path in (device, twin):
                write_whole(path, arguments.gib * GIB)
        place = Place(folder, twin, python, generator)
        found = Results(machine.describe(folder), conditions)
        try:
            Run(plan, place, device, tree, found).all(huge=huge)
        except KeyboardInterrupt:
            found.problems.append(INTERRUPTED)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.service", description=__doc__)
    parser.add_argument("--full", action="store_true", help="everything, not only what the table of targets needs")
    parser.add_argument("--rows", default="", help="only what these rows of the table need: 1,3,5")
    parser.add_argument(
        "--series", default="", help=f"only these series, patterns or groups; also {', '.join(PARTS)}: 'get-* peers'"
    )
    parser.add_argument("--runs", type=int, default=0, help="repetitions: 3, or 5 with --full")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each turn: 0.8, or 1.5 with --full")
    parser.add_argument("--gib", type=int, default=DEVICE_GIB, help="size of the daemon's device: 4")
    parser.add_argument("--folder", default=str(ROOT / "var" / "bench"), help="on the disk that is to be measured")
    parser.add_argument("--tree", default=str(ROOT), help="another checkout, whose daemon is measured")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md, its JSON and its plots")
    arguments = parser.parse_args()
    plan = plan_of(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = run(arguments, plan)
    except (NoRoom, PackagesMissing) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say(INTERRUPTED)
        return 130
    document = found.document()
    path = Path(arguments.folder) / "results.json"
    results.write(path, document)
    sys.stdout.write("\n".join([*report.conditions(document), "", *report.verdict(document), ""]) + "\n")
    sys.stdout.write("\n".join(report.targets(document)) + f"\n\nAll figures: {path}\n")
    missing = missing_rows(found.lines(), plan.rows)
    if missing:
        say(f"no figures for rows {', '.join(map(str, missing))}")
    if arguments.write_docs and INTERRUPTED not in found.problems:
        report.write_docs(document)
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
