"""What the name of a namespace may be, on the device as in a request."""

from __future__ import annotations

from storage.limits import NAMESPACE_MAX_CHARS

_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def is_namespace_name(name: str) -> bool:
    """1 to 128 characters of ``A-Z a-z 0-9 . _ -``."""
    return 1 <= len(name) <= NAMESPACE_MAX_CHARS and _CHARS.issuperset(name)
