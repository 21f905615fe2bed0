"""``rawblockd top``: the live terminal view, for whoever has installed it."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from rawblockd.command_line.daemon_client import check_target
from rawblockd.command_line.output import expected_errors
from rawblockd.command_line.target import (
    DEFAULT_URL,
    CaOption,
    CertificateOption,
    TokenFileOption,
    UdsOption,
    UrlOption,
    make_target,
)
from rawblockd.errors import ExtraMissing

IntervalOption = Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.1, max=3600)]


def register(application: typer.Typer) -> None:
    application.command()(top)


def top(
    url: UrlOption = DEFAULT_URL,
    uds: UdsOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    certificate: CertificateOption = None,
    interval: IntervalOption = 1.0,
) -> None:
    """Watch a running daemon: state, rates, latency, capacity, journal, device, last events.

    Keys: arrows or Tab for the tabs, up and down to scroll, p to pause, q to quit.
    """
    with expected_errors():
        if importlib.util.find_spec("textual") is None:
            raise ExtraMissing("rawblockd top needs textual: pip install 'rawblockd[top]'")
        target = make_target(url, uds, token_file, ca, certificate)
        check_target(target)
    from rawblockd.top.screen import TopApp

    TopApp(target, interval).run()
