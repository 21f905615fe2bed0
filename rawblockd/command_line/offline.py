"""Commands that read a device without a daemon: ``info``, ``check``, ``dump``, ``copies``. They never write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from rawblockd.command_line.output import (
    JsonFlag,
    expected_errors,
    fact_line,
    interactive,
    print_facts,
    print_json,
    print_json_line,
)

DeviceArgument = Annotated[str, typer.Argument(help="Block device or file.")]


def register(application: typer.Typer) -> None:
    application.command()(info)
    application.command()(check)
    application.command()(dump)
    application.command()(copies)


def info(device: DeviceArgument, json: JsonFlag = False) -> None:
    """Show identity and geometry."""
    with expected_errors(json):
        from storage import offline

        facts = offline.info(device)
    _print(facts, json)


def copies(device: DeviceArgument, json: JsonFlag = False) -> None:
    """Show the checkpoint copies and the journal, each with a verdict."""
    with expected_errors(json):
        from storage import offline

        facts = offline.copies(device)
    _print(facts, json)


def check(
    device: DeviceArgument,
    payloads: Annotated[bool, typer.Option("--payloads", help="Read and verify every value too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Verify everything on the device; exit with 3 if there is damage."""
    with expected_errors(json):
        import dataclasses

        from rawblockd.errors import DamageFound
        from storage import offline

        with _progress() as advance:
            report = offline.check(device, payloads, advance)
        facts = dataclasses.asdict(report)
        if report.damaged:
            _print(facts, json)
            raise typer.Exit(DamageFound.exit_code)
    _print(facts, json)


def dump(device: DeviceArgument, json: JsonFlag = False) -> None:
    """Print every live entry, one a line; with --json one object a line."""
    with expected_errors(json):
        from rawblockd.errors import DamageFound
        from storage import offline
        from storage.format.layout import Undecodable

        try:
            for entry in offline.dump(device):
                if json:
                    print_json_line(entry)
                else:
                    typer.echo(fact_line(entry))
        except Undecodable as error:
            # What even a recovery could not work with: check says where it is.
            raise DamageFound(f"{device}: {error}") from error


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """A function for (ratio, step); it draws a bar on standard error where somebody sees it."""
    if not interactive():
        yield lambda _ratio, _step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=1.0)
        yield lambda ratio, step: progress.update(task, completed=ratio, description=step)
