"""Times to live: how a put asks for one and how an answer tells what is left (RFC 9111)."""

from __future__ import annotations

import math
import re

from api.dates import format_date
from api.limits import TTL_MAX_SECONDS
from storage.entries import EntryInfo
from storage.errors import ParameterInvalid

_MAX_AGE = re.compile(rb"(?:^|,)[ \t]*max-age[ \t]*(?:=[ \t]*([^,]*))?", re.IGNORECASE)
NEVER = "none"
"""``ttl`` of an entry that never expires, whatever its namespace's default is."""
_SECONDS = re.compile(r"[1-9][0-9]{0,9}")


def read_ttl(parameters: dict[str, str], fields: dict[bytes, bytes]) -> int | None:
    """The time to live that a request names, in whole seconds from 1; 0 for ``none``: it never expires.

    None if it names none. The ``ttl`` parameter decides, else ``Cache-Control: max-age``. Raises ``ParameterInvalid``.
    """
    text = parameters.get("ttl")
    if text is not None:
        return 0 if text == NEVER else _seconds(text, "ttl")
    cache_control = fields.get(b"cache-control")
    if cache_control is None:
        return None
    given = [match.group(1) for match in _MAX_AGE.finditer(cache_control)]
    if not given:
        return None
    if len(given) > 1:
        raise ParameterInvalid("max-age is given twice", parameter="max-age")
    return _seconds((given[0] or b"").rstrip(b" \t").decode("latin-1"), "max-age")


def freshness_lines(info: EntryInfo, now: float) -> bytes:
    """``Last-Modified``, and for an entry that expires ``Age`` and ``Cache-Control``.

    ``max-age`` counts from when the value was stored, as ``Age`` does: a cache takes the one from the other
    (RFC 9111, 4.2), and what remains is what the entry has left here.
    """
    modified = b"last-modified: %b\r\n" % format_date(int(info.stored_at))
    if not info.expires_at:
        return modified
    lifetime = max(0, info.expires_at - math.ceil(info.stored_at))
    age = max(0, int(now - info.stored_at))
    return b"%bage: %d\r\ncache-control: max-age=%d\r\n" % (modified, age, lifetime)


def _seconds(text: str, parameter: str) -> int:
    if _SECONDS.fullmatch(text) is None or int(text) > TTL_MAX_SECONDS:
        raise ParameterInvalid(
            f"{parameter} is a whole number of seconds from 1 to {TTL_MAX_SECONDS}", parameter=parameter
        )
    return int(text)
