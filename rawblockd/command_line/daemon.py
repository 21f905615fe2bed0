"""Commands that talk to a running daemon: ``status``, ``health``, ``checkpoint``, ``recovery``."""

from __future__ import annotations

from typing import Any

import typer

from rawblockd.command_line.daemon_client import Target, call, exchange
from rawblockd.command_line.output import expected_errors, print_facts, print_json
from rawblockd.command_line.target import for_daemon
from rawblockd.errors import DaemonUnreachable

recovery = typer.Typer(help="See what the last recovery found, and settle it.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.command()(status)
    application.command()(health)
    application.command()(checkpoint)
    application.add_typer(recovery, name="recovery")


@for_daemon(5.0)
def status(target: Target, timeout: float, json: bool) -> None:
    """Show the daemon's status."""
    _show(target, "GET", "/v1/status", timeout, json)


@for_daemon(5.0)
def health(target: Target, timeout: float, json: bool) -> None:
    """Exit with 0 while the daemon serves (also degraded), else with 1."""
    with expected_errors(json):
        try:
            code, answer = exchange(target, "GET", "/readyz?verbose", timeout)
        except DaemonUnreachable as error:
            code, answer = 0, {"state": "unreachable", "detail": error.detail}
    healthy = code == 200
    if json:
        print_json({"healthy": healthy, "status": code, "answer": answer})
    else:
        state = answer.get("state", "") if isinstance(answer, dict) else ""
        typer.echo(f"{'healthy' if healthy else 'not healthy'}: {state or f'status {code}'}")
    raise typer.Exit(0 if healthy else 1)


@for_daemon(600.0)
def checkpoint(target: Target, timeout: float, json: bool) -> None:
    """Write a checkpoint now. Refused while partial recovery lasts."""
    _show(target, "POST", "/v1/checkpoint", timeout, json)


@recovery.command()
@for_daemon(30.0)
def show(target: Target, timeout: float, json: bool) -> None:
    """Show the recovery report: what was recovered, repaired and skipped."""
    _show(target, "GET", "/v1/recovery", timeout, json)


@recovery.command()
@for_daemon(600.0)
def acknowledge(target: Target, timeout: float, json: bool) -> None:
    """Accept the loss: quarantined slots are freed, a checkpoint is written, automatic ones resume."""
    _show(target, "POST", "/v1/recovery/acknowledge", timeout, json)


@recovery.command()
@for_daemon(600.0)
def retry(target: Target, timeout: float, json: bool) -> None:
    """Try to repair what was skipped; entries whose key was put or deleted since stay superseded."""
    _show(target, "POST", "/v1/recovery/retry", timeout, json)


def _show(target: Target, method: str, path: str, timeout_seconds: float, as_json: bool) -> None:
    with expected_errors(as_json):
        _, answer = call(target, method, path, timeout_seconds)
    facts: dict[str, Any] = answer if isinstance(answer, dict) else {"answer": answer}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
