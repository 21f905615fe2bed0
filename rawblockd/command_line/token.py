"""``rawblockd token``: make an access token and the line of the token file that lets it in."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rawblockd.command_line.output import JsonFlag, expected_errors, print_json
from storage.errors import SettingsInvalid


def register(application: typer.Typer) -> None:
    application.command("token")(token_command)


def token_command(
    name: Annotated[str, typer.Argument(help="What to call its holder: 1 to 64 of A-Z a-z 0-9 _ -")],
    role: Annotated[str, typer.Option("--role", help="reader, writer or operator; each includes those before it.")],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            help="A namespace it holds for, or the beginning of names with *; repeat for more. Default: all.",
        ),
    ] = None,
    requests_per_second: Annotated[
        float | None, typer.Option("--requests-per-second", help="Requests a second it may make. Default: any number.")
    ] = None,
    secret_file: Annotated[
        str | None, typer.Option("--secret-file", help="Write the token to this new file, not to standard error.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make a token. Standard output gets the line for the token file, standard error the token itself: it is kept
    nowhere, so give it to its holder at once.
    """
    with expected_errors(json):
        from api.access.roles import ROLES
        from api.access.token_file import token_line
        from api.access.tokens import digest_of, make_token

        if role not in ROLES:
            raise SettingsInvalid(f"role is {role!r}; allowed: {', '.join(ROLES)}", settings=["role"])
        token = make_token()
        try:
            line = token_line(name, digest_of(token.encode()), ROLES[role], namespace or [], requests_per_second)
        except ValueError as error:
            raise SettingsInvalid(str(error), settings=["name", "namespace", "requests_per_second"]) from None
        if secret_file is not None:
            _write_secret(secret_file, token)
    if json:
        shown = {} if secret_file is not None else {"token": token}
        print_json({**shown, "line": line})
        return
    typer.echo(line)
    if secret_file is None:
        typer.echo(f"token: {token}", err=True)


def _write_secret(path: str, token: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        raise SettingsInvalid(f"{path} can't be made: {error.strerror}", settings=["secret_file"]) from error
