"""``rawblockd repair``: what a start would find on a device, and on request a repair without a daemon (R5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rawblockd.command_line.output import JsonFlag, expected_errors, print_facts, print_json

if TYPE_CHECKING:
    from storage.offline.repair import RepairReport

DeviceArgument = Annotated[str, typer.Argument(help="Block device or file.")]
AdoptOption = Annotated[
    int | None,
    typer.Option("--adopt", metavar="SEQ", min=0, help="Start from the copy with this seq (see rawblockd copies)."),
]
WriteOption = Annotated[bool, typer.Option("--write", help="Do it; without this nothing is written.")]
LossOption = Annotated[
    bool, typer.Option("--accept-loss", help="Go on although more is damaged than max_skipped_ratio allows.")
]


def register(application: typer.Typer) -> None:
    application.command()(repair)


def repair(
    device: DeviceArgument,
    adopt: AdoptOption = None,
    write: WriteOption = False,
    accept_loss: LossOption = False,
    json: JsonFlag = False,
) -> None:
    """Show what a start would find, repair and skip; with --write do what a start would do.

    Exits with 0 if all is well or can be repaired, with 3 if damage stays, with 31 or 32 if a start would refuse.
    """
    with expected_errors(json):
        from rawblockd.errors import DamageFound
        from storage.offline.repair import repair as repair_device

        report = repair_device(device, adopt_seq=adopt, write=write, accept_loss=accept_loss)
    show(report, as_json=json)
    if report.damage_stays:
        raise typer.Exit(DamageFound.exit_code)


def show(report: RepairReport, *, as_json: bool) -> None:
    """Print the report; without JSON also what to do next."""
    import dataclasses

    facts = dataclasses.asdict(report)
    if as_json:
        print_json(facts)
        return
    print_facts(facts)
    typer.echo(NEXT[report.verdict.value])


NEXT = {
    "clean": "nothing to repair",
    "repairable": "the next start repairs this without loss; so does --write",
    "repaired": "repaired, and written as a new checkpoint",
    "partial": "damage stays: start the daemon, then rawblockd recovery retry or acknowledge; or --adopt an older copy",
    "adopted": "the copy is the newest state now; what was skipped is accepted as lost",
}
"""Verdict → what it means for the operator."""
