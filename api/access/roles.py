"""Roles and the namespaces they hold for."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from storage.limits import NAMESPACE_MAX_CHARS

PATTERNS_MAX = 256
"""Names and prefixes in one scope: each request with a scoped token looks through the prefixes."""

_PATTERN = re.compile(rf"[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}\*?")


class Role(enum.IntEnum):
    """Each includes those below it.

    An operator may wipe namespaces and accept losses: nothing would be protected by keeping writes from it.
    """

    READER = 1
    WRITER = 2
    OPERATOR = 3

    @property
    def word(self) -> str:
        """As in the token file: ``reader``, ``writer`` or ``operator``."""
        return self.name.lower()


ROLES = {role.word: role for role in Role}


class Scope:
    """A set of namespaces: exact names, and prefixes written with a trailing ``*``. ``None`` means all of them."""

    __slots__ = ("_names", "_prefixes", "everything")

    def __init__(self, patterns: Iterable[str] | None = None) -> None:
        """Raises ValueError for what is neither a name nor a prefix, and for more than ``PATTERNS_MAX``."""
        self.everything = patterns is None
        self._names: set[str] = set()
        prefixes: list[str] = []
        for pattern in patterns or ():
            if _PATTERN.fullmatch(pattern) is None:
                raise ValueError("a namespace, or the beginning of one followed by *")
            if pattern.endswith("*"):
                prefixes.append(pattern[:-1])
            else:
                self._names.add(pattern)
        if len(prefixes) + len(self._names) > PATTERNS_MAX:
            raise ValueError(f"at most {PATTERNS_MAX} namespaces")
        self._prefixes = tuple(prefixes)

    def __contains__(self, namespace: str) -> bool:
        return self.everything or namespace in self._names or namespace.startswith(self._prefixes)
