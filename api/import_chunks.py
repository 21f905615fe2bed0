"""The body of a part: chunks of ``{"keys": [bin, …]}`` and one binary object with the rows of these keys.

Read so that nothing in it can grow: a chunk is bounded, and in its map a container anywhere but in ``keys`` is refused
unread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgpack import OutOfData, Unpacker

from api.errors import BatchTooLarge, BodyInvalid
from api.limits import IMPORT_CHUNK_KEYS_MAX, IMPORT_CHUNK_MAX_BYTES
from storage.errors import KeyInvalid
from storage.limits import KEY_MAX_BYTES, SLAB_MAX_BYTES

_BIN_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_NAME_MAX_BYTES = 64
_KEY_READ_BYTES = 4 * KEY_MAX_BYTES
"""A key that is longer than a key may be is still named as such, up to this size."""


class ChunkReader:
    """``next_piece`` returns the next bytes of the body, empty at its end.

    ``keys``, ``rows_bytes`` and ``rows`` are called in turn. All raise BodyInvalid.
    """

    def __init__(self, next_piece: Callable[[], Awaitable[bytes]]) -> None:
        self._next_piece = next_piece
        self._unpacker = Unpacker(
            raw=False,
            unicode_errors="surrogateescape",
            max_str_len=_NAME_MAX_BYTES,
            max_bin_len=_KEY_READ_BYTES,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
        self._fed_bytes = 0
        self._chunks = 0

    async def keys(self) -> list[bytes] | None:
        """The keys of the next chunk; None at the end of the body. Raises BatchTooLarge, KeyInvalid."""
        if self._fed_bytes == self._unpacker.tell() and not await self._feed():
            return None
        self._chunks += 1
        unpacker = self._unpacker
        if await self._read(unpacker.read_map_header) != 1 or await self._read(unpacker.unpack) != "keys":
            raise self._refusal("a map with keys alone begins it")
        count = await self._read(unpacker.read_array_header)
        if count > IMPORT_CHUNK_KEYS_MAX:
            most = IMPORT_CHUNK_KEYS_MAX
            raise BatchTooLarge(f"a chunk of {count} keys; it has up to {most}", max_entries=most)
        keys: list[bytes] = []
        while len(keys) < count:
            key = await self._read(unpacker.unpack)
            if type(key) is not bytes:
                raise self._refusal(f"keys[{len(keys)}] is not binary")
            if len(key) > KEY_MAX_BYTES:
                raise KeyInvalid(f"the key has {len(key)} bytes", key_bytes=len(key))
            keys.append(key)
        return keys

    async def rows_bytes(self, keys: int) -> int:
        """The size of the rows that follow. Raises BatchTooLarge."""
        length_bytes = _BIN_LENGTH_BYTES.get((await self._exactly(1))[0])
        if length_bytes is None:
            raise self._refusal("one binary object with rows follows the keys")
        size_bytes = int.from_bytes(await self._exactly(length_bytes), "big")
        most = SLAB_MAX_BYTES if keys == 1 else IMPORT_CHUNK_MAX_BYTES
        if size_bytes > most:
            raise BatchTooLarge(f"a chunk with {size_bytes} bytes of rows; it has up to {most}", max_chunk_bytes=most)
        return size_bytes

    async def rows(self, size_bytes: int) -> bytes:
        return await self._exactly(size_bytes)

    async def _read(self, read: Callable[[], Any]) -> Any:
        """The next header or object, which may still be on its way."""
        while True:
            try:
                return read()
            except OutOfData:
                if not await self._feed():
                    raise self._refusal("the body ends within it") from None
            except (ValueError, TypeError) as error:  # the library's errors of format and depth are kinds of these
                raise self._refusal(str(error)[:100]) from None

    async def _exactly(self, size_bytes: int) -> bytes:
        """The next bytes, straight from what arrives."""
        first = self._unpacker.read_bytes(size_bytes)
        parts = [first]
        left_bytes = size_bytes - len(first)
        while left_bytes:
            piece = await self._next_piece()
            if not piece:
                raise self._refusal("the body ends within it")
            if len(piece) > left_bytes:
                self._give(piece[left_bytes:])
                piece = piece[:left_bytes]
            parts.append(piece)
            left_bytes -= len(piece)
        return first if len(parts) == 1 else b"".join(parts)

    async def _feed(self) -> bool:
        piece = await self._next_piece()
        self._give(piece)
        return bool(piece)

    def _give(self, piece: bytes) -> None:
        self._unpacker.feed(piece)
        self._fed_bytes += len(piece)

    def _refusal(self, why: str) -> BodyInvalid:
        return BodyInvalid(f"chunk {self._chunks}: {why}")
