"""What a setting allows, in words: for error messages, flags' help and ``docs/settings.md`` alike."""

from __future__ import annotations

import enum
import types
import typing

from rawblockd.settings import Settings
from rawblockd.sizes import ALLOWED as SIZE_ALLOWED
from rawblockd.sizes import parse_size, size_text

ANY_TEXT = "a text that is not empty"
"""What a setting allows that is a text without a form of its own."""


def bare_type(name: str) -> type:
    """The type of a setting without None and without its constraints: bool, int, float, str or an enum."""
    annotation = Settings.model_fields[name].annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    assert isinstance(annotation, type)
    return annotation


def is_size(name: str) -> bool:
    field = Settings.model_fields[name]
    parts = [field.annotation, *typing.get_args(field.annotation)]
    constraints = [*field.metadata, *(extra for part in parts for extra in getattr(part, "__metadata__", ()))]
    return any(getattr(constraint, "func", None) is parse_size for constraint in constraints)


def allowed_text(name: str) -> str:
    """What the setting allows: ``"a whole number from 0 to 65535"``."""
    kind = bare_type(name)
    extra = Settings.model_fields[name].json_schema_extra
    if isinstance(extra, dict) and "allowed" in extra:
        return str(extra["allowed"])
    if issubclass(kind, enum.StrEnum):
        *first, last = (member.value for member in kind)
        return f"{', '.join(first)} or {last}"
    if kind is bool:
        return "true or false"
    if kind is str:
        return ANY_TEXT
    if is_size(name):
        return f"a size {range_text(name)} ({SIZE_ALLOWED})"
    return f"{'a whole number' if kind is int else 'a number'} {range_text(name)}"


def range_text(name: str) -> str:
    """The range of a numeric setting: ``"from 0 to 65535"``."""
    text = {
        side: size_text(bound) if is_size(name) else f"{bound}"
        for constraint in Settings.model_fields[name].metadata
        for side in ("ge", "le")
        if (bound := getattr(constraint, side, None)) is not None
    }
    match text:
        case {"ge": lowest, "le": highest}:
            return f"from {lowest} to {highest}"
        case {"ge": lowest}:
            return f"of at least {lowest}"
    raise LookupError(f"{name} has no range")


def default_text(name: str) -> str:
    """The default as one would write it; empty where there is none."""
    default = Settings.model_fields[name].default
    if default is None:
        return ""
    if is_size(name):
        return size_text(default)
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)
