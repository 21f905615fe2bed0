"""``api.exchange.Exchange`` on a connection: one request in front of ASGI."""

from __future__ import annotations

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from api.access.gate import Place
from api.access.permissions import Room
from api.exchange import UNKNOWN_LENGTH, Body, BodyTarget, BodyTimeout, ClientGone
from api.headers import has_body
from api.limits import LINGER_MAX_BYTES, LINGER_MAX_SECONDS, SEND_MAX_BYTES, TRICKLE_BYTES
from rawblockd.handling import Handling, pause

if TYPE_CHECKING:
    from rawblockd.connection import Connection

_BODILESS = frozenset({204, 304})
_CLOSE = b"connection: close\r\n"


class ConnectionExchange:
    """uvicorn asks it, as one of its own requests, for ``keep_alive``, ``more_body`` and ``response_complete``.

    What most requests never change is the class's: there is one of these for each.
    """

    _handling: Handling | None = None
    _gone = False

    more_body = True
    """Until the parser, or the count of its bytes, says that the body is complete."""
    _body_taken = False
    _pieces_bytes = 0
    _arrived_bytes = 0
    _target: BodyTarget | None = None
    is_unparsed = False
    """Its head was known, and its body goes past the parser."""
    _waits_for_body = False
    _late = False
    _fresh_bytes = 0

    answered = False
    response_complete = False
    """The answer is sent and the handler is through."""
    _is_sent = False
    _is_handled = False
    lingers = False
    is_refused = False
    """The parser met a mistake in the body: the connection answers itself, and ends itself."""
    _head = b""
    _left_bytes = UNKNOWN_LENGTH
    _waits_for_drain = False
    _timer: TimerHandle

    def __init__(
        self,
        connection: Connection,
        method: str,
        raw_path: bytes,
        query: bytes,
        fields: dict[bytes, bytes],
        *,
        keep_alive: bool,
        awaits_continue: bool,
    ) -> None:
        self._connection = connection
        self.method = method
        self.raw_path = raw_path
        self.query = query
        self.fields = fields
        self.keep_alive = keep_alive
        self._awaits_continue = awaits_continue
        self._pieces: deque[bytes | memoryview] = deque()
        self._pace_began_at = self._waited_until = connection.heard_at

    @property
    def place(self) -> Place:
        return self._connection.place

    @property
    def room(self) -> Room | None:
        return self._connection.room

    @property
    def response_started(self) -> bool:
        return self.answered

    @property
    def body_unread(self) -> bool:
        return not self._body_taken and has_body(self.fields)

    def leave(self) -> None:
        """The client has left."""
        self._gone = True
        self._wake()

    # -- who answers -------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when nobody answers any more."""
        return self._is_handled

    def handle(self, handler: Coroutine[Any, Any, None]) -> None:
        handling = self._handling = Handling(self._connection.loop, handler, self._on_handled)
        handling.first_step()

    def step(self, handler: Callable[..., bool], *arguments: object) -> None:
        try:
            if not handler(*arguments):
                return
        except BaseException as error:  # as of a coroutine: whatever a handler raises is its outcome
            self._end(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(None)

    def cancel(self) -> None:
        """End the handler where it waits. An ordinary call waits for the device alone, which ends by itself."""
        if self._handling is not None:
            self._handling.cancel()

    def _on_handled(self, _handling: Handling, error: BaseException | None) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._is_handled = True
        self._connection.on_handled(self, error)

    def _wake(self) -> None:
        """Let the handler go on, if it waits for the client."""
        if self._waits_for_body or self._waits_for_drain:
            self._waits_for_body = self._waits_for_drain = False
            assert self._handling is not None, "only a coroutine waits for the client"
            self._handling.resume()

    # -- the body: what the connection tells -------------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """The parser has a piece. Nobody is woken before it is through."""
        self._arrived_bytes += len(data)
        if self.lingers:
            self._discard()
        elif not self._is_sent:
            self._pieces.append(data)
            self._pieces_bytes += len(data)
            if self._pieces_bytes > HIGH_WATER_LIMIT:
                self._connection.flow.pause_reading()

    def take_unparsed(self, body: memoryview, length: int) -> None:
        """``body`` is what has come already of ``length`` bytes that go past the parser. It lies in the connection's
        buffer: the first step of the handler may take it from there, else ``keep_pieces`` copies it."""
        self.is_unparsed = True
        count = len(body)
        if count:
            self._pieces.append(body)
            self._pieces_bytes = self._arrived_bytes = count
        self.more_body = count < length

    def keep_pieces(self) -> None:
        """The connection needs its buffer for the next read."""
        if self._pieces:
            self._pieces[0] = bytes(self._pieces[0])

    @property
    def missing_bytes(self) -> int:
        return self._length - self._arrived_bytes

    def on_unparsed(self, data: bytes) -> None:
        """A piece of the body that goes past the parser."""
        self.on_body(data)
        if not self.missing_bytes:
            self._connection.end_unparsed_body()
            self.on_message_complete()
        self.on_parsed()

    def on_message_complete(self) -> None:
        self.more_body = False
        if self.lingers:
            self._close()

    def on_parsed(self) -> None:
        """The parser is through with what was read."""
        if self._waits_for_body and (self._pieces or not self.more_body):
            self._wake()

    def room_left(self) -> memoryview:
        """Where what is read next goes, while the body arrives directly."""
        assert self._target is not None
        return self._target.room()

    def filled(self, count: int) -> None:
        """So many bytes have arrived directly."""
        target = self._target
        assert target is not None
        target.filled(count)
        self._arrived_bytes += count
        self._note_pace(count)
        if self._arrived_bytes == self._length:
            self.more_body = False
            self._connection.end_direct_body()
            self._connection.end_unparsed_body()
        elif len(target.room()):
            return
        self._wake()
        if self._target is not None and not self._waits_for_body:
            self._connection.flow.pause_reading()  # until there is room again

    @property
    def _length(self) -> int:
        return int(self.fields[b"content-length"])

    # -- the body: what handlers ask for -----------------------------------------------------------------------------

    async def receive(self) -> bytes:
        while not self._pieces:
            if not self.more_body:
                self._body_taken = True
                return b""
            await self._wait_for_body()
        return bytes(self._take_piece())

    def take_arrived(self, target: BodyTarget) -> bool:
        while self._pieces and len(self._pieces[0]) <= len(target.room()):
            _copy_whole(self._take_piece(), target)
        self._body_taken = not self._pieces and not self.more_body
        return self._body_taken

    async def receive_into(self, target: BodyTarget) -> None:
        while True:
            while self._pieces:
                await _copy(self._take_piece(), target)
            if not self.more_body:
                self._body_taken = True
                return
            if len(target.room()):
                break
            await target.make_room()
        await self._receive_directly(target)

    async def _receive_directly(self, target: BodyTarget) -> None:
        """Nothing lies between what is in ``target`` and what is still in the socket."""
        self._target = target
        self._connection.begin_direct_body(self)
        try:
            while self.more_body:
                if len(target.room()):
                    await self._wait_for_body()
                else:
                    await target.make_room()
            self._body_taken = True
        finally:
            self._target = None
            self._connection.end_direct_body()

    def _take_piece(self) -> bytes | memoryview:
        piece = self._pieces.popleft()
        self._pieces_bytes -= len(piece)
        self._note_pace(len(piece))
        if not self._pieces and not self.more_body:
            self._body_taken = True
        return piece

    async def _wait_for_body(self) -> None:
        """Wait until something has arrived; in ``target``, until it is full or the body is complete.

        The client has the body timeout for each ``TRICKLE_BYTES``. What happens between two waits (a device that
        writes, memory that is waited for) is not its time.
        """
        if self._gone:
            raise ClientGone()
        connection = self._connection
        if self._awaits_continue:
            self._awaits_continue = False
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.flow.resume_reading()
        loop = connection.loop
        self._pace_began_at += loop.time() - self._waited_until
        self._timer = loop.call_at(self._pace_ends_at, self._check_pace)
        self._waits_for_body = True
        try:
            await pause()
        finally:
            self._waits_for_body = False
            self._timer.cancel()
        self._waited_until = loop.time()
        if self._gone:
            raise ClientGone()
        if self._late:
            raise BodyTimeout()

    @property
    def _pace_ends_at(self) -> float:
        return self._pace_began_at + self._connection.limits.body_timeout_seconds

    def _note_pace(self, count: int) -> None:
        self._fresh_bytes += count
        if self._fresh_bytes >= TRICKLE_BYTES:
            self._fresh_bytes = 0
            self._pace_began_at = self._connection.loop.time()

    def _check_pace(self) -> None:
        loop = self._connection.loop
        if loop.time() < self._pace_ends_at:
            self._timer = loop.call_at(self._pace_ends_at, self._check_pace)
        else:
            self._late = True
            self._wake()

    # -- the answer --------------------------------------------------------------------------------------------------

    def answer(self, status: int, lines: bytes, body: Body = b"", *, length: int | None = None) -> None:
        self._begin_answer()
        if not self._gone:
            if length is None:
                length = len(body)
            told = b"" if status in _BODILESS or length == UNKNOWN_LENGTH else b"content-length: %d\r\n" % length
            head = self._head_of(status, lines, told)
            if self.method == "HEAD" or not body:
                self._connection.send(head)
            else:
                self._connection.send(head, body)
        self._complete()

    def refuse(self, status: int, lines: bytes, body: bytes, *, linger: bool) -> None:
        self._begin_answer()
        self.keep_alive = False
        if not self._gone:
            head = self._head_of(status, lines, b"content-length: %d\r\n" % len(body))
            self._connection.send(head, b"" if self.method == "HEAD" else body)
        if linger and self.more_body and not self._gone:
            self.lingers = True
            self._pieces.clear()
            self._arrived_bytes = 0 if b"transfer-encoding" in self.fields else self._arrived_bytes
            self._connection.linger(self, LINGER_MAX_SECONDS)
        else:
            self._complete()

    def begin(self, status: int, lines: bytes, *, length: int | None = None) -> None:
        self._begin_answer()
        if length is None:
            self._head = self._head_of(status, lines, b"transfer-encoding: chunked\r\n")
        else:
            self._head = self._head_of(status, lines, b"content-length: %d\r\n" % length)
            self._left_bytes = length

    def push(self, *pieces: Body) -> None:
        if self._gone:
            raise ClientGone()
        count = sum(map(len, pieces))
        if not count:
            return
        head, self._head = self._head, b""
        if self._left_bytes == UNKNOWN_LENGTH:
            self._connection.send(b"%b%x\r\n" % (head, count), *pieces, b"\r\n")
        elif count <= self._left_bytes:
            self._left_bytes -= count
            self._connection.send(head, *pieces)
        else:
            raise RuntimeError("an answer longer than its Content-Length")

    async def drained(self, within_seconds: float | None = None) -> bool:
        connection = self._connection
        while self._is_waited_for():
            before = connection.transport.get_write_buffer_size()
            wait_seconds = connection.limits.send_timeout_seconds if within_seconds is None else within_seconds
            timer = connection.loop.call_later(wait_seconds, self._wake)
            self._waits_for_drain = True
            try:
                await pause()
            finally:
                self._waits_for_drain = False
                timer.cancel()
            if within_seconds is not None:
                break
            if self._is_waited_for():
                taken = before - connection.transport.get_write_buffer_size()
                if taken < min(SEND_MAX_BYTES, before):
                    connection.cut()
        if self._gone:
            raise ClientGone()
        return not connection.flow.write_paused

    def _is_waited_for(self) -> bool:
        return self._connection.flow.write_paused and not self._gone

    def on_drained(self) -> None:
        """What was written has left."""
        if self._waits_for_drain:
            self._wake()

    def end(self) -> None:
        if not self._gone:
            if self._left_bytes == UNKNOWN_LENGTH:
                self._connection.send(self._head + b"0\r\n\r\n")
            elif self._left_bytes:
                raise RuntimeError("an answer shorter than its Content-Length")
            elif self._head:
                self._connection.send(self._head)
        self._complete()

    def _begin_answer(self) -> None:
        if self.answered:
            raise RuntimeError("a request is answered twice")
        self.answered = True
        self._awaits_continue = False

    def _head_of(self, status: int, lines: bytes, framing: bytes) -> bytes:
        close = b"" if self.keep_alive else _CLOSE
        return b"%b%b%b%b%b\r\n" % (STATUS_LINE[status], self._connection.server_lines(), lines, framing, close)

    def _complete(self) -> None:
        self._is_sent = True
        if self._is_handled:
            self.finish()

    def finish(self) -> None:
        """The handler has ended: so does the answer, unless a body is thrown away behind it.

        An answer that is not complete ends the connection: the client must see that what it has is not all.
        """
        if self.lingers:
            return
        self.response_complete = True
        if not ((self.keep_alive and self._is_sent) or self.is_refused):
            self._connection.transport.close()

    # -- a body that nobody reads ------------------------------------------------------------------------------------

    def throw_away(self, count: int) -> bool:
        """Count what came of a body that is thrown away. False if only the parser knows where it ends."""
        if b"transfer-encoding" in self.fields:
            return False
        self._arrived_bytes += count
        self._discard()
        return True

    def _discard(self) -> None:
        arrived = self._arrived_bytes
        if arrived > LINGER_MAX_BYTES or (b"transfer-encoding" not in self.fields and arrived >= self._length):
            self._close()

    def _close(self) -> None:
        self.lingers = False
        self._complete()


def _copy_whole(piece: bytes | memoryview, target: BodyTarget) -> None:
    count = len(piece)
    target.room()[:count] = piece
    target.filled(count)


async def _copy(piece: bytes | memoryview, target: BodyTarget) -> None:
    """Let a piece go where the body goes. Suspends only where ``make_room`` does."""
    if len(piece) <= len(target.room()):
        _copy_whole(piece, target)
        return
    # What lies in the connection's buffer is at most its size, and a put's first room is larger.
    assert type(piece) is bytes
    view = memoryview(piece)
    while len(view):
        room = target.room()
        part = view[: len(room)]
        if len(part):
            room[: len(part)] = part
            target.filled(len(part))
            view = view[len(part) :]
        else:
            await target.make_room()
