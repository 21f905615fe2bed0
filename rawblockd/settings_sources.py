"""Where settings come from: flags, then the environment, then a TOML file, then the defaults.

An unknown name is an error that names it, and so is a value out of range: a mistyped setting must not
leave the daemon running with a default nobody asked for. Every failure is ``SettingsInvalid``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from rawblockd.settings import ENVIRONMENT_PREFIX, Settings
from rawblockd.settings_texts import allowed_text
from storage.errors import SettingsInvalid

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
CLIENT_VARIABLES = {
    ENVIRONMENT_PREFIX + name for name in ("URL", "TOKEN", "CLIENT_TOKEN_FILE", "CA", "CLIENT_CERTIFICATE")
}
"""Variables of the commands that talk to a daemon; to the daemon itself they mean nothing, but are not mistakes."""
CONFIG_MAX_BYTES = 1 << 20


def load_settings(flags: Mapping[str, Any], config: str | None = None) -> Settings:
    """Settings from ``flags`` (None means: not given), the environment and the file ``config``.

    Without ``config`` the file is the one that RAWBLOCKD_CONFIG names, if any.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for name in given:
        if name not in Settings.model_fields:
            raise SettingsInvalid(f"there is no setting {name} (flag)", settings=[name])
    from_environment = _environment_names()
    path = config if config is not None else os.environ.get(CONFIG_VARIABLE)
    from_file = _read_file(path) if path is not None else {}

    class LoadedSettings(Settings):
        """The settings with this file among their sources: the library asks the class for its sources."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file)

    try:
        return LoadedSettings(**given)
    except ValidationError as error:
        details = error.errors(include_url=False)
        sentences = [_sentence(detail, given, from_environment, from_file, path) for detail in details]
        names = [str(detail["loc"][0]) for detail in details if detail["loc"]]
        raise SettingsInvalid("; ".join(sentences), settings=names) from None


def _environment_names() -> dict[str, str]:
    """Setting → variable for all our variables that are set."""
    found: dict[str, str] = {}
    for variable in sorted(os.environ):
        upper = variable.upper()
        if not upper.startswith(ENVIRONMENT_PREFIX) or upper == CONFIG_VARIABLE or upper in CLIENT_VARIABLES:
            continue
        name = upper.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in Settings.model_fields:
            raise SettingsInvalid(f"there is no setting {variable} (environment)", settings=[variable])
        found[name] = variable
    return found


def _read_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            raw = file.read(CONFIG_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsInvalid(f"config {path} can't be read: {error.strerror}", settings=["config"]) from error
    if len(raw) > CONFIG_MAX_BYTES:
        raise SettingsInvalid(f"config {path} is larger than 1 MiB", settings=["config"])
    try:
        content = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"config {path} is not TOML: {error}", settings=["config"]) from error
    for name in content:
        if name not in Settings.model_fields:
            raise SettingsInvalid(f"there is no setting {name} (file {path})", settings=[name])
    return content


def _sentence(
    detail: ErrorDetails,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    path: str | None,
) -> str:
    """One failure in the project's words: the name, the value as it was said, where, and what is allowed."""
    if not detail["loc"]:
        return str(detail["ctx"]["error"])
    name = str(detail["loc"][0])
    if name in flags:
        value, source = flags[name], "flag --" + name.replace("_", "-")
    elif name in environment:
        value, source = os.environ[environment[name]], f"environment {environment[name]}"
    else:
        value, source = file[name], f"file {path}"
    return f"{name} is {value!r} ({source}); allowed: {allowed_text(name)}"
