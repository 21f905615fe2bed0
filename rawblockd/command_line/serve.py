"""``rawblockd serve``: its flags are the settings, made from them."""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any

import typer

from rawblockd.command_line.output import expected_errors
from rawblockd.settings import Settings
from rawblockd.settings_sources import load_settings
from rawblockd.settings_texts import allowed_text, bare_type, default_text


def register(application: typer.Typer) -> None:
    application.command("serve")(serve_command())


def serve(config: str | None, flags: dict[str, Any]) -> None:
    with expected_errors():
        load = functools.partial(load_settings, flags, config)
        settings = load()
        # Wrong settings are answered without the half second that the server's imports take.
        from rawblockd.lifecycle import run_daemon
        from rawblockd.logs import configure_logs

        configure_logs(settings.log_level, settings.log_format)
    raise typer.Exit(run_daemon(settings, load))


def serve_command() -> Any:
    """The command function, with one flag per setting. Values stay text: the settings parse them, and say where
    a wrong one came from.
    """

    def command(config: str | None = None, **flags: Any) -> None:
        serve(config, flags)

    command.__doc__ = "Run the daemon. Every flag is also RAWBLOCKD_NAME in the environment and a key of the file."
    parameters = [
        inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option("--config", help="TOML file with settings.")],
        )
    ]
    for name, field in Settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        default = default_text(name)
        text = f"{field.description} [{f'default {default}; ' if default else ''}{allowed_text(name)}]"
        kind: Any = str | None
        if bare_type(name) is bool:
            kind = bool | None
            flag = f"{flag}/--no-{name.replace('_', '-')}"
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind, typer.Option(flag, help=text, show_default=False)],
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
