"""What commands print: facts for people or JSON for programs on standard output, errors on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from storage.errors import RawblockdError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CommandFailed(Exception):
    """An expected failure on its way out of a command, as it will be shown."""

    def __init__(self, error: RawblockdError, as_json: bool) -> None:
        super().__init__(str(error))
        self._error = error
        self._as_json = as_json
        self.exit_code = error.exit_code

    def show(self) -> None:
        """One line on standard error; with ``--json`` an object on standard output, for whoever parses that."""
        if self._as_json:
            print_json(error_object(self._error))
        else:
            typer.echo(f"error: {error_line(self._error)}", err=True)


@contextlib.contextmanager
def expected_errors(as_json: bool = False) -> Iterator[None]:
    """Turn the project's errors into a message and an exit code; everything else is a bug with a traceback."""
    from storage.errors import RawblockdError

    try:
        yield
    except RawblockdError as error:
        raise CommandFailed(error, as_json) from error


def error_line(error: RawblockdError) -> str:
    return " ".join(f"{error.sentence} {error.detail}".split())


def error_object(error: RawblockdError) -> dict[str, Any]:
    return {
        **error.fields,
        "code": error.code,
        "sentence": error.sentence,
        "detail": error.detail,
        "exit_code": error.exit_code,
    }


def print_json(value: Any) -> None:
    """One JSON document, indented for people who look at it all the same."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_json_line(value: Any) -> None:
    typer.echo(json.dumps(value, separators=(",", ":"), default=str))


def print_facts(facts: dict[str, Any], indent: int = 0) -> None:
    """Names and values, aligned; nested ones indented; lists of objects one line each."""
    plain = [name for name, value in facts.items() if not isinstance(value, dict | list)]
    width = max((len(name) for name in plain), default=0)
    for name, value in facts.items():
        if isinstance(value, dict):
            typer.echo(f"{'':{indent}}{name}:{'' if value else ' none'}")
            print_facts(value, indent + 2)
        elif isinstance(value, list):
            typer.echo(f"{'':{indent}}{name}:{'' if value else ' none'}")
            for item in value:
                typer.echo(f"{'':{indent}}  - {fact_line(item)}")
        else:
            typer.echo(f"{'':{indent}}{name:<{width}}  {fact_text(value)}")


def fact_line(item: Any) -> str:
    if isinstance(item, dict) and item:
        return ", ".join(f"{name} {fact_line(value)}" for name, value in item.items())
    return "none" if item == {} else fact_text(item)


def fact_text(value: Any) -> str:
    """A value for people. Keys and metadata are the clients': what would steer a terminal is escaped."""
    if value is None or value == "":
        return "-"
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape").decode("ascii")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def interactive() -> bool:
    """True where a progress bar on standard error is seen by somebody."""
    return sys.stderr.isatty()
