"""Parts of a value: named arrays that lie one behind the other in one payload, under one write id.

The record map lists them in the order of their bytes; together they are exactly the payload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage.format.layout import Defect, Undecodable

DTYPES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}
"""Element types, by the names that numpy and ml_dtypes give them, with their bytes; little-endian."""

PARTS_MAX = 16
PART_NAME_MAX_CHARS = 64
DIMENSIONS_MAX = 8
DIMENSION_MAX = (1 << 31) - 1
# In the map: 16 x (name 64 + 2, dtype 14, shape 1 + 8 x 5, array 1) = 1,952 bytes.

_NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


@dataclass(frozen=True, slots=True)
class Part:
    """One array. ``shape`` () is a single element."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return DTYPES[self.dtype] * math.prod(self.shape)


def is_part_name(name: str) -> bool:
    return 1 <= len(name) <= PART_NAME_MAX_CHARS and _NAME_CHARACTERS.issuperset(name)


def fault_of(part: Part) -> str:
    """What is wrong with a part, in a few words; empty if nothing is."""
    if type(part.name) is not str or not is_part_name(part.name):
        return "the name of a part is 1 to 64 characters of A-Z a-z 0-9 . _ -"
    if part.dtype not in DTYPES:
        return f"unknown dtype {str(part.dtype)[:32]!r}"
    if len(part.shape) > DIMENSIONS_MAX:
        return f"more than {DIMENSIONS_MAX} dimensions"
    if any(type(size) is not int or not 0 <= size <= DIMENSION_MAX for size in part.shape):
        return f"a dimension is a whole number from 0 to {DIMENSION_MAX}"
    return ""


def bounds(parts: Sequence[Part]) -> dict[str, tuple[int, int]]:
    """First byte and the byte behind the last of each part in the payload, by name."""
    found: dict[str, tuple[int, int]] = {}
    start = 0
    for part in parts:
        found[part.name] = (start, start + part.size_bytes)
        start += part.size_bytes
    return found


def total_bytes(parts: Sequence[Part]) -> int:
    return sum(part.size_bytes for part in parts)


def encode_parts(parts: Sequence[Part]) -> list[tuple[str, str, tuple[int, ...]]]:
    """What the record map holds of parts."""
    return [(part.name, part.dtype, part.shape) for part in parts]


def decode_parts(packed: Any) -> tuple[Part, ...]:
    """Strictly (B4). Raises Undecodable."""
    if type(packed) is not tuple or not 1 <= len(packed) <= PARTS_MAX:
        raise Undecodable(Defect.INVALID, "parts: number")
    parts: list[Part] = []
    for item in packed:
        if type(item) is not tuple or len(item) != 3 or type(item[1]) is not str or type(item[2]) is not tuple:
            raise Undecodable(Defect.INVALID, "parts: fields")
        part = Part(*item)
        fault = fault_of(part)
        if fault:
            raise Undecodable(Defect.INVALID, f"parts: {fault}")
        parts.append(part)
    if len({part.name for part in parts}) != len(parts):
        raise Undecodable(Defect.INVALID, "parts: two of one name")
    return tuple(parts)
