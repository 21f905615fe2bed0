"""Damage done to an image: pages, record headers, journal blocks; and a cache that is worth damaging."""

from __future__ import annotations

import asyncio

from storage.engine import Engine
from storage.format.geometry import Geometry
from tests.support.engines import Rig, payload_of, put
from tests.support.simulated_device import Image

GARBAGE = bytes((i * 37 + 11) % 256 for i in range(4096))


def key_of(number: int) -> bytes:
    return b"key %d" % number


def value_of(number: int) -> bytes:
    return payload_of(number, 50 + number)


async def put_many(engine: Engine, numbers: range, *, version: int = 0) -> None:
    """Keys of the smallest class, many to a commit; their slots ascend with their numbers."""
    values = list(numbers)
    for begin in range(0, len(values), 64):
        part = values[begin : begin + 64]
        await asyncio.gather(*(put(engine, key_of(n), value_of(n + version)) for n in part))


async def settled(rig: Rig, count: int) -> Geometry:
    """Fill ``count`` keys into the first slots and write every copy, so that the journal is needed no more."""
    await put_many(rig.engine, range(count))
    for _ in range(rig.engine._index.geometry.copies):
        await rig.engine.checkpoint()
    # Behind the tail stand only the names of namespaces, once more for each checkpoint.
    assert rig.engine._journal.used_blocks <= rig.engine._index.geometry.copies
    return rig.engine._index.geometry


def row_id_of(engine: Engine, number: int) -> int:
    found = engine._commit.published(engine._identity.digest(1, key_of(number)))
    assert found is not None
    return found[0]


def page_of(engine: Engine, number: int) -> int:
    return engine._index.table.page_of(row_id_of(engine, number))


def slot_of(engine: Engine, number: int) -> int:
    """Where the key's record lies on the device."""
    return engine._index.table.slot_offset(row_id_of(engine, number))


def wreck_page(image: Image, geometry: Geometry, page: int, copies: list[int] | None = None) -> None:
    """Nothing of the page is left, in the copies named or in all."""
    for copy in range(geometry.copies) if copies is None else copies:
        image.write(geometry.page_offset(copy, page), GARBAGE)


def wreck_header(image: Image, offset_bytes: int) -> None:
    """The record header there no longer verifies, the slot is not blank."""
    byte = image.read(offset_bytes + 40, 1)[0]
    image.write(offset_bytes + 40, bytes([byte ^ 0x40]))


def copies_of(image: Image, geometry: Geometry) -> list[bytes]:
    """All bytes of each checkpoint copy."""
    return [image.read(geometry.copy_offset(copy), geometry.copy_bytes) for copy in range(geometry.copies)]
