"""Which daemon a command talks to and what it shows there: the options that all such commands have.

A token never stands on the command line, where every user of the machine could read it: it comes from a file or from
the environment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Annotated

import typer

from rawblockd.command_line.daemon_client import Target
from rawblockd.command_line.output import JsonFlag, expected_errors
from storage.errors import SettingsInvalid

DEFAULT_URL = "http://127.0.0.1:8790"
TOKEN_VARIABLE = "RAWBLOCKD_TOKEN"
TOKEN_MAX_BYTES = 1024

UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="RAWBLOCKD_URL",
        help="The daemon: http://HOST:PORT, https://HOST:PORT or unix:///PATH.",
        show_default=True,
    ),
]
UdsOption = Annotated[str | None, typer.Option("--uds", help="The daemon's Unix socket, instead of --url.")]
TokenFileOption = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        envvar="RAWBLOCKD_CLIENT_TOKEN_FILE",
        help=f"File that holds the token to show. Without it, the token in {TOKEN_VARIABLE} if there is one.",
    ),
]
CaOption = Annotated[
    str | None,
    typer.Option(
        "--ca",
        envvar="RAWBLOCKD_CA",
        help="PEM file of authorities for https, instead of the system's.",
    ),
]
CertificateOption = Annotated[
    str | None,
    typer.Option(
        "--certificate",
        envvar="RAWBLOCKD_CLIENT_CERTIFICATE",
        help="PEM file with a certificate and its key to show to a daemon that asks for one.",
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the answer.", min=0.1, max=3600)]

Command = Callable[[Target, float, bool], None]
"""Gets the daemon, the seconds to wait, and whether to print JSON."""


def for_daemon(timeout_seconds: float) -> Callable[[Command], Callable[..., None]]:
    """Make a command with the options above of a function that takes what they mean."""

    def decorate(command: Command) -> Callable[..., None]:
        def run(
            url: UrlOption = DEFAULT_URL,
            uds: UdsOption = None,
            token_file: TokenFileOption = None,
            ca: CaOption = None,
            certificate: CertificateOption = None,
            timeout: TimeoutOption = timeout_seconds,
            json: JsonFlag = False,
        ) -> None:
            with expected_errors(json):
                target = make_target(url, uds, token_file, ca, certificate)
            command(target, timeout, json)

        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        return run

    return decorate


def make_target(
    url: str,
    uds: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
) -> Target:
    """The daemon that the options name. Raises SettingsInvalid for a token file of no use."""
    if uds is not None:
        url = f"unix://{os.path.abspath(uds)}"
    token = _read_token(token_file) if token_file is not None else os.environ.get(TOKEN_VARIABLE)
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise SettingsInvalid("the token has characters that no token has", settings=["token"])
    return Target(url, token=token or None, ca=ca, certificate=certificate)


def _read_token(path: str) -> str:
    """The token alone in a file that not everybody may read. No message repeats what is in it."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                raise SettingsInvalid(f"{path} can be read by every user: chmod o-r", settings=["token_file"])
            raw = file.read(TOKEN_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsInvalid(f"{path} can't be read: {error.strerror}", settings=["token_file"]) from error
    if len(raw) > TOKEN_MAX_BYTES:
        raise SettingsInvalid(f"{path} holds more than a token", settings=["token_file"])
    return raw.decode("latin-1").strip()
