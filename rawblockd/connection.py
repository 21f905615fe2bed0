"""One HTTP connection: uvicorn's protocol with a way past ASGI for values, and limits on what a client may hold (L1).

The parser itself bounds nothing: neither the length of a request's head nor the time for it, nor how long
a client may stall an upload or leave an answer unread. A sweep once a second enforces the times, so
that they cost a request no timer.

Requests that lead to ``ValuePath`` become a ``ConnectionExchange`` and are handled here; all others are uvicorn's, as
ASGI. Both stand in one queue, so that pipelined ones are answered in order.

What that was worth before heads were remembered, in µs of CPU a request for everything but the engine (system calls
included, 32 connections, lowest of three): GET of 4 KiB 38 as ASGI, 21 so; PUT of 4 KiB 45 and 26, of 64 KiB 73 and 41,
of 1 MiB 1310 and 205.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.access.gate import Place
from api.access.permissions import Room
from api.admission import place_of
from api.events import ENDLESS
from api.headers import read_fields
from api.value_path import ValuePath
from rawblockd.exchange import ConnectionExchange
from rawblockd.known_heads import Head, KnownHeads, find_head
from rawblockd.receiver import READ_BYTES, Receiver
from rawblockd.refusal import Refusal, too_many_connections
from rawblockd.sending import Sender

log = logging.getLogger("rawblockd.http")

HEAD_MAX_BYTES = 64 * 1024
"""Request line and headers together. The largest legal: 3 KiB of escaped key, 8 KiB of metadata, the usual rest."""
TARGET_MAX_BYTES = 16 * 1024
"""Path and query: 3 KiB of escaped key, and as much again for a prefix and a cursor, with room to spare."""
FIELDS_MAX = 128
"""Header fields: 64 of metadata, and the usual rest."""
EXCESS_CONNECTIONS = 64
"""Connections above max_connections that still get an answer; those beyond are closed unheard."""
PIPELINED_AT_ONCE = 16
"""Pipelined requests answered in one go, if none of them has to wait; then others have a turn of the loop."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int
    body_timeout_seconds: float
    send_timeout_seconds: float
    keep_alive_seconds: float


Cycle = RequestResponseCycle | ConnectionExchange


