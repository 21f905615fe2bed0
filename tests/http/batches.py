"""Bodies and answers of batch calls in msgpack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack

HEADERS = {"Content-Type": "application/msgpack"}


def pack(document: Any) -> bytes:
    packed = msgpack.packb(document)
    assert isinstance(packed, bytes)
    return packed


def entries(pairs: Iterable[tuple[bytes, bytes]], **options: Any) -> bytes:
    """The body of a batch put of plain entries."""
    return pack(options) + b"".join(entry({"key": key}, value) for key, value in pairs)


def entry(head: Any, value: bytes) -> bytes:
    return pack(head) + pack(value)


def objects(body: bytes) -> list[Any]:
    """All objects of an answer; what is left over fails."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(body), 1))
    unpacker.feed(body)
    found = list(unpacker)
    assert unpacker.tell() == len(body)
    return found


def results(body: bytes) -> list[dict[str, Any]]:
    """The results of an answer without values; its end says how many they are."""
    *found, end = objects(body)
    assert (end["end"], end["results"]) == (True, len(found))
    return found


def values(body: bytes) -> tuple[list[tuple[dict[str, Any], bytes | None]], dict[str, Any]]:
    """Each result of a batch read with its value, None if it has none or none that is whole; and the end."""
    *found, end = objects(body)
    assert end["end"] is True
    read: list[tuple[dict[str, Any], bytes | None]] = []
    pieces: list[bytes] = []

    def close() -> None:
        if read and read[-1][0]["status"] == 200:
            value = b"".join(pieces)
            assert len(value) == read[-1][0]["size"]
            read[-1] = (read[-1][0], value)

    for one in found:
        if isinstance(one, bytes):
            pieces.append(one)
        elif read and read[-1][0]["status"] == 200 and sum(map(len, pieces)) < read[-1][0]["size"]:
            read[-1] = (one, None)  # the value failed behind its head
            pieces = []
        else:
            close()
            read.append((one, None))
            pieces = []
    close()
    assert end["results"] == len(read)
    return read, end
