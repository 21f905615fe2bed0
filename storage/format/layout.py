"""How a structure on the device is declared: one list of fields makes encoder, decoder, offsets and doc table."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any


class Undecodable(Exception):
    """Bytes that are not what they should be. ``reason`` is one of ``Defect``; the only error decoders raise (B4)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Defect:
    """Why bytes do not decode; stable codes of reports, status and metrics."""

    CHECKSUM = "checksum"
    MAGIC = "magic"
    VERSION = "version"
    WRONG_DEVICE = "wrong_device"
    WRONG_PLACE = "wrong_place"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Field:
    """``code`` is a ``struct`` code; ``meaning`` is one phrase for the doc table."""

    name: str
    code: str
    meaning: str


class Layout:
    """A fixed little-endian structure of ``size_bytes``, without implicit padding.

    Its ``struct`` is the only encoder and decoder of the structure; ``offsets`` are bytes from its start.
    """

    def __init__(self, name: str, size_bytes: int, fields: list[Field]) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.fields = fields
        self.struct = struct.Struct("<" + "".join(f.code for f in fields))
        assert self.struct.size == size_bytes, f"{name}: {self.struct.size} bytes, not {size_bytes}"
        self.offsets: dict[str, int] = {}
        offset = 0
        for f in fields:
            self.offsets[f.name] = offset
            offset += struct.calcsize("<" + f.code)

    def table(self) -> list[tuple[int, int, str, str]]:
        """Rows of the doc table: offset, size in bytes, name, meaning."""
        return [(self.offsets[f.name], struct.calcsize("<" + f.code), f.name, f.meaning) for f in self.fields]


def unique_names(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The msgpack map of ``pairs``. Raises ValueError for a name that stands twice: neither value is right (B4)."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice in a map")
    return fields


def round_up(size_bytes: int, unit_bytes: int) -> int:
    """The smallest multiple of ``unit_bytes`` that is at least ``size_bytes``."""
    return -(-size_bytes // unit_bytes) * unit_bytes
