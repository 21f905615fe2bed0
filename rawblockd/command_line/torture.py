"""``rawblockd torture``: the crash kit, run against this build and a device of the user's choice."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rawblockd.command_line.format_device import size_option
from rawblockd.command_line.output import JsonFlag, expected_errors, interactive, print_facts, print_json

if TYPE_CHECKING:
    from rawblockd.torture.rounds import Tally
    from rawblockd.torture.runner import Progress


def register(application: typer.Typer) -> None:
    application.command()(torture)


def torture(
    path: Annotated[str, typer.Argument(help="A file that does not exist yet, or a blank file or block device.")],
    minutes: Annotated[float, typer.Option(min=0, help="How long; the round under way comes to its end.")] = 10.0,
    kills: Annotated[int, typer.Option(min=0, help="Go on until there were so many kills, however long.")] = 0,
    size: Annotated[str, typer.Option(help="Size of the file, or how much of the device is used.")] = "256MiB",
    seed: Annotated[str, typer.Option(help="What the rounds are drawn from.")] = "1",
    json: JsonFlag = False,
) -> None:
    """Kill, cut and damage a daemon on a fresh device, and hold it to its promises; exit with 3 if one is broken.

    Never touches a device that holds anything. A file made for the run is deleted if it passes.
    """
    with expected_errors(json):
        from rawblockd.errors import DamageFound
        from rawblockd.torture.runner import TortureOptions, run_torture

        size_bytes = size_option("size", size)
        assert size_bytes is not None
        options = TortureOptions(path, minutes * 60, size_bytes, seed, kills)
        with _ended_by_sigterm(), _progress() as progress:
            verdict = run_torture(options, progress)
    facts = verdict.facts()
    if json:
        print_json(facts)
    else:
        print_facts(facts)
    if not verdict.passed:
        raise typer.Exit(DamageFound.exit_code)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that no daemon is left behind."""

    def leave(*_: Any) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A line on standard error where somebody sees it."""
    if not interactive():
        yield lambda _ratio, _tally, _kind: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("preparing", total=1.0)

        def tell(ratio: float, tally: Tally, kind: str) -> None:
            text = (
                f"round {tally.rounds} ({kind}): {tally.kills} kills, {tally.torn} torn, {tally.flips} flips, "
                f"{tally.injected} faults, {tally.keys_checked} keys checked"
            )
            shown.update(task, completed=ratio, description=text)

        yield tell
