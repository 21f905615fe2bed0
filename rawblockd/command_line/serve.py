"""``rawblockd serve``: its flags are the settings, made from them."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rawblockd.command_line.output import expected_errors
from rawblockd.settings import Settings
from rawblockd.settings_sources import load_settings
from rawblockd.settings_texts import allowed_text, bare_type, default_text

if TYPE_CHECKING:
    from storage.buffers import BufferArena


def register(application: typer.Typer) -> None:
    application.command("serve")(serve_command())


def serve(config: str | None, flags: dict[str, Any]) -> None:
    with expected_errors():
        load = functools.partial(load_settings, flags, config)
        settings = load()
        make_arena = _touch_buffers(settings.buffer_bytes)
        # What imports and routes make stays: looking for garbage among it takes a fifth of the time they do. The daemon
        # turns the collector on again once they are made.
        gc.disable()
        # Wrong settings are answered without the half second that the server's imports take.
        from rawblockd.lifecycle import run_daemon
        from rawblockd.logs import configure_logs

        configure_logs(settings.log_level, settings.log_format)
    raise typer.Exit(run_daemon(settings, load, make_arena))


def _touch_buffers(buffer_bytes: int) -> Callable[[], BufferArena]:
    """Begin to make the engine's memory for I/O; who calls the result waits for it.

    The kernel takes up to 0.3 s of processor time for 256 MiB, in which others can run: here, while the server is
    imported, and not while the recovery needs both processors.
    """
    from storage.buffers import BufferArena

    thread = ThreadPoolExecutor(1, "rawblockd-arena")
    making = thread.submit(BufferArena, buffer_bytes)
    thread.shutdown(wait=False)  # it ends once that is done
    return making.result


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
