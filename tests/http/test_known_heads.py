"""Requests whose heads a connection knows already: they mean what the parser would have made of them, byte for byte."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import AsyncIterator, Sequence

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rawblockd.known_heads import HEAD_MAX_BYTES, HEADS_MAX, KnownHeads, find_head
from rawblockd.receiver import READ_BYTES
from tests.http.local_client import LocalAnswer, LocalClient, _receive
from tests.support.engines import Rig, formatted_image, payload_of, put, until

GET = b"GET /v1/kv/n/key HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOST = b"Host: localhost\r\n"


# -- what is known is what the parser says ----------------------------------------------------------------------------


class _Parsed:
    """A message as the parser sees it, with the settings of the connection; ``refused`` if it doesn't take it."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[bytes, bytes] = {}
        self.refused = self.doubled = self.complete = self.has_head = False
        self.method = self.url = b""
        self.body_bytes = 0
        parser = self._parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.refused = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.doubled |= name.lower() in self.fields
        self.fields[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.has_head = True
        self.method = self._parser.get_method()
        self.keeps_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        self.complete = True


LINES = st.sampled_from(
    [
        *(b"Host: localhost", b"host:localhost", b"X-A: 1", b"X-A:  1 ", b"X-A: \t", b"X-A:", b"X:y:z"),
        *(
            b"Content-Length: 5",
            b"content-length:5",
            b"CONTENT-LENGTH:  5",
            b"Content-Length: 005",
            b"Content-Length: 7",
        ),
        *(
            b"Content-Length: 7",
            b"Content-Length : 5",
            b"Content-Length: 5 ",
            b"Content-Length: 5, 5",
            b"Content-Length: +5",
        ),
        *(b"X-Content-Length: 3", b"X-A: content-length: 4", b" content-length: 5", b"\tfolded", b" 6", b"6"),
        *(b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: keep-alive", b"Expect: 100-continue"),
        *(b"Upgrade: websocket", b"Range: bytes=0-1", b"Authorization: Bearer abc", b"Rawblockd-Meta-A: \xe4"),
        *(b"Content-Length: 5\nX-A: 1", b"X-A: 1\rContent-Length: 5", b"X-A: \x00", b": 1", b"", b"X-A : 1"),
    ]
)
TARGETS = st.sampled_from(
    [
        *(
            b"/v1/kv/n/key",
            b"/v1/kv/n/other",
            b"/v1/kv/n/a%2Fb",
            b"/v1/kv/n/../x",
            b"/v1/kv/n/a//b",
            b"/v1/kv/n/k?ttl=5",
        ),
        *(
            b"/v1/kv/n",
            b"/v1/kv/n:mget",
            b"/v1/kv/n/",
            b"/v1/kv/n/a b",
            b"/v1/kv/n/k#x",
            b"/v1/kv/n/\xe4",
            b"//v1/kv/n/k",
        ),
        *(
            b"/v1/kv/n/k?ttl=5",
            b"//v1/kv/n/k",
            b"/v1/kv/n/k\tx",
            b"http://h/v1/kv/n/k",
            b"/v1/kv/n/%",
            b"/v1/kv/n/a:b@c",
            b"*",
            b"/v1/kv/n/~!$&'()*+,;=-._",
        ),
    ]
)
METHODS = st.sampled_from([b"GET", b"PUT", b"HEAD", b"DELETE", b"POST", b"get", b"OPTIONS"])
VERSIONS = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1"])
HEADS = st.builds(
    lambda method, target, version, lines: b"\r\n".join([b" ".join((method, target, version)), *lines, b"", b""]),
    METHODS,
    TARGETS,
    VERSIONS,
    st.lists(LINES, max_size=4),
)


@given(st.lists(HEADS, min_size=2, max_size=6))
@example([b"PUT /v1/kv/n/key HTTP/1.1\r\nX-A: 1\r\n 6\r\nContent-Length: 5\r\n\r\n"] * 2)
@example([GET, b"GET /v1/kv/n/other HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@example([b"PUT /v1/kv/n/key HTTP/1.1\r\nContent-Length: %d\r\nX-A: 1\r\n\r\n" % size for size in (5, 700)])
def test_a_head_that_is_known_is_what_the_parser_makes_of_it(heads: Sequence[bytes]) -> None:
    known = KnownHeads()
    for data in heads:
        head = find_head(bytearray(data), len(data))
        parsed = _Parsed(data)
        if head is None:
            continue
        fields = known.fields(head)
        if fields is not None:
            length = int(fields.get(b"content-length", b"0"))
            whole = _Parsed(data[: head.size_bytes] + bytes(length))
            assert not whole.refused and whole.complete and whole.keeps_alive
            assert (whole.fields, whole.method, whole.url) == (fields, head.method.encode(), head.raw_path)
            assert whole.body_bytes == length
        elif parsed.has_head and not parsed.refused and not parsed.doubled and parsed.keeps_alive:
            known.remember(head, parsed.fields)


@pytest.mark.parametrize("line", [b"Connection: keep-alive", b"connection: Keep-Alive"])
def test_a_client_that_keeps_its_connection_may_say_so(line: bytes) -> None:
    data = b"GET /v1/kv/n/key HTTP/1.1\r\n%b\r\n\r\n" % line
    head = find_head(bytearray(data), len(data))
    assert head is not None
    known = KnownHeads()
    fields = {b"connection": line[12:]}
    known.remember(head, fields)
    assert known.fields(head) == fields


@pytest.mark.parametrize("extra", [b"", b"X" * 10, GET])
def test_a_head_ends_where_the_body_begins(extra: bytes) -> None:
    data = b"PUT /v1/kv/n/key HTTP/1.1\r\nContent-Length: 10\r\n" + HOST + b"\r\n"
    head = find_head(bytearray(data + extra), len(data + extra))
    assert head is not None
    assert (head.size_bytes, head.length_text, head.raw_path) == (len(data), b"10", b"/v1/kv/n/key")
    for count in range(len(data)):
        assert find_head(bytearray(data), count) is None


def test_no_more_heads_are_remembered_than_a_few_and_no_long_ones() -> None:
    known = KnownHeads()
    for number in range(10 * HEADS_MAX):
        data = b"GET /v1/kv/n/key HTTP/1.1\r\nX-A: %d\r\n\r\n" % number
        head = find_head(bytearray(data), len(data))
        assert head is not None
        known.remember(head, {b"x-a": b"%d" % number})
        assert known.fields(head) == {b"x-a": b"%d" % number}
        assert len(known._fields) <= HEADS_MAX
    data = b"GET /v1/kv/n/key HTTP/1.1\r\nX-A: %b\r\n\r\n" % bytes(b"a" * HEAD_MAX_BYTES)
    head = find_head(bytearray(data), len(data))
    assert head is not None
    known.remember(head, {b"x-a": b"a" * HEAD_MAX_BYTES})
    assert known.fields(head) is None


@pytest.mark.parametrize("line", [b"Connection: close", b"Upgrade: h2c", b"Transfer-Encoding: chunked", b"Expect: x"])
def test_a_head_with_a_field_of_the_connection_is_always_parsed(line: bytes) -> None:
    data = b"GET /v1/kv/n/key HTTP/1.1\r\n%b%b\r\n\r\n" % (HOST, line)
    head = find_head(bytearray(data), len(data))
    assert head is not None
    name, _, value = line.partition(b": ")
    known = KnownHeads()
    known.remember(head, {b"host": b"localhost", name.lower(): value})
    assert known.fields(head) is None


# -- on a connection -------------------------------------------------------------------------------------------------


class Wire:
    """One connection to a server in this loop."""

    def __init__(self, client: LocalClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client = client
        self._reader = reader
        self.writer = writer

    @property
    def connection(self) -> object:
        (connection,) = self._client._state.connections
        return connection

    async def send(self, data: bytes) -> None:
        """Returns when the server has read it."""
        self.writer.write(data)
        await until(lambda: self.unread_bytes == 0)

    @property
    def unread_bytes(self) -> int:
        descriptor = self.connection.transport.get_extra_info("socket").fileno()  # type: ignore[attr-defined]
        packed = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("i", packed)[0])

    async def answer(self) -> LocalAnswer:
        answer = LocalAnswer()
        async with asyncio.timeout(60):
            await _receive(self._reader, answer, None)
        return answer

    async def ask(self, data: bytes) -> LocalAnswer:
        self.writer.write(data)
        return await self.answer()

    async def at_end(self) -> bytes:
        async with asyncio.timeout(60):
            return await self._reader.read()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(formatted_image(slabs=40))
    await rig.start()
    yield rig
    status = rig.engine.status()
    assert (status.capacity.slots.in_flight, status.buffers.used_bytes) == (0, 0)
    assert not rig.engine._index.slots.holds_count
    await rig.stop()


@pytest.fixture
async def wire(rig: Rig) -> AsyncIterator[Wire]:
    """Both a GET and a PUT are known on it."""
    client = LocalClient(rig.engine)
    wire = Wire(client, *await client.connect())
    await put(rig.engine, b"key", b"a value")
    for _ in range(2):
        assert (await wire.ask(GET)).body == b"a value"
        assert (await wire.ask(put_of(b"other", b"another"))).status in (201, 204)
    yield wire
    wire.writer.transport.abort()
    await until(lambda: not client._state.connections and not client._class.unended)


def put_of(key: bytes, value: bytes) -> bytes:
    return b"PUT /v1/kv/n/%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (key, HOST, len(value), value)


def get_of(key: bytes) -> bytes:
    return b"GET /v1/kv/n/%b HTTP/1.1\r\n%b\r\n" % (key, HOST)


@pytest.mark.parametrize("first", [b"GET /v1/kv/n/a HTTP/1.1\r\nX-A: ", b"GET /v1/kv/n/a HTTP/1.1\r\n", b"GE", b"\r\n"])
async def test_what_follows_the_beginning_of_a_head_is_part_of_it(wire: Wire, first: bytes) -> None:
    """The second read looks like a request that is known, and is none."""
    await wire.send(first)
    answer = await wire.ask(GET)
    if first == b"\r\n":  # empty lines before a request mean nothing
        assert (answer.status, answer.body) == (200, b"a value")
    elif first.endswith(b"X-A: "):
        assert answer.status == 404
    else:
        assert answer.status == 400
        assert await wire.at_end() == b""


async def test_the_rest_of_a_body_that_nobody_waited_for_is_no_request(wire: Wire) -> None:
    """Its answer may be there before the body is."""
    body = GET + b"x" * 100
    answer = await wire.ask(b"GET /v1/kv/n/key HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, len(body)))
    assert answer.body == b"a value"
    await wire.send(GET)
    await wire.send(b"x" * 100)
    assert (await wire.ask(get_of(b"other"))).body == b"another"


async def test_several_requests_in_one_read_are_all_answered(wire: Wire) -> None:
    wire.writer.write(GET + put_of(b"other", b"a third") + get_of(b"other") + GET[:20])
    assert (await wire.answer()).body == b"a value"
    assert (await wire.answer()).status == 204
    assert (await wire.answer()).body == b"a third"
    assert (await wire.ask(GET[20:])).body == b"a value"


async def test_a_request_behind_one_that_waits_is_answered_after_it(wire: Wire, rig: Rig) -> None:
    value = payload_of(1, 3000)
    head = put_of(b"other", value)[: -len(value)]
    await wire.send(head + value[:1000])
    await wire.send(value[1000:2000])
    wire.writer.write(value[2000:] + GET)
    assert (await wire.answer()).status == 204
    assert (await wire.answer()).body == b"a value"
    assert (await wire.ask(get_of(b"other"))).body == value


@pytest.mark.parametrize("size", [0, 1, 300, 65_536, READ_BYTES, 200_000])
async def test_a_body_arrives_exactly_wherever_it_is_cut(wire: Wire, size: int) -> None:
    value = payload_of(2, size)
    sent = put_of(b"other", value)
    begin = len(sent) - size
    cuts = {begin, begin + 1, begin + size // 2, len(sent) - 1, len(sent)}
    for cut in sorted(cut for cut in cuts if begin <= cut <= len(sent)):
        await wire.send(sent[:cut])
        if cut < len(sent):
            await wire.send(sent[cut:])
        assert (await wire.answer()).status == 204
        assert (await wire.ask(get_of(b"other"))).body == value


@pytest.mark.parametrize("sent_bytes", [0, 1000, 90_000])
async def test_a_client_that_leaves_within_a_body_leaves_nothing(wire: Wire, rig: Rig, sent_bytes: int) -> None:
    value = payload_of(3, 100_000)
    sent = put_of(b"other", value)
    await wire.send(sent[: len(sent) - len(value) + sent_bytes])
    wire.writer.transport.abort()
    await until(lambda: not rig.engine.status().capacity.slots.in_flight)
    client = LocalClient(rig.engine)
    assert (await client.ask("GET", "/v1/kv/n/other")).body == b"another"


async def test_the_body_of_a_refused_put_is_no_request(wire: Wire) -> None:
    """It is thrown away, and the connection ends."""
    body = GET * 20
    wire.writer.write(b"PUT /v1/kv/n/k HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, 1 << 40) + body)
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    wire.writer.write(body)
    wire.writer.write_eof()
    assert await wire.at_end() == b""
