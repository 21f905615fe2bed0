"""A stream of msgpack objects, read as it comes: maps whole, binary objects piece by piece.

A library's unpacker would collect a binary object before it hands it out; here a value of any size passes through in
the pieces in which it arrives, and no more is kept than the map under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgpack import OutOfData, Unpacker

from api.errors import BodyInvalid

_WINDOW_BYTES = 512
"""What is given to the unpacker at a time: most maps are shorter, and what lies behind one is taken back."""

_BIN_8, _BIN_16, _BIN_32 = 0xC4, 0xC5, 0xC6
_LENGTH_BYTES = {_BIN_8: 1, _BIN_16: 2, _BIN_32: 4}
_EMPTY = memoryview(b"")
_PLAIN = b"\x81\xa3key\xc4"
_PLAIN_BYTES = len(_PLAIN)
"""A map of one pair, its name, and the tag of a short binary object, whose length follows."""


class OddMap:
    """A map that can't be a head: a name isn't text or stands twice. What follows it can still be read."""

    def __init__(self, detail: str) -> None:
        self.detail = detail


def mapping(pairs: list[tuple[Any, Any]]) -> dict[str, Any] | OddMap:
    """A map with its names checked."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if type(name) is not str:
            return OddMap("the name of a field is not text")
        if name in found:
            return OddMap(f"field {name[:64]!r} is given twice")
        found[name] = value
    return found


class MsgpackReader:
    """``next_piece`` returns the next bytes of the stream, empty at its end. All methods raise BodyInvalid."""

    def __init__(self, next_piece: Callable[[], Awaitable[bytes]], map_max_bytes: int) -> None:
        self._next_piece = next_piece
        self._map_max_bytes = map_max_bytes
        self._data = _EMPTY
        self._unpacker = Unpacker(
            raw=False,
            unicode_errors="surrogateescape",  # text that isn't UTF-8 fails its field's check, not the stream
            strict_map_key=False,
            object_pairs_hook=mapping,
            max_buffer_size=map_max_bytes + _WINDOW_BYTES,
        )
        self._objects = 0

    def plain_entry_now(self) -> tuple[bytes, memoryview] | None:
        """The next two objects if they are there whole, a map of nothing but a binary key and a binary value: most
        entries are that, and this takes a sixth of reading them by ``next_map``. Else None, and nothing was taken."""
        data = self._data
        if data[:_PLAIN_BYTES] != _PLAIN or len(data) <= _PLAIN_BYTES:
            return None
        end = _PLAIN_BYTES + 1 + data[_PLAIN_BYTES]
        length_bytes = _LENGTH_BYTES.get(data[end]) if end < len(data) else None
        if length_bytes is None:
            return None
        start = end + 1 + length_bytes
        stop = start + int.from_bytes(data[end + 1 : start], "big")
        if stop > len(data):
            return None
        self._objects += 2
        self._data = data[stop:]
        return bytes(data[_PLAIN_BYTES + 1 : end]), data[start:stop]

    async def next_map(self) -> dict[str, Any] | OddMap | None:
        """The next object, which is a map of at most ``map_max_bytes``; None at the end of the stream."""
        if not self._data and not await self._refill():
            return None
        self._objects += 1
        tag = self._data[0]
        if not (0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF)):
            raise BodyInvalid(f"object {self._objects} is not a map")
        start = self._unpacker.tell()
        given_bytes = 0
        while True:
            window = self._data[: min(_WINDOW_BYTES, self._map_max_bytes - given_bytes)]
            if not window:
                raise BodyInvalid(f"object {self._objects} is a map of more than {self._map_max_bytes} bytes")
            self._unpacker.feed(window)
            given_bytes += len(window)
            found, complete = self._unpack()
            if complete:
                break
            self._data = self._data[len(window) :]
            if not self._data and not await self._refill():
                raise BodyInvalid(f"the body ends within object {self._objects}")
        excess_bytes = given_bytes - (self._unpacker.tell() - start)
        if excess_bytes:
            self._unpacker.read_bytes(excess_bytes)
        self._data = self._data[len(window) - excess_bytes :]
        assert isinstance(found, (dict, OddMap))
        return found

    async def next_bin(self) -> int:
        """The size of the next object, which is binary. Its bytes come from ``read``, all of them before the next."""
        self._objects += 1
        tag = (await self._exactly(1))[0]
        length_bytes = _LENGTH_BYTES.get(tag)
        if length_bytes is None:
            raise BodyInvalid(f"object {self._objects} is not binary: a value follows each map")
        return int.from_bytes(await self._exactly(length_bytes), "big")

    async def read(self, max_bytes: int) -> memoryview:
        """The next bytes of a binary object: at least one, and at most ``max_bytes``, as many as are there."""
        if not self._data and not await self._refill():
            raise BodyInvalid(f"the body ends within object {self._objects}")
        part = self._data[:max_bytes]
        self._data = self._data[len(part) :]
        return part

    def _unpack(self) -> tuple[Any, bool]:
        try:
            return self._unpacker.unpack(), True
        except OutOfData:
            return None, False
        except (ValueError, TypeError) as error:  # the library's errors of format and depth are kinds of these
            raise BodyInvalid(f"object {self._objects} is not valid msgpack: {str(error)[:100]}") from None

    async def _exactly(self, size_bytes: int) -> bytes:
        found = b""
        while len(found) < size_bytes:
            found += await self.read(size_bytes - len(found))
        return found

    async def _refill(self) -> bool:
        self._data = memoryview(await self._next_piece())
        return bool(self._data)