class Connection(HttpToolsProtocol):
    limits: ConnectionLimits
    value_path: ValuePath | None
    """Without one, everything is ASGI."""
    room: Room | None
    read_buffer: bytearray
    """Shared by the connections of one server, and so of one loop: what was read is used up before the next read."""
    unended: set[ConnectionExchange]
    """Those of the server whose handlers have not ended within their first step, also of clients that have left."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.head_open = True
        self._head_bytes = 0
        self.refusal: Refusal | None = None
        self._is_between = True
        """The parser is through with a message, and the next byte that it gets begins one."""
        self._known_heads = KnownHeads()
        self._unknown_head: Head | None = None
        self._running: Cycle | None = None
        """The newest request that was begun."""
        self.is_busy = False
        """Its handler is not through."""
        self._ready: ConnectionExchange | None = None
        """To be begun when the parser is through with what was read: often the body has come by then."""
        self._advancing = False
        self._ends = False
        """The client has sent all that it will: behind the last answer the connection ends."""
        self._lingering: ConnectionExchange | None = None
        self.heard_at = self.loop.time()
        self.head_began_at = self.heard_at
        self.idle_since: float | None = None
        self.unsent_bytes = 0
        self.sent_at = self.heard_at
        self._receiver = Receiver(self, memoryview(self.read_buffer))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_protocol(self._receiver)
        self.place: Place = place_of(self.server)
        self._sender = Sender(transport, self.server_state, self.cut)
        self.send, self.server_lines = self._sender.send, self._sender.server_lines
        excess = len(self.connections) - self.limits.max_connections
        if excess > EXCESS_CONNECTIONS:
            transport.abort()
        elif excess > 0:
            self.app = too_many_connections

    def connection_lost(self, exc: Exception | None) -> None:
        if self._newest_exchange is not None:
            self.cycle = None  # type: ignore[assignment]  # not one that uvicorn can tell
        super().connection_lost(exc)
        # uvicorn tells only the newest request; of pipelined ones that isn't the one being answered.
        self.pipeline.clear()
        self._ready = None
        if self._running is not None:
            _disconnect(self._running)

    @property
    def is_stream(self) -> bool:
        """True if the newest answer is one that goes on until somebody ends it."""
        return isinstance(self._running, RequestResponseCycle) and ENDLESS in self._running.scope

    @property
    def _path_of_values(self) -> ValuePath:
        assert self.value_path is not None, "an exchange leads there"
        return self.value_path

    @property
    def _newest_exchange(self) -> ConnectionExchange | None:
        """The newest request, if it is one in front of ASGI."""
        newest: object = self.cycle
        return newest if type(newest) is ConnectionExchange else None

    def _is_idle(self) -> bool:
        """True if no answer is due any more."""
        return not self.pipeline and (self._running is None or self._running.response_complete)

    # -- what arrives ----------------------------------------------------------------------------------------------

    def note_heard(self) -> None:
        self.heard_at = self.loop.time()

    def on_read(self, data: memoryview) -> None:
        """``data``, at the start of the buffer, was read."""
        self.heard_at = self.loop.time()
        rests, self.idle_since = self.idle_since is not None, None
        if rests and self._is_between and self._lingering is None and self.refusal is None:
            head = find_head(self.read_buffer, len(data))
            if head is not None:
                fields = self._known_heads.fields(head)
                if fields is not None and self._begin_known(head, fields, data):
                    return
                self._unknown_head = head
        self.data_received(data)  # type: ignore[arg-type]
        self._unknown_head = None

    def _begin_known(self, head: Head, fields: dict[bytes, bytes], data: memoryview) -> bool:
        """Begin a request whose head is known, without the parser. False if more than one request was read."""
        length = int(head.length_text) if head.length_text else 0
        if len(data) - head.size_bytes > length:
            return False
        exchange = ConnectionExchange(
            self, head.method, head.raw_path, b"", fields, keep_alive=True, awaits_continue=False
        )
        self.cycle = exchange  # type: ignore[assignment]
        if length:
            exchange.take_unparsed(data[head.size_bytes :], length)
            self._begin(exchange, self.app)
            exchange.keep_pieces()
            if exchange.more_body and not exchange.response_complete:
                self._receiver.unparsed = exchange
        else:
            exchange.more_body = False
            self._begin(exchange, self.app)
        return True

    def data_received(self, data: bytes) -> None:
        if self.refusal is not None:
            self.refusal.discard(len(data))
            return
        if self._lingering is not None and self._lingering.throw_away(len(data)):
            return
        if self.head_open:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.head_open and self._head_bytes > HEAD_MAX_BYTES and self.refusal is None:
            self._refuse(431, "The head of the request is too large.", "head_too_large")
        ready = self._ready
        if ready is not None:
            self._ready = None
            self.pipeline.append((ready, None))  # type: ignore[arg-type]
            self._advance()
        elif isinstance(self._running, ConnectionExchange):
            # Not the newest request: the end of a body may have come with the head of the next one.
            self._running.on_parsed()

    def on_end_of_input(self) -> bool:
        """The client has ended its side. True if the connection stays for the answers that are due.

        In the middle of a request, between two, and behind one whose answer has no end of itself, it has left. Above
        TLS both sides end at once, and the transport asks nobody.
        """
        is_due = self._is_between and not self._is_idle() and not self.cycle.more_body and not self.is_stream
        self._ends = is_due and self._sender.descriptor >= 0 and self._lingering is None and self.refusal is None
        return self._ends

    def on_message_begin(self) -> None:
        self._is_between = False
        self.head_open = True
        self.head_began_at = self.heard_at
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        self.head_open = False
        head_bytes, self._head_bytes = self._head_bytes, 0
        if self.refusal is not None or self._refuse_large_head(head_bytes):
            return
        try:
            target = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            # Raised inside a callback it would end as a log line with a traceback: it is the client's mistake.
            self._refuse(400, "The request line is not valid.", "bad_request")
            return
        raw_path = target.path or b""
        if self.value_path is not None and self.value_path.leads_to(raw_path) and self.app is not too_many_connections:
            self._new_exchange(raw_path, target.query or b"")
        else:
            self._hand_on()

    def _new_exchange(self, raw_path: bytes, query: bytes) -> None:
        fields = dict(self.headers)
        if len(fields) != len(self.headers):
            fields = read_fields(self.headers)
        parser = self.parser
        earlier: Cycle | None = self.cycle
        exchange = ConnectionExchange(
            self,
            parser.get_method().decode("ascii"),
            raw_path,
            query,
            fields,
            # Without the field, the parser knows that HTTP/1.0 closes; with it, uvicorn closes nonetheless.
            keep_alive=parser.should_keep_alive() and (b"connection" not in fields or self._is_new_http()),
            awaits_continue=self.expect_100_continue,
        )
        if self._unknown_head is not None:
            if exchange.keep_alive:
                self._known_heads.remember(self._unknown_head, fields)
            self._unknown_head = None
        self.cycle = exchange  # type: ignore[assignment]
        if earlier is None or earlier.response_complete:
            self._running = self._ready = exchange
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, None))  # type: ignore[arg-type]

    def _is_new_http(self) -> bool:
        return bool(self.parser.get_http_version() != "1.0")

    def _hand_on(self) -> None:
        """Let uvicorn make an ASGI request of the head."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        # The parser goes on with what it has although the request was refused: there is no cycle for it.
        if self.refusal is not None:
            return
        newest = self._newest_exchange
        if newest is not None:
            newest.on_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_between = not self.parser.should_upgrade()
        if self.refusal is not None:
            return
        newest = self._newest_exchange
        if newest is not None:
            newest.on_message_complete()
        else:
            super().on_message_complete()

    def begin_direct_body(self, exchange: ConnectionExchange) -> None:
        """Let the rest of the newest request's body go past the parser."""
        self._receiver.direct = exchange

    def end_direct_body(self) -> None:
        """The parser, which knows of no end, is replaced. Behind a body that was broken off the connection ends."""
        exchange, self._receiver.direct = self._receiver.direct, None
        if exchange is not None and not exchange.is_unparsed:
            self._is_between = not exchange.more_body
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def end_unparsed_body(self) -> None:
        """All of it is there: what comes next is the parser's again."""
        self._receiver.unparsed = None

    def linger(self, exchange: ConnectionExchange, seconds: float) -> None:
        """Let ``exchange`` throw away what still comes, and end the connection at the latest in ``seconds``."""
        self._lingering = exchange
        self.flow.resume_reading()
        self.loop.call_later(seconds, self.transport.close)

    # -- what is answered ------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """End the connection at once."""
        self.transport.abort()
        if self._running is not None:
            _disconnect(self._running)

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if isinstance(self._running, ConnectionExchange):
            self._running.on_drained()
        # Also without a request in line: reading goes on, a refusal is sent, the connection is idle only now.
        self._advance()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self.is_busy = True
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.is_busy = False
        self.server_state.total_requests += 1
        flow = self.flow
        if (
            self.pipeline
            or self._ends
            or self.refusal is not None
            or flow.write_paused
            or flow.read_paused
            or self._advancing
        ):
            self._advance()
        else:
            self.idle_since = self.loop.time()

    def on_handled(self, exchange: ConnectionExchange, error: BaseException | None) -> None:
        """The handler of ``exchange`` has ended."""
        self.unended.discard(exchange)
        if isinstance(error, Exception):
            log.error("a mistake of the daemon in a request", exc_info=error)
            self._path_of_values.end_in_mistake(exchange)
        exchange.finish()
        self.on_response_complete()

    def _advance(self) -> None:
        """Go on with the requests in line, if none is being answered. Handlers that need not wait end within."""
        if self._advancing:
            return
        self._advancing = True
        try:
            for _ in range(PIPELINED_AT_ONCE):
                if self.is_busy or self.flow.write_paused or self.transport.is_closing():
                    break
                if not self.pipeline:
                    self._rest()
                    break
                self._begin(*self.pipeline.pop())
            else:
                self.loop.call_soon(self._advance)
        finally:
            self._advancing = False
        if self.pipeline:
            self.flow.pause_reading()

    def _rest(self) -> None:
        """Nothing is in line."""
        if self._ends:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self.refusal is not None:
            self.refusal.send()
        else:
            self.idle_since = self.loop.time()

    def _begin(self, cycle: Cycle, app: ASGI3Application) -> None:
        if not isinstance(cycle, ConnectionExchange):
            self._start_asgi_task(cycle, app)
            return
        self._running = cycle
        self.is_busy = True
        cycle.step(self._path_of_values.begin, cycle)
        if not cycle.is_over:
            self.unended.add(cycle)

    # -- what is refused -------------------------------------------------------------------------------------------

    def _refuse_large_head(self, received_bytes: int) -> bool:
        """True if the head is complete and too large in one of its measures. Only what was received is quick to know:
        it holds some of the body too.
        """
        if len(self.url) > TARGET_MAX_BYTES:
            self._refuse(414, "The target of the request is too long.", "target_too_long")
        elif len(self.headers) > FIELDS_MAX:
            self._refuse(431, "The request has too many header fields.", "head_too_large")
        elif received_bytes > HEAD_MAX_BYTES and self._head_size_bytes() > HEAD_MAX_BYTES:
            self._refuse(431, "The head of the request is too large.", "head_too_large")
        return self.refusal is not None

    def _head_size_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        if self._lingering is not None:
            self.transport.close()
        else:
            self._refuse(400, msg, "bad_request")

    def _refuse(self, status: int, title: str, code: str) -> None:
        if self.refusal is not None:
            return
        self.refusal = Refusal(self.transport, self.loop, status, title, code)
        newest: Cycle | None = self.pipeline[0][0] if self.pipeline else self._running
        if newest is not None and newest.more_body:
            # It was refused in mid-body, so its own answer is this one.
            if self.pipeline:
                self.pipeline.popleft()
            elif not newest.response_started:
                self._running = None
                if isinstance(newest, ConnectionExchange):
                    newest.is_refused = True
            _disconnect(newest)
        # Answers that are due come first: written now, this one would be taken for one of theirs.
        if self._is_idle():
            self.refusal.send()


def _disconnect(cycle: Cycle) -> None:
    """Let the application know that nothing it sends for this request arrives any more."""
    if isinstance(cycle, ConnectionExchange):
        cycle.leave()
    elif not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def connection_class(limits: ConnectionLimits, value_path: ValuePath | None, room: Room | None) -> type[Connection]:
    """The protocol class for a server: uvicorn makes the instances itself, so what they share goes into the class."""
    shared: dict[str, Any] = {
        "limits": limits,
        "value_path": value_path,
        "room": room,
        "read_buffer": bytearray(READ_BYTES),
        "unended": set(),
    }
    return type("Connection", (Connection,), shared)
