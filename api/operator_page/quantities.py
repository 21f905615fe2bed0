"""Numbers as people read them: sizes, counts, shares, ages, durations. Number and unit stay on one line."""

from __future__ import annotations

import time

SPACE = "\u00a0"
NOTHING = "–"

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size_text(size_bytes: float) -> str:
    """``1.2 GiB``: three significant digits at most, binary units."""
    value, unit = float(size_bytes), 0
    while value >= 1023.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit += 1
    digits = 1 if unit and value < 99.95 else 0
    text = f"{value:.{digits}f}".removesuffix(".0")
    return f"{text}{SPACE}{_BYTE_UNITS[unit]}"


def count_text(count: float) -> str:
    return f"{count:,.0f}"


def rate_text(per_second: float | None) -> str:
    """A rate without its unit: small ones keep a digit behind the point."""
    if per_second is None:
        return NOTHING
    return f"{per_second:.1f}".removesuffix(".0") if per_second < 9.95 else count_text(per_second)


def share_text(ratio: float | None) -> str:
    """``41 %``. What is not quite nothing or not quite all never reads as 0 or 100."""
    if ratio is None:
        return NOTHING
    percent = 100 * ratio
    if 0 < percent < 0.1:
        return f"<{SPACE}0.1{SPACE}%"
    if 99.9 < percent < 100:
        return f">{SPACE}99.9{SPACE}%"
    digits = 1 if percent < 9.95 or 99 < percent < 100 else 0
    return f"{percent:.{digits}f}".removesuffix(".0") + f"{SPACE}%"


def latency_text(seconds: float | None) -> str:
    """``210 µs``, ``1.3 ms``, ``2.1 s``."""
    if seconds is None:
        return NOTHING
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        value = seconds * factor
        if value < 999.5:
            return (f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}") + f"{SPACE}{unit}"
    return duration_text(seconds)


def duration_text(seconds: float) -> str:
    """The two largest units that say something: ``36 ms``, ``1.2 s``, ``3 min 12 s``, ``5 d 3 h``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}{SPACE}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + f"{SPACE}s"
    whole = round(seconds)
    for large, large_unit, small, small_unit in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large}{SPACE}{large_unit}" + (f"{SPACE}{rest}{SPACE}{small_unit}" if rest else "")
    return f"{whole}{SPACE}s"


def age_text(seconds: float) -> str:
    """``12 s ago``: one unit, as ages need no more."""
    for unit_seconds, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s")):
        if seconds >= unit_seconds:
            return f"{seconds // unit_seconds:.0f}{SPACE}{unit} ago"
    return "just now"


def clock_text(at_seconds: float) -> str:
    """Time of day, UTC like all times of the daemon."""
    return time.strftime("%H:%M:%S", time.gmtime(at_seconds))


def stamp_text(at_seconds: float) -> str:
    """Date and time as ``<time datetime>`` wants them."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_seconds))


def plural_text(count: int, one: str, many: str) -> str:
    """``1 entry``, ``2 entries``."""
    return f"{count_text(count)}{SPACE}{one if count == 1 else many}"
