"""Where what a client sends goes: heads to the parser, the rest of a large body straight to where it will lie.

The transport's protocol for the whole life of a connection, so that nothing is switched in its middle: ``get_buffer``
is asked before each read. Of a body it hands out no more than what is missing, so what follows stays in the socket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawblockd.connection import Connection
    from rawblockd.exchange import ConnectionExchange

READ_BYTES = 68 * 1024
"""Most bytes of one read while no body goes straight: a head and a value of 64 KiB (a put of one takes 155 µs of a core
so, 185 where it comes in two reads). What belongs to a body is then copied twice on its way through the parser, so more
would cost large puts what it saves batches."""


class Receiver(asyncio.BufferedProtocol):
    """``buffer`` may be shared by all connections of a loop: what was read is used up before the next read."""

    def __init__(self, connection: Connection, buffer: memoryview) -> None:
        self._connection = connection
        self._buffer = buffer
        self.direct: ConnectionExchange | None = None
        """Takes what comes, while set; its target has room then, or reading is paused."""
        self.unparsed: ConnectionExchange | None = None
        """Its body comes, and not by the parser."""

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.direct is not None:
            return self.direct.room_left()
        if self.unparsed is not None:
            return self._buffer[: self.unparsed.missing_bytes]
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.direct is not None:
            self._connection.note_heard()
            self.direct.filled(nbytes)
        elif self.unparsed is not None:
            self._connection.note_heard()
            self.unparsed.on_unparsed(bytes(self._buffer[:nbytes]))
        else:
            self._connection.on_read(self._buffer[:nbytes])

    def eof_received(self) -> bool:
        return self._connection.on_end_of_input()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
