"""Snapshots of a table while three writers insert without pause, and snapshots that were torn elsewhere.

``python -m bench.torn_snapshot`` writes its figures into docs/client.md; every element is checked, and a strange one
ends it with an error. The daemon runs on a fresh file in the folder for temporary files.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from bench.embedding_rows import (
    COLUMNS,
    DEFAULTS,
    FIRST_KEY,
    KEY_COUNTS,
    PARTS,
    WIDTH,
    Writer,
    rows_of,
    strange_rows,
    torn_parts,
    whole_rows,
)
from rawblockd_client import Client
from rawblockd_client.table import EmbeddingTable, ImportRefused, PartRows, read_snapshot
from tests.support.daemon_process import DaemonProcess

PAGE = Path(__file__).parent.parent / "docs" / "client.md"
BEGIN, END = "<!-- Figures of `make bench-torn`: -->", "<!-- End of the figures. -->"
WRITERS = 3
SHARED = np.arange(2000, dtype=np.int64) * 31
ROW_BYTES = len(PARTS) * WIDTH * 4
WHOLE_BYTES = ROW_BYTES + 24
"""With key, frequency and version."""
FEW = 10_000


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000, help="that the three writers insert")
    options.add_argument("--scale", type=int, default=100, help="the torn snapshot is 1/SCALE of the one that was")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = max(1 << 30, 12 * (chosen.rows + KEY_COUNTS[-1] // chosen.scale) * ROW_BYTES)
        flags = ("--device", f"{folder}/device", "--create", "--size", str(-(-size // (1 << 20)) << 20))
        with DaemonProcess(Path(folder) / "log", *flags) as daemon:
            daemon.wait_ready()
            with Client(f"http://127.0.0.1:{daemon.port}") as client:
                lines = [
                    *under_writers(client, f"http://127.0.0.1:{daemon.port}", chosen.rows, Path(folder)),
                    *a_few_rows(client, chosen.rows),
                    *healed(client, chosen.scale, Path(folder)),
                ]
    text = "\n".join(["| | |", "|---|---|", *lines])
    sys.stdout.write(text + "\n")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def under_writers(client: Client, url: str, rows: int, folder: Path) -> list[str]:
    """Snapshot after snapshot until the writers are through; every row of each is checked."""
    table = EmbeddingTable(client, "writers", COLUMNS)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    began = time.monotonic()
    writers = [context.Process(target=_write, args=(url, number, rows // WRITERS, stop)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    taken: list[tuple[int, float]] = []
    try:
        while any(writer.is_alive() for writer in writers):
            seconds, _ = timed(lambda: table.snapshot(folder / "one.npz"))
            taken.append((_checked(folder / "one.npz"), seconds))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    seconds = time.monotonic() - began
    if any(writer.exitcode for writer in writers):
        raise SystemExit("a writer failed")
    last_seconds, snapshot = timed(lambda: table.snapshot(folder / "one.npz"))
    total = _checked(folder / "one.npz")
    if np.count_nonzero(snapshot.rows.keys >= FIRST_KEY) != rows // WRITERS * WRITERS:
        raise SystemExit("rows are missing")
    usage = client.namespace("writers")
    assert usage is not None
    used = usage["used_bytes"] / total
    span = f"{min(one[1] for one in taken):.1f} to {max(one[1] for one in taken):.1f}"
    return [
        f"| rows inserted by {WRITERS} writers, {len(PARTS)} parts of {WIDTH} floats | {total:,} in {seconds:.0f} s |",
        f"| snapshots taken meanwhile | {len(taken)}, of {taken[0][0]:,} to {taken[-1][0]:,} rows, {span} s each |",
        "| rows with a part of another generation, strange or missing elements | 0 in all of them |",
        f"| snapshot of all of them, nobody writing | {last_seconds:.1f} s |",
        f"| space they take | {used / ROW_BYTES:.2f} times the parts, {used / WHOLE_BYTES:.2f} times the rows |",
    ]


def a_few_rows(client: Client, rows: int) -> list[str]:
    """Ten thousand rows: a table of their own, and drawn from all over the large one."""
    table = EmbeddingTable(client, "few", COLUMNS)
    keys = np.arange(FEW, dtype=np.int64) * 104_729
    new, _ = timed(lambda: table.update(keys, whole_rows(keys, 1), version=1))
    again, _ = timed(lambda: table.update(keys, whole_rows(keys, 2), version=2))
    read, found = timed(lambda: table.lookup(keys))
    if strange_rows(keys, found.version, found.parts) or not found.found.all():
        raise SystemExit("strange rows")
    large = EmbeddingTable(client, "writers")
    drawn = np.random.default_rng(1).choice(rows // WRITERS * WRITERS, FEW, replace=False) + FIRST_KEY
    drawn_read, _ = timed(lambda: large.lookup(drawn))
    drawn_update, _ = timed(lambda: large.update(drawn, whole_rows(drawn, 1), version=1))
    return [
        f"| {FEW:,} rows of a table | inserted in {new:.2f} s, updated in {again:.2f} s, read in {read:.2f} s |",
        f"| {FEW:,} rows from all over the large table | read in {drawn_read:.2f} s, updated in {drawn_update:.2f} s |",
    ]


def healed(client: Client, scale: int, folder: Path) -> list[str]:
    """The torn snapshot by each policy, twice; every element of every row is checked."""
    torn = torn_parts(scale)
    counts = " ⊆ ".join(f"{torn[part].keys.size:,}" for part in PARTS)
    table = EmbeddingTable(client, "torn", COLUMNS)
    report = table.import_parts(torn, "reject", dry_run=True)
    said = "; ".join(f"{one.part} − {one.other}: {one.missing}" for one in report.differences)
    with contextlib.suppress(ImportRefused):
        table.import_parts(torn, "reject")
        raise SystemExit("a torn snapshot was not refused")
    lines = [f"| torn snapshot, keys of {', '.join(PARTS)} | {counts} |", f"| `reject` | refused: {said} |"]
    for policy in ("drop", "default"):
        seconds = 0.0
        files = []
        for number in range(2):
            seconds, report = timed(functools.partial(table.import_parts, torn, policy))
            table.snapshot(folder / f"{number}.npz")
            files.append((folder / f"{number}.npz").read_bytes())
        if files[0] != files[1]:
            raise SystemExit("two imports differ")
        _check_healed(torn, folder / "0.npz", policy)
        filled = ", ".join(f"{part} {count}" for part, count in report.filled.items()) or "none"
        lines.append(
            f"| `{policy}` | {report.rows:,} rows, {report.dropped} dropped, filled: {filled}; "
            f"{seconds:.1f} s; twice, identical |"
        )
    return lines


def _check_healed(torn: dict[str, PartRows], path: Path, policy: str) -> None:
    rows = read_snapshot(path).rows
    keys = np.sort(torn["w" if policy == "drop" else "v"].keys)
    if rows.keys.tobytes() != keys.tobytes():
        raise SystemExit("other keys than were supplied")
    for part in PARTS:
        supplied = np.isin(keys, torn[part].keys)
        expected = np.full((keys.size, WIDTH), DEFAULTS[part], dtype=np.float32)
        expected[supplied] = rows_of(keys[supplied], rows.version[supplied], part)
        if rows.parts[part].tobytes() != expected.tobytes():
            raise SystemExit(f"an element of {part} was neither supplied nor declared")


def _checked(path: Path) -> int:
    rows = read_snapshot(path).rows
    strange = strange_rows(rows.keys, rows.version, rows.parts)
    if strange:
        raise SystemExit(f"{strange} strange rows")
    return int(rows.keys.size)


def _write(url: str, number: int, rows: int, stop: Event) -> None:
    with Client(url) as client:
        Writer(client, "writers", number, WRITERS, rows, SHARED, batch=20_000).run(stop.is_set)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = work()
    return time.monotonic() - began, result


if __name__ == "__main__":
    sys.exit(main())
