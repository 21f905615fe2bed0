"""The part of msgpack that batch calls are made of, on the standard library alone.

A compiled msgpack would be one more version to agree on with whatever a program already pins; what travels here are
small maps beside large values, and values are never copied by this code.
"""

from __future__ import annotations

import struct
from typing import Any, Union

Buffer = Union[bytes, bytearray, memoryview]

_DEPTH_MAX = 16
_FLOAT_64 = struct.Struct(">d")
_FLOAT_32 = struct.Struct(">f")


class Malformed(ValueError):
    """The bytes are none of this encoding."""


def pack(value: Any) -> bytes:
    """None, bool, int, float, str, bytes, lists and maps. Raises TypeError for anything else."""
    out = bytearray()
    _pack(value, out)
    return bytes(out)


def bin_head(size_bytes: int) -> bytes:
    """What stands before the bytes of a binary object."""
    return _head(size_bytes, (0xC4, 0xC5, 0xC6))


def _pack(value: Any, out: bytearray) -> None:
    if isinstance(value, str):
        text = value.encode("utf-8")
        out += bytes((0xA0 | len(text),)) if len(text) < 32 else _head(len(text), (0xD9, 0xDA, 0xDB))
        out += text
    elif value is None:
        out.append(0xC0)
    elif isinstance(value, bool):
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        _pack_int(value, out)
    elif isinstance(value, float):
        out.append(0xCB)
        out += _FLOAT_64.pack(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        view = memoryview(value).cast("B")
        out += bin_head(len(view))
        out += view
    elif isinstance(value, dict):
        out += bytes((0x80 | len(value),)) if len(value) < 16 else _head(len(value), (None, 0xDE, 0xDF))
        for name, item in value.items():
            _pack(name, out)
            _pack(item, out)
    elif isinstance(value, (list, tuple)):
        out += bytes((0x90 | len(value),)) if len(value) < 16 else _head(len(value), (None, 0xDC, 0xDD))
        for item in value:
            _pack(item, out)
    else:
        raise TypeError(f"{type(value).__name__} has no place in a batch")


def _pack_int(value: int, out: bytearray) -> None:
    if 0 <= value < 0x80:
        out.append(value)
    elif -0x20 <= value < 0:
        out.append(value & 0xFF)
    elif 0 <= value < 1 << 64:
        code, size = next((c, s) for c, s in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)) if value < 1 << 8 * s)
        out.append(code)
        out += value.to_bytes(size, "big")
    elif -(1 << 63) <= value < 0:
        out.append(0xD3)
        out += value.to_bytes(8, "big", signed=True)
    else:
        raise TypeError("a whole number has 64 bits")


def _head(size: int, codes: tuple[Any, int, int]) -> bytes:
    if codes[0] is not None and size < 1 << 8:
        return bytes((codes[0], size))
    if size < 1 << 16:
        return bytes((codes[1],)) + size.to_bytes(2, "big")
    return bytes((codes[2],)) + size.to_bytes(4, "big")


class Unpacker:
    """Objects one after the other. Binary ones are views of what was given; it must not change meanwhile."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._view)

    def next(self) -> Any:
        """Raises Malformed."""
        try:
            return self._next(_DEPTH_MAX)
        except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
            raise Malformed(f"an object can't be read: {error}") from None

    def _next(self, depth: int) -> Any:
        code = self._view[self._at]
        self._at += 1
        if code < 0x80:
            return code
        if 0xA0 <= code < 0xC0:
            return self._text(code & 0x1F)
        if code < 0x90:
            return self._map(code & 0x0F, depth)
        if code < 0xA0:
            return self._list(code & 0x0F, depth)
        if code >= 0xE0:
            return code - 0x100
        return self._long(code, depth)

    def _long(self, code: int, depth: int) -> Any:
        if code == 0xC0:
            return None
        if code in (0xC2, 0xC3):
            return code == 0xC3
        if 0xC4 <= code <= 0xC6:
            return self._take(self._size(1 << code - 0xC4))
        if code == 0xCA:
            return _FLOAT_32.unpack(self._take(4))[0]
        if code == 0xCB:
            return _FLOAT_64.unpack(self._take(8))[0]
        if 0xCC <= code <= 0xCF:
            return self._size(1 << code - 0xCC)
        if 0xD0 <= code <= 0xD3:
            return int.from_bytes(self._take(1 << code - 0xD0), "big", signed=True)
        if 0xD9 <= code <= 0xDB:
            return self._text(self._size(1 << code - 0xD9))
        if code in (0xDC, 0xDD):
            return self._list(self._size(2 if code == 0xDC else 4), depth)
        if code in (0xDE, 0xDF):
            return self._map(self._size(2 if code == 0xDE else 4), depth)
        raise Malformed(f"type {code:#04x} is not used here")

    def _take(self, size: int) -> memoryview:
        at = self._at
        self._at = at + size
        if self._at > len(self._view):
            raise Malformed("the end is missing")
        return self._view[at : self._at]

    def _size(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _text(self, size: int) -> str:
        return str(self._take(size), "utf-8")

    def _list(self, count: int, depth: int) -> Any:
        self._check(count, depth)
        return [self._next(depth - 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> Any:
        self._check(count, depth)
        found = {}
        for _ in range(count):
            name = self._next(depth - 1)
            found[name] = self._next(depth - 1)
        return found

    def _check(self, count: int, depth: int) -> None:
        if not depth or count > len(self._view) - self._at:
            raise Malformed("more is announced than there is")
