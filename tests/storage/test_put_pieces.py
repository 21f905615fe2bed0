"""Puts that receive straight into their buffers: the same bytes, checksums and limits as those that copy (B1, B2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from storage.engine import Engine
from storage.errors import LengthMismatch
from storage.format.checksums import crc32c
from storage.format.geometry import plan
from storage.format.parts import Part
from storage.format.superblock import Superblock
from storage.formatting import write_format
from storage.limits import CHUNK_BYTES, TRANSFER_MAX_BYTES
from storage.namespace_settings import DEFAULT_SETTINGS
from storage.put_session import PutSession
from storage.schema import OnMissing, PartSpec
from tests.support.engines import SECRET, UUID, Rig, check_accounts, get, payload_of, short_journal
from tests.support.simulated_device import Image, SimulatedDevice, cut_all

SIZES = [0, 1, 3968, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1]
MIB = 1 << 20


def wide_image() -> Image:
    """A device with slots of up to 4 MiB."""
    geometry = plan(26 * MIB, slab_bytes=4 * MIB, smallest_slot_bytes=4096, copies=2)
    device = SimulatedDevice(Image(geometry.device_bytes))
    write_format(device, Superblock(UUID, SECRET, 1_600_000_000_000, geometry))
    return device.image


@pytest.fixture
async def wide() -> AsyncIterator[Rig]:
    with short_journal():
        rig = Rig(wide_image())
        try:
            await rig.start()
            yield rig
            await rig.engine.flush()
            check_accounts(rig.engine)
            assert rig.engine._arena.used_bytes == 0
            assert rig.engine.status().capacity.slots.in_flight == 0
            await rig.stop()
        finally:
            cut_all()


async def receive(session: PutSession, payload: bytes, at_most: int) -> None:
    """What a connection does: fill the room there is, ask for more where there is none."""
    taken = 0
    while taken < len(payload):
        room = session.room()
        if not room:
            await session.make_room()
            continue
        part = payload[taken : taken + min(at_most, len(room))]
        room[: len(part)] = part
        session.filled(len(part))
        taken += len(part)


async def begin(engine: Engine, key: bytes, size_bytes: int) -> PutSession:
    return await engine.begin_put("n", key, size_bytes)


@pytest.mark.parametrize("at_most", [1000, CHUNK_BYTES, TRANSFER_MAX_BYTES])
@pytest.mark.parametrize("size_bytes", SIZES)
async def test_b1_what_fills_the_room_is_what_comes_back(rig: Rig, size_bytes: int, at_most: int) -> None:
    payload = payload_of(1, size_bytes)
    session = await begin(rig.engine, b"key", size_bytes)
    await receive(session, payload, at_most)
    assert not session.missing_bytes and not session.room()
    await session.commit()
    assert await get(rig.engine, b"key") == payload
    checksums = [crc32c(payload[at : at + CHUNK_BYTES]) for at in range(0, size_bytes, CHUNK_BYTES)]
    assert session._checksums == checksums


@pytest.mark.parametrize("beyond", [-4096, -129, -128, -127, 0, 1, TRANSFER_MAX_BYTES])
async def test_b1_the_room_ends_with_the_piece_and_goes_on_in_the_next(wide: Rig, beyond: int) -> None:
    """Records that end just before, at and behind the border of a piece, and of two."""
    size_bytes = TRANSFER_MAX_BYTES + beyond
    payload = payload_of(2, size_bytes)
    session = await begin(wide.engine, b"key", size_bytes)
    assert len(session.room()) == min(size_bytes, TRANSFER_MAX_BYTES - session._header_bytes)
    await receive(session, payload, TRANSFER_MAX_BYTES)
    await session.make_room()  # nothing is missing: nothing happens
    assert not session.room()
    await session.commit()
    assert await get(wide.engine, b"key") == payload


async def test_b1_all_ways_to_append_may_be_mixed(wide: Rig) -> None:
    size_bytes = 2 * TRANSFER_MAX_BYTES + 100
    payload = payload_of(3, size_bytes)
    session = await begin(wide.engine, b"key", size_bytes)
    assert session.write_now(payload[:1000])
    await receive(session, payload[1000 : CHUNK_BYTES + 7], 999)
    rest = memoryview(payload)[CHUNK_BYTES + 7 :]
    assert not session.write_now(rest), "it would have to wait for the next piece"
    assert session.received_bytes == CHUNK_BYTES + 7, "and nothing was taken"
    await session.write(rest[:-50])
    room = session.room()
    assert len(room) == 50
    room[:] = rest[-50:]
    session.filled(50)
    await session.commit()
    assert await get(wide.engine, b"key") == payload


async def test_nothing_goes_beyond_the_declared_length(rig: Rig) -> None:
    session = await begin(rig.engine, b"key", 10)
    assert session.write_now(b"12345")
    assert len(session.room()) == 5
    with pytest.raises(LengthMismatch):
        session.write_now(b"123456")
    with pytest.raises(LengthMismatch):
        await session.write(b"123456")
    with pytest.raises(AssertionError):
        session.filled(6)
    with pytest.raises(LengthMismatch):
        await session.commit()
    session.abort()


async def test_b2_what_the_room_held_before_reaches_no_device(rig: Rig) -> None:
    """The arena hands out poison; the rig looks for it in every write."""
    for size_bytes in (1, 3967, 3968, 3969, 60_000):
        session = await begin(rig.engine, b"key %d" % size_bytes, size_bytes)
        await receive(session, payload_of(4, size_bytes), 700)
        await session.commit()
        offset = session._place[4] + session._header_bytes + size_bytes
        padding = -offset % rig.device.block_bytes
        last = rig.device.image.read(offset + padding - rig.device.block_bytes, rig.device.block_bytes)
        assert last[rig.device.block_bytes - padding :] == bytes(padding)


async def test_a_put_that_is_aborted_while_it_receives_gives_everything_back(wide: Rig) -> None:
    session = await begin(wide.engine, b"key", 3 * TRANSFER_MAX_BYTES)
    await receive(session, payload_of(5, 2 * TRANSFER_MAX_BYTES), TRANSFER_MAX_BYTES)
    making = asyncio.ensure_future(session.make_room())
    await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait([making])
    session.abort()  # that nothing leaks is what the fixture checks


@pytest.mark.parametrize("given", [b"", b"w" * 32])
async def test_b2_parts_that_the_schema_fills_in_follow_what_filled_the_room(rig: Rig, given: bytes) -> None:
    specs = (
        *([PartSpec("w", "float32", (8,))] if given else []),
        PartSpec("v", "float32", (CHUNK_BYTES // 2,), 0.5),
    )
    settings = replace(DEFAULT_SETTINGS, parts=specs, schema_version=1, on_missing=OnMissing.DEFAULT)
    await rig.engine.set_namespace("n", settings)
    parts = (Part("w", "float32", (8,)),) if given else ()
    session = await rig.engine.begin_put("n", b"key", len(given), parts=parts)
    assert len(session.room()) == len(given), "the filled in part is not the client's to send"
    if given:
        assert not session.write_now(given), "what the schema fills in may not fit the piece"
    await receive(session, given, 7)
    await session.commit()
    found = await get(rig.engine, b"key")
    assert found == given + b"\0\0\0\x3f" * (CHUNK_BYTES // 2)


async def test_b2_a_part_that_is_filled_in_crosses_the_border_of_a_piece(wide: Rig) -> None:
    count = TRANSFER_MAX_BYTES // 4
    specs = (PartSpec("w", "float32", (8,)), PartSpec("v", "float32", (count,), 0.5))
    settings = replace(DEFAULT_SETTINGS, parts=specs, schema_version=1, on_missing=OnMissing.DEFAULT)
    await wide.engine.set_namespace("n", settings)
    session = await wide.engine.begin_put("n", b"key", 32, parts=(Part("w", "float32", (8,)),))
    await receive(session, b"w" * 32, 32)
    await session.commit()
    assert await get(wide.engine, b"key") == b"w" * 32 + b"\0\0\0\x3f" * count
