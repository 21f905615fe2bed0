"""Query parameters of the value routes, strictly: an unknown one, a repeated one or an odd value is refused."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from storage.entries import Durability
from storage.errors import ParameterInvalid

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_parameters(query: bytes, allowed: frozenset[str]) -> dict[str, str]:
    """The parameters of a query string by name.

    Raises ``ParameterInvalid`` naming a parameter that is not in ``allowed`` or stands twice.
    """
    if not query:
        return {}
    found: dict[str, str] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        raw_name, _, raw_value = part.partition(b"=")
        name, value = _decode(raw_name), _decode(raw_value)
        if name not in allowed:
            raise ParameterInvalid(f"unknown query parameter {name[:64]!r}", parameter=name[:64])
        if name in found:
            raise ParameterInvalid(f"query parameter {name!r} is given twice", parameter=name)
        found[name] = value
    return found


def read_durability(parameters: dict[str, str], default: Durability) -> Durability:
    """The level that ``durability`` names (D1), else the default."""
    text = parameters.get("durability")
    if text is None:
        return default
    try:
        return Durability(text)
    except ValueError:
        raise ParameterInvalid("durability is one of none, journal, flush", parameter="durability") from None


def _decode(raw: bytes) -> str:
    if _BAD_ESCAPE.search(raw):
        raise ParameterInvalid("malformed percent escape in the query", parameter="")
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise ParameterInvalid("the query is not valid UTF-8", parameter="") from None
