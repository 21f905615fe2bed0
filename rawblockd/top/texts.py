"""Numbers as people read them, in few columns."""

from __future__ import annotations

NONE = "-"


def count_text(number: float) -> str:
    """12, 3.4k, 56k, 7.8M."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            return f"{number:.3g}{unit}" if unit and number < 99.5 else f"{number:.0f}{unit}"
        number /= 1000
    raise AssertionError("not reached")


def rate_text(number: float | None) -> str:
    if number is None:
        return NONE
    return f"{number:.1f}/s" if 0 < number < 9.95 else f"{count_text(number)}/s"


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1000 or unit == "TiB":
            return f"{size_bytes:.3g} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= 1024
    raise AssertionError("not reached")


def duration_text(seconds: float | None) -> str:
    """120 µs, 3.4 ms, 12 s, 3 min, 2 h, 4 d."""
    if seconds is None:
        return NONE
    for limit, factor, unit in ((0.001, 1e6, "µs"), (1, 1e3, "ms"), (100, 1, "s"), (6000, 1 / 60, "min")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h" if seconds < 172_800 else f"{seconds / 86_400:.3g} d"


def ratio_text(ratio: float | None) -> str:
    return NONE if ratio is None else f"{100 * ratio:.1f} %"


def bar(ratio: float, width: int) -> str:
    """``[####....]``, also without colour."""
    inner = max(1, width - 2)
    filled = min(inner, max(0, round(ratio * inner)))
    return f"[{'#' * filled}{'.' * (inner - filled)}]"


def plain(text: str) -> str:
    """What clients chose may hold anything: what would steer a terminal is escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def words(name: str) -> str:
    return name.replace("_", " ")
