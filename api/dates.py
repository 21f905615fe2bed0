"""HTTP dates (RFC 9110, 5.6.7): one form is written, all three are read."""

from __future__ import annotations

import calendar
import re
from email.utils import formatdate
from functools import lru_cache

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rb"(?P<month>" + "|".join(_MONTHS).encode() + rb")"
_CLOCK = rb"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rb"[a-z]{3}, (?P<day>[0-9]{2}) " + _MONTH + rb" (?P<year>[0-9]{4}) " + _CLOCK + rb" GMT",
        rb"[a-z]{6,9}, (?P<day>[0-9]{2})-" + _MONTH + rb"-(?P<year>[0-9]{2}) " + _CLOCK + rb" GMT",
        rb"[a-z]{3} " + _MONTH + rb" (?P<day>[0-9 ][0-9]) " + _CLOCK + rb" (?P<year>[0-9]{4})",
    )
)


@lru_cache(maxsize=1024)
def format_date(seconds: int) -> bytes:
    """IMF-fixdate of a time in whole seconds since 1970."""
    return formatdate(seconds, usegmt=True).encode("ascii")


def parse_date(text: bytes) -> int | None:
    """Whole seconds since 1970 of an HTTP date in any of the three forms, or None if it is no date."""
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is None:
            continue
        year = int(match["year"])
        if len(match["year"]) == 2:
            # RFC 850 dates: the project is younger than 1970, and two digits can't mean more.
            year += 1900 if year >= 70 else 2000
        month = _MONTHS.index(match["month"].decode("ascii").lower()) + 1
        day, hour, minute, second = (int(match[part]) for part in ("day", "hour", "minute", "second"))
        if not (year >= 1 and 1 <= day <= calendar.monthrange(year, month)[1] and hour < 24 and minute < 60):
            return None
        # A leap second is legal; it counts as the second after.
        return calendar.timegm((year, month, day, hour, minute, second)) if second <= 60 else None
    return None
