"""Fields of a map in a request, read strictly: an unknown one, or one of another type, is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.freshness import NEVER
from api.limits import TTL_MAX_SECONDS
from storage.entries import Durability
from storage.errors import ParameterInvalid


class Fields:
    """The fields of one map. ``place`` is what errors put before a field's name; all methods raise ParameterInvalid."""

    __slots__ = ("_found", "_place")

    def __init__(self, found: Mapping[str, Any], allowed: frozenset[str], place: str = "") -> None:
        self._found = found
        self._place = place
        for name, value in found.items():
            if name not in allowed:
                raise self.refusal(name[:64].encode("utf-8", "backslashreplace").decode(), "is unknown")
            if value is None:
                raise self.refusal(name, "is null: leave it out")

    def refusal(self, name: str, why: str) -> ParameterInvalid:
        return ParameterInvalid(f"field {self._place}{name} {why}", parameter=f"{self._place}{name}")

    def get(self, name: str) -> Any:
        """None without it."""
        return self._found.get(name)

    def text(self, name: str, max_chars: int, min_chars: int = 0) -> str | None:
        value = self._found.get(name)
        if value is None:
            return None
        if type(value) is not str or not min_chars <= len(value) <= max_chars or not is_unicode(value):
            raise self.refusal(name, f"is text of {min_chars} to {max_chars} characters")
        return value

    def integer(self, name: str, lowest: int, highest: int) -> int | None:
        value = self._found.get(name)
        if value is None:
            return None
        if type(value) is not int or not lowest <= value <= highest:  # a bool is no int
            raise self.refusal(name, f"is a whole number from {lowest} to {highest}")
        return value

    def flag(self, name: str) -> bool:
        value = self._found.get(name)
        if value is None:
            return False
        if type(value) is not bool:
            raise self.refusal(name, "is true or false")
        return value

    def ttl(self) -> int | None:
        """``ttl`` in seconds, 0 for never, None without it."""
        if self._found.get("ttl") == NEVER:
            return 0
        try:
            return self.integer("ttl", 1, TTL_MAX_SECONDS)
        except ParameterInvalid:
            raise self.refusal("ttl", f"is seconds from 1 to {TTL_MAX_SECONDS}, or {NEVER!r}") from None

    def durability(self) -> Durability | None:
        value = self._found.get("durability")
        if value is None:
            return None
        if type(value) is not str or value not in Durability.__members__.values():
            raise self.refusal("durability", "is one of none, journal, flush")
        return Durability(value)


def is_unicode(text: str) -> bool:
    """False for text with the remains of bytes that are not UTF-8, or with half a character from JSON."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
