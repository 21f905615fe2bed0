"""Answers on their way out: written without a copy of what the kernel takes at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from uvicorn.server import ServerState

from api.exchange import Body

_PARTS_MAX = os.sysconf("SC_IOV_MAX")
"""Most buffers that the kernel takes at once, the head among them."""


class Sender:
    """``fail`` is called where the connection turns out to be broken."""

    def __init__(self, transport: asyncio.Transport, server_state: ServerState, fail: Callable[[], None]) -> None:
        self._transport = transport
        self._server_state = server_state
        self._fail = fail
        self._default_headers: list[tuple[bytes, bytes]] = []
        self._server_lines = b""
        self.descriptor = -1
        """Of the socket, where nothing lies between it and what is sent; -1 above TLS."""
        if transport.get_extra_info("sslcontext") is None:
            # What the kernel takes at once needs no buffer in between; what it doesn't is waited for till it is gone.
            self.descriptor = transport.get_extra_info("socket").fileno()
            transport.set_write_buffer_limits(0)

    def send(self, head: bytes, *parts: Body) -> None:
        """The parts are the caller's again on return.

        The transport would keep views of what it can't write at once until it can, and through an abort; a slow client
        would hold a buffer of the engine as long as it likes. So the rest is copied (38 µs a MiB).
        """
        transport = self._transport
        if transport.is_closing():
            return
        if self.descriptor < 0 or len(parts) >= _PARTS_MAX or transport.get_write_buffer_size():
            transport.write(b"".join((head, *parts)))
            return
        try:
            sent = os.writev(self.descriptor, (head, *parts))
        except BlockingIOError:
            sent = 0
        except OSError:
            self._fail()
            return
        if sent == len(head) + sum(map(len, parts)):
            return
        for part in (head, *parts):
            if sent < len(part):
                transport.write(bytes(memoryview(part)[sent:]))
                sent = 0
            else:
                sent -= len(part)

    def server_lines(self) -> bytes:
        """The header fields of every answer: the date."""
        headers = self._server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers = headers
            self._server_lines = b"".join([b"%b: %b\r\n" % field for field in headers])
        return self._server_lines
