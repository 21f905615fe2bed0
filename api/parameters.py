"""Query parameters of the value routes, strictly: an unknown one, a repeated one or an odd value is refused."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from api.limits import LEASE_ID_MAX_CHARS
from storage.entries import Durability
from storage.errors import ParameterInvalid

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_parameters(query: bytes, allowed: frozenset[str]) -> dict[str, str]:
    """The parameters of a query string by name.

    Raises ``ParameterInvalid`` naming a parameter that is not in ``allowed`` or stands twice.
    """
    if not query:
        return {}
    return {name: text_of(value) for name, value in read_raw_parameters(query, allowed).items()}


def read_raw_parameters(query: bytes, allowed: frozenset[str]) -> dict[str, bytes]:
    """As ``read_parameters``, with values that may be any bytes: percent-decoded once and no more."""
    found: dict[str, bytes] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        raw_name, _, raw_value = part.partition(b"=")
        name, value = text_of(_unescape(raw_name)), _unescape(raw_value)
        if name not in allowed:
            raise ParameterInvalid(f"unknown query parameter {name[:64]!r}", parameter=name[:64])
        if name in found:
            raise ParameterInvalid(f"query parameter {name!r} is given twice", parameter=name)
        found[name] = value
    return found


def text_of(value: bytes) -> str:
    """Raises ``ParameterInvalid``."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise ParameterInvalid("the query is not valid UTF-8", parameter="") from None


def read_durability(parameters: dict[str, str]) -> Durability | None:
    """The level that ``durability`` names (D1), None if it is not there."""
    text = parameters.get("durability")
    if text is None:
        return None
    try:
        return Durability(text)
    except ValueError:
        raise ParameterInvalid("durability is one of none, journal, flush", parameter="durability") from None


def read_lease(parameters: dict[str, str]) -> str:
    """The lease that a read names, "" without one."""
    text = parameters.get("lease", "")
    if len(text) > LEASE_ID_MAX_CHARS or ("lease" in parameters and not text):
        raise ParameterInvalid("lease is the id of a lease", parameter="lease")
    return text


def _unescape(raw: bytes) -> bytes:
    if _BAD_ESCAPE.search(raw):
        raise ParameterInvalid("malformed percent escape in the query", parameter="")
    return unquote_to_bytes(raw)
