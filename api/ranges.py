"""Byte ranges of a read (RFC 9110, section 14).

One range is served; asked for several, the whole value is sent, as 14.2 allows.
"""

from __future__ import annotations

import re

from api.conditions import range_still_valid
from api.errors import RangeUnsatisfiable
from storage.entries import EntryInfo

_ONE_RANGE = re.compile(rb"bytes[ \t]*=[ \t,]*([0-9]*)-([0-9]*)[ \t,]*", re.IGNORECASE)
_DIGITS_MAX = 20
"""Digits of 2^64. Longer numbers lie behind every value."""


def select_range(fields: dict[bytes, bytes], info: EntryInfo, size: int) -> tuple[int, int] | None:
    """First byte and the byte after the last of the range to send, or None for all ``size`` bytes.

    A Range field that is malformed, of another unit, with several ranges, or voided by ``If-Range`` is ignored.
    Raises ``RangeUnsatisfiable``.
    """
    text = fields.get(b"range")
    if text is None:
        return None
    match = _ONE_RANGE.fullmatch(text)
    if match is None or (not match[1] and not match[2]) or not range_still_valid(fields, info):
        return None
    if not match[1]:
        return _suffix(_number(match[2]), size)
    first = _number(match[1])
    last = _number(match[2]) if match[2] else size - 1
    if match[2] and last < first:
        return None  # malformed (14.1.1), not unsatisfiable
    if first >= size:
        raise RangeUnsatisfiable(size_bytes=size)
    return first, min(last, size - 1) + 1


def content_range(first: int, stop: int, size: int) -> bytes:
    return b"bytes %d-%d/%d" % (first, stop - 1, size)


def unsatisfied_content_range(size: int) -> bytes:
    return b"bytes */%d" % size


def _suffix(length: int, size: int) -> tuple[int, int] | None:
    if length == 0:
        raise RangeUnsatisfiable(size_bytes=size)
    # An empty value satisfies a suffix, but no Content-Range can say so.
    return (max(0, size - length), size) if size else None


def _number(digits: bytes) -> int:
    digits = digits.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX
