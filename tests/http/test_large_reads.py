"""Values that are read piece by piece, over HTTP: what is read, what is held, and what damage becomes (B1, L1, R8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from storage.format.parts import Part
from storage.limits import CHUNK_BYTES
from tests.http.batches import HEADERS, pack, values
from tests.http.local_client import LocalClient
from tests.support.engines import Rig, formatted_image, payload_of, put, short_journal, until

SIZE = 900_000


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Small devices have no large values, so what is large begins earlier here."""
    with short_journal():
        rig = Rig(formatted_image(slabs=20))
        await rig.start()
        path = rig.engine._read_path
        path.whole_max_bytes, path._piece_chunks = 4 * CHUNK_BYTES, 3
        yield rig
        status = rig.engine.status()
        assert (status.capacity.slots.in_flight, status.buffers.used_bytes) == (0, 0)
        assert not rig.engine._index.slots.holds_count
        await rig.stop()


@pytest.fixture
def client(rig: Rig) -> LocalClient:
    return LocalClient(rig.engine)


@pytest.mark.parametrize("size", [0, 5000, 100_000, SIZE])
async def test_a_value_that_the_client_has_is_not_read(rig: Rig, client: LocalClient, size: int) -> None:
    value = payload_of(1, size)
    etag = f'"{(await put(rig.engine, b"key", value)).write_id:016x}"'
    before = rig.device.counters.read.bytes
    answer = await client.ask("GET", "/v1/kv/n/key", headers=[("If-None-Match", f'"other", W/{etag}')])
    assert (answer.status, answer.headers["etag"], answer.body) == (304, etag, b"")
    assert rig.device.counters.read.bytes - before == 4096
    answer = await client.ask("GET", "/v1/kv/n/key", headers=[("If-None-Match", '"0123456789abcdef"')])
    assert (answer.status, answer.body) == (200, value)
    answer = await client.ask("GET", "/v1/kv/n/key", headers=[("If-None-Match", etag), ("If-Match", '"x"')])
    assert (answer.status, answer.code) == (412, "precondition_failed")
    assert rig.engine.counters.lookups["hit"] == 3


async def test_of_a_range_no_more_is_read_than_its_chunks(rig: Rig, client: LocalClient) -> None:
    value = payload_of(1, SIZE)
    await put(rig.engine, b"key", value)
    before = rig.device.counters.read.bytes
    answer = await client.ask("GET", "/v1/kv/n/key", headers=[("Range", "bytes=700000-700099")])
    assert (answer.status, answer.body) == (206, value[700000:700100])
    assert rig.device.counters.read.bytes - before <= CHUNK_BYTES + 3 * 4096


@pytest.mark.parametrize("size", [5 * CHUNK_BYTES, SIZE])
@pytest.mark.parametrize("names", [None, ["value"]])
async def test_of_a_batch_large_values_are_read_once_too(
    rig: Rig, client: LocalClient, size: int, names: list[str] | None
) -> None:
    """What is copied at once is what is read at once, so that no piece is read again for its other half."""
    value = payload_of(1, size)
    await put(rig.engine, b"key", value, parts=(Part("value", "uint8", (size,)),))
    before = rig.device.counters.read.bytes
    answer = await client.batch("mget", pack({"keys": [b"key"]} | ({"parts": names} if names else {})))
    assert [found for _, found in values(answer.body)[0]] == [value]
    assert rig.device.counters.read.bytes - before <= size + (size // CHUNK_BYTES + 1) * 4096


@pytest.mark.parametrize("at", [0, CHUNK_BYTES, 3 * CHUNK_BYTES - 1])
async def test_r8_damage_in_the_first_piece_is_a_miss(rig: Rig, client: LocalClient, at: int) -> None:
    """Nothing was sent yet: the answer says what it is, instead of ending short."""
    value = payload_of(1, SIZE)
    await put(rig.engine, b"key", value)
    table = rig.engine._index.table
    row = table.row(table.live_row_ids().item())
    offset = rig.engine._index.geometry.slot_offset(row.slab, row.slot, row.slot_class)
    rig.device.flip(offset + row.header_bytes + at)
    answer = await client.ask("GET", "/v1/kv/n/key")
    assert (answer.status, answer.code) == (404, "corrupt")
    assert (await client.ask("GET", "/v1/kv/n/key")).code == "not_found"


async def test_l1_results_are_sent_as_they_are_read(rig: Rig, client: LocalClient) -> None:
    """Parts, which are copied, and values of which a window makes little: neither is gathered to the end."""
    parts = (Part("one", "uint8", (100_000,)), Part("two", "uint8", (100_000,)))
    bodies = [payload_of(number, 200_000) for number in range(16)]
    for number, body in enumerate(bodies):
        await put(rig.engine, b"%d" % number, body, parts=parts)
    keys = [b"%d" % number for number in range(16)] * 4
    answer = await client.batch("mget", pack({"keys": keys, "parts": ["two"]}))
    assert answer.headers.get("transfer-encoding") == "chunked"
    found, end = values(answer.body)
    assert [value for _, value in found] == [body[100_000:] for body in bodies] * 4
    assert (end["hits"], end["leading_hits"]) == (64, 64)

    small = [payload_of(number, 900) for number in range(200)]
    for number, body in enumerate(small):
        await put(rig.engine, b"small %d" % number, body)
    answer = await client.batch("mget", pack({"keys": [b"small %d" % number for number in range(200)]}))
    assert answer.headers.get("transfer-encoding") == "chunked"
    assert [value for _, value in values(answer.body)[0]] == small


async def test_b1_a_slow_reader_of_a_batch_keeps_the_value_it_reads(rig: Rig, client: LocalClient) -> None:
    """It holds no memory while it is waited for, and its slot is nobody else's although its key was overwritten."""
    engine = rig.engine
    await put(engine, b"key", payload_of(1, SIZE))
    body = pack({"keys": [b"key"]})
    reader, writer = await client.connect()
    lines = ["POST /v1/kv/n:mget HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in HEADERS.items()]
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
    async with asyncio.timeout(30):
        while not engine._index.slots.holds_count:
            await asyncio.sleep(0)
        while engine._arena.used_bytes or len(client._class.unended) != 1:
            await asyncio.sleep(0.001)
    await put(engine, b"key", payload_of(2, SIZE))
    await engine.flush()
    for number in range(3):
        await put(engine, b"other %d" % number, payload_of(10 + number, SIZE))
        await engine.flush()
    assert engine._index.slots.holds_count == 1
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    head, _, chunks = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    found, _ = values(_joined(chunks))
    assert [value for _, value in found] == [payload_of(1, SIZE)]
    await until(lambda: not engine._index.slots.holds_count)


def _joined(chunks: bytes) -> bytes:
    body = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        count = int(size, 16)
        body += chunks[:count]
        chunks = chunks[count + 2 :]
    return body
