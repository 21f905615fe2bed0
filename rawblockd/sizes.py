"""Sizes as people write them: ``4096``, ``"4KiB"``, ``"64 MiB"``, ``"1GiB"``."""

from __future__ import annotations

import re

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE_MAX_BYTES = 1 << 62
"""Above what any device has, below what arithmetic in 64 bits would overflow at."""

_SIZE = re.compile(r"([0-9]{1,20}) ?(|B|KiB|MiB|GiB|TiB)")
ALLOWED = "bytes, or a whole number with KiB, MiB, GiB or TiB behind it"


def parse_size(value: object) -> int:
    """Bytes of a size. ``ValueError`` says what is allowed.

    Units are powers of 1024 and written exactly so: ``1GB`` or ``1g`` would be a guess.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size_bytes = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size_bytes = int(match[1]) * UNITS[match[2]]
    else:
        raise ValueError(ALLOWED)
    if not 0 <= size_bytes <= SIZE_MAX_BYTES:
        raise ValueError(ALLOWED)
    return size_bytes


def size_text(size_bytes: int) -> str:
    """The shortest exact text that ``parse_size`` reads back: ``"64MiB"``, ``"4096"`` becomes ``"4KiB"``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % UNITS[unit] == 0:
            return f"{size_bytes // UNITS[unit]}{unit}"
    return f"{size_bytes}B"


def rounded_size_text(size_bytes: float) -> str:
    """A size for people, with at most one decimal: ``"1.4 GiB"``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= UNITS[unit]:
            return f"{size_bytes / UNITS[unit]:.1f} {unit}"
    return f"{size_bytes:.0f} B"
