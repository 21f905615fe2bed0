"""Commands that talk to a running daemon: ``status``, ``health``, ``checkpoint``, ``recovery``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rawblockd.command_line.daemon_client import call, exchange
from rawblockd.command_line.output import JsonFlag, expected_errors, print_facts, print_json
from rawblockd.errors import DaemonUnreachable

UrlOption = Annotated[
    str,
    typer.Option(
        "--url", envvar="RAWBLOCKD_URL", help="The daemon: http://HOST:PORT or unix:///PATH.", show_default=True
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the answer.", min=0.1, max=3600)]
DEFAULT_URL = "http://127.0.0.1:8790"

recovery = typer.Typer(help="See what the last recovery found, and settle it.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.command()(status)
    application.command()(health)
    application.command()(checkpoint)
    application.add_typer(recovery, name="recovery")


def status(url: UrlOption = DEFAULT_URL, timeout: TimeoutOption = 5.0, json: JsonFlag = False) -> None:
    """Show the daemon's status."""
    _show(url, "GET", "/v1/status", timeout, json)


def health(url: UrlOption = DEFAULT_URL, timeout: TimeoutOption = 5.0, json: JsonFlag = False) -> None:
    """Exit with 0 while the daemon serves (also degraded), else with 1."""
    with expected_errors(json):
        try:
            code, answer = exchange(url, "GET", "/readyz?verbose", timeout)
        except DaemonUnreachable as error:
            code, answer = 0, {"state": "unreachable", "detail": error.detail}
    healthy = code == 200
    if json:
        print_json({"healthy": healthy, "status": code, "answer": answer})
    else:
        state = answer.get("state", "") if isinstance(answer, dict) else ""
        typer.echo(f"{'healthy' if healthy else 'not healthy'}: {state or f'status {code}'}")
    raise typer.Exit(0 if healthy else 1)


def checkpoint(url: UrlOption = DEFAULT_URL, timeout: TimeoutOption = 600.0, json: JsonFlag = False) -> None:
    """Write a checkpoint now. Refused while partial recovery lasts."""
    _show(url, "POST", "/v1/checkpoint", timeout, json)


@recovery.command()
def show(url: UrlOption = DEFAULT_URL, timeout: TimeoutOption = 30.0, json: JsonFlag = False) -> None:
    """Show the recovery report: what was recovered, repaired and skipped."""
    _show(url, "GET", "/v1/recovery", timeout, json)


@recovery.command()
def acknowledge(url: UrlOption = DEFAULT_URL, timeout: TimeoutOption = 600.0, json: JsonFlag = False) -> None:
    """Accept the loss: quarantined slots are freed, a checkpoint is written, automatic ones resume."""
    _show(url, "POST", "/v1/recovery/acknowledge", timeout, json)


@recovery.command()
def retry(url: UrlOption = DEFAULT_URL, timeout: TimeoutOption = 600.0, json: JsonFlag = False) -> None:
    """Try to repair what was skipped; entries whose key was put or deleted since stay superseded."""
    _show(url, "POST", "/v1/recovery/retry", timeout, json)


def _show(url: str, method: str, path: str, timeout_seconds: float, as_json: bool) -> None:
    with expected_errors(as_json):
        _, answer = call(url, method, path, timeout_seconds)
    facts: dict[str, Any] = answer if isinstance(answer, dict) else {"answer": answer}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
