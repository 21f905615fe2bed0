"""The command line ``rawblockd``: one module per kind of command, loaded only when it is asked for.

``rawblockd health`` runs every few seconds in a container: it must not import the engine, numpy or an HTTP server.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from rawblockd.command_line.output import CommandFailed

MODULES = {
    "format": "format_device",
    "serve": "serve",
    "info": "offline",
    "check": "offline",
    "dump": "offline",
    "copies": "offline",
    "repair": "repair",
    "torture": "torture",
    "token": "token",
    "recovery": "daemon",
    "checkpoint": "daemon",
    "status": "daemon",
    "health": "daemon",
    "top": "top",
}
"""Command → module of this package that registers it."""


def build_application(words: list[str]) -> typer.Typer:
    """The application with the command that ``words`` begin with, or with all (for the help and for mistakes)."""
    application = typer.Typer(
        name="rawblockd",
        help="A persistent key-value cache on a raw block device.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    application.callback()(_root)
    wanted = {MODULES[words[0]]} if words and words[0] in MODULES else dict.fromkeys(MODULES.values())
    for module in wanted:
        importlib.import_module(f"rawblockd.command_line.{module}").register(application)
    return application


def main() -> None:
    """Entry point of the script."""
    try:
        build_application(sys.argv[1:])()
    except CommandFailed as failed:
        failed.show()
        sys.exit(failed.exit_code)
    except BrokenPipeError:
        # "rawblockd dump | head": the reader has seen enough. Standard output can't be flushed any more.
        sys.stdout = None
        sys.exit(0)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed_version

        typer.echo(installed_version("rawblockd"))
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Only options of the program itself; the commands do the rest."""
