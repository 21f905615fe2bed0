"""What calls give and take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from rawblockd_client.codec import Buffer

Key = Union[bytes, str]
"""Text stands for its UTF-8."""

DTYPE_BYTES = {
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
"""Element types of parts with their bytes; elements are little-endian."""


def key_bytes(key: Key) -> bytes:
    return key.encode("utf-8") if isinstance(key, str) else bytes(key)


@dataclass(frozen=True)
class Part:
    """A named array within a value."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)

    @property
    def text(self) -> str:
        """As the header field ``Rawblockd-Parts`` has it."""
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class PartData:
    """A part with its bytes."""

    part: Part
    data: Buffer


@dataclass(frozen=True)
class EntryInfo:
    """What is kept with a value. Times are seconds since 1970; None: it doesn't expire, or the answer doesn't say."""

    etag: str
    size_bytes: int
    content_type: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    stored_at: float | None = None
    expires_at: float | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A value with what is kept with it. With parts asked for by name, ``info.parts`` are those, and ``value``
    consists of their bytes in this order."""

    info: EntryInfo
    value: Buffer

    def part_bytes(self) -> dict[str, memoryview]:
        """The bytes of each part, as views of the value."""
        view = memoryview(self.value).cast("B")
        found = {}
        at = 0
        for part in self.info.parts:
            found[part.name] = view[at : at + part.size_bytes]
            at += part.size_bytes
        return found


@dataclass(frozen=True)
class PutResult:
    etag: str
    created: bool
    """False if an entry was replaced."""
    durability: str
    """The level that was reached; empty for an entry that a later one of the same batch replaced."""


@dataclass(frozen=True)
class PutItem:
    """One entry of a batch put; the fields are those of ``put``."""

    key: Key
    value: Buffer | Sequence[Buffer]
    ttl: int | str | None = None
    content_type: str | None = None
    meta: Mapping[str, str] | None = None
    if_match: str | Sequence[str] | None = None
    if_absent: bool = False
    parts: Sequence[Part] = ()


@dataclass(frozen=True)
class Presence:
    """Which keys of a batch are there, in their order."""

    found: tuple[bool, ...]
    leading_hits: int
    sizes: tuple[int | None, ...] | None = None
    lease: str | None = None


@dataclass(frozen=True)
class Lease:
    """``lease_id`` is given to reads to see what it holds; it is a secret of its holder."""

    lease_id: str
    expires_in_seconds: float
    entries: int
    held_bytes: int
    found: tuple[bool, ...] = ()


@dataclass(frozen=True)
class ListedEntry:
    key: bytes
    etag: str
    size_bytes: int
    stored_at: float
    expires_at: float | None
    content_type: str


@dataclass(frozen=True)
class ListingPage:
    entries: tuple[ListedEntry, ...]
    cursor: str | None
    """None at the end. A page may be empty and yet have one."""


Document = dict[str, Any]
"""An object in JSON as the daemon answers it."""
