"""Which doors are open, and the namespace of each: the text of the setting ``doors``."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from storage.limits import NAMESPACE_MAX_CHARS

ALLOWED = "bazel, ccache, gradle or sccache, several with commas, each once; namespace behind it: ccache=builds"
"""The form of the setting, for those who wrote another."""

_NAMESPACE = re.compile(rf"[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}")


class DoorName(enum.StrEnum):
    BAZEL = "bazel"
    CCACHE = "ccache"
    GRADLE = "gradle"
    SCCACHE = "sccache"


@dataclass(frozen=True, slots=True)
class DoorChoice:
    """An open door. Its path is its name."""

    name: DoorName
    namespace: str


def parse_doors(text: str) -> tuple[DoorChoice, ...]:
    """The doors of ``bazel,ccache=builds``, in order; without a namespace it's the door's name.

    Raises ``ValueError`` for another form, a door named twice, and two doors with one namespace: what one of them
    verifies, the other would let in unverified.
    """
    choices: list[DoorChoice] = []
    for part in text.split(","):
        name, equals, namespace = (piece.strip() for piece in part.partition("="))
        door = DoorName(name)
        if not equals:
            namespace = door.value
        if _NAMESPACE.fullmatch(namespace) is None:
            raise ValueError("not a namespace")
        choices.append(DoorChoice(door, namespace))
    for what in ({choice.name for choice in choices}, {choice.namespace for choice in choices}):
        if len(what) < len(choices):
            raise ValueError("a door, or a namespace, is named twice")
    return tuple(choices)
