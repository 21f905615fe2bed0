"""Gets and puts without coroutines, where something fails in their middle: counted once, and nothing stays behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import api.plain_values
from api.counters import HttpCounters
from api.value_paths import TEMPLATE
from storage.device.direct_read import DirectWrite
from storage.errors import Busy
from tests.http.local_client import LocalAnswer, LocalClient, _receive
from tests.support.engines import Rig, formatted_image, payload_of, put, until

TWO_PIECES_BYTES = 1_050_000


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(formatted_image(slabs=40))
    await rig.start()
    for size in (5, TWO_PIECES_BYTES):  # the classes have slabs
        await put(rig.engine, b"of %d" % size, payload_of(1, size))
    yield rig
    status = rig.engine.status()
    assert (status.capacity.slots.in_flight, status.buffers.used_bytes) == (0, 0)
    assert not rig.engine._index.slots.holds_count
    await rig.stop()


async def ask(client: LocalClient, data: bytes) -> LocalAnswer:
    reader, writer = await client.connect()
    answer = LocalAnswer()
    writer.write(data)
    await _receive(reader, answer, None)
    writer.transport.abort()
    await until(lambda: not client._state.connections and not client._class.unended)
    return answer


def put_of(value: bytes) -> bytes:
    return b"PUT /v1/kv/n/key HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(value), value)


def counters_of(client: LocalClient) -> HttpCounters:
    path = client._class.value_path
    assert path is not None
    return path._counters


@pytest.mark.parametrize("size", [5, TWO_PIECES_BYTES])
async def test_a_put_that_the_device_has_no_room_for_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The fixture sees to slot and memory."""
    begin_write, slabs = rig.device.begin_write, rig.engine._index.geometry.slabs_offset

    def refuse(write: DirectWrite) -> None:
        if write.offset_bytes >= slabs:
            raise Busy("too much in flight")
        begin_write(write)

    client = LocalClient(rig.engine)
    with monkeypatch.context() as patched:
        patched.setattr(rig.device, "begin_write", refuse)
        answer = await ask(client, put_of(payload_of(2, size)))
    assert (answer.status, answer.code) == (503, "busy")
    assert (await ask(client, put_of(payload_of(2, size)))).status == 201
    assert counters_of(client).requests == {(TEMPLATE, "PUT", 503): 1, (TEMPLATE, "PUT", 201): 1}


def _mistake(*_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("method", "name", "data"),
    [
        ("GET", "let_in", b"GET /v1/kv/n/of%205 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("GET", "answer_whole", b"GET /v1/kv/n/of%205 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("PUT", "read_put", put_of(b"value")),
        ("PUT", "target_of", put_of(b"value")),
        ("PUT", "answer_stored", put_of(b"value")),
    ],
)
async def test_a_mistake_of_the_daemon_is_answered_counted_and_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, name: str, data: bytes
) -> None:
    mistake: Callable[..., None] = _mistake
    monkeypatch.setattr(api.plain_values, name, mistake)
    client = LocalClient(rig.engine)
    answer = await ask(client, data)
    assert (answer.status, answer.code, answer.headers["connection"]) == (500, "internal_error", "close")
    counters = counters_of(client)
    assert counters.requests == {(TEMPLATE, method, 500): 1}
    assert counters.durations[TEMPLATE, method].count == 1
