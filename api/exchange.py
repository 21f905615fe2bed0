"""One request and its answer, as handlers of values meet the network: no ASGI, no framework.

A handler is a coroutine. It is stepped by whoever received the request, not by a task: ``asyncio.timeout`` and
``asyncio.TaskGroup`` don't work in it. What needs no waiting is an ordinary call here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from api.access.gate import Place
from api.access.permissions import Room


class ClientGone(Exception):
    """The client left, or was cut off, before the request was through: no answer is possible any more."""


class BodyTimeout(Exception):
    """The client paused for longer than ``body_timeout_seconds`` within the body: 408."""


Body = bytes | bytearray | memoryview
"""A piece of an answer. It is the caller's again when the call returns: what the network hasn't taken by then was
copied."""

UNKNOWN_LENGTH = -1


class BodyTarget(Protocol):
    """Where a body goes without a detour: the kernel copies it to ``room()``. A put under way is one."""

    def room(self) -> memoryview:
        """Writable; where the next bytes go, never more than are missing. Empty if ``make_room`` is needed first."""
        ...

    def filled(self, count: int) -> None:
        """The first ``count`` bytes of ``room()`` have arrived."""
        ...

    async def make_room(self) -> None: ...


class Exchange(Protocol):
    """Either ``answer`` or ``refuse`` once, or ``begin``, ``push`` and ``end``.

    For a client that has left they do nothing, where they don't say that they raise ``ClientGone``.
    """

    @property
    def method(self) -> str: ...

    @property
    def raw_path(self) -> bytes: ...

    @property
    def query(self) -> bytes: ...

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Header fields by lower-case name; lines of one name are joined with a comma (RFC 9110, 5.3)."""
        ...

    @property
    def place(self) -> Place:
        """Where the request came in."""
        ...

    @property
    def room(self) -> Room | None:
        """Which routes the listener serves; None for all."""
        ...

    @property
    def answered(self) -> bool:
        """True from the moment the head of an answer is handed over: nothing else can be answered any more."""
        ...

    # -- who answers ----------------------------------------------------------------------------------------------

    def handle(self, handler: Coroutine[Any, Any, None]) -> None:
        """Let a coroutine answer. It is stepped at once; the request ends with it."""
        ...

    def step(self, handler: Callable[..., bool], *arguments: object) -> None:
        """Let an ordinary call answer, or a part of it: the request ends with it if it returns True, or raises."""
        ...

    # -- the body -------------------------------------------------------------------------------------------------

    @property
    def body_unread(self) -> bool:
        """True while a body is announced and not wholly received: an error answer then ends the connection."""
        ...

    async def receive(self) -> bytes:
        """The next piece, empty only at the end of the body. Raises ``BodyTimeout`` and ``ClientGone``.

        A client has the body timeout for each ``limits.TRICKLE_BYTES``, and for the last ones; only the time in which
        it is waited for counts.
        """
        ...

    def take_arrived(self, target: BodyTarget) -> bool:
        """Copy what has arrived of the body into ``target``, as far as it has room now; True if that is all of it."""
        ...

    async def receive_into(self, target: BodyTarget) -> None:
        """Let the body, which has a declared length, arrive in ``target``: what came with the head is copied, the rest
        goes there straight from the kernel. Raises as ``receive``, and what ``make_room`` raises."""
        ...

    # -- the answer -----------------------------------------------------------------------------------------------

    def answer(self, status: int, lines: bytes, body: Body = b"", *, length: int | None = None) -> None:
        """The whole answer. ``lines`` are header fields as ``headers.encode`` makes them.

        Content-Length is added: that of the body, or ``length``, or none for ``UNKNOWN_LENGTH`` and for a status that
        has no body. An answer to HEAD is sent without its body.
        """
        ...

    def refuse(self, status: int, lines: bytes, body: bytes, *, linger: bool) -> None:
        """An answer to a request whose body was not read; it ends the connection.

        The connection can't go on: a client that stops sending after the answer would leave the rest of its body to be
        taken for the next request. With ``linger``, what it is still sending is thrown away for a moment before the
        close.
        """
        ...

    def begin(self, status: int, lines: bytes, *, length: int | None = None) -> None:
        """The head of an answer that is pushed in pieces, chunked without a ``length``. It leaves with the first."""
        ...

    def push(self, *pieces: Body) -> None:
        """Send pieces in one go. ``drained`` is awaited before the next ones. Raises ``ClientGone``."""
        ...

    async def drained(self, within_seconds: float | None = None) -> bool:
        """Wait until the client has taken the most of what was pushed.

        Given ``within_seconds``: False if it has not by then. Else a client that doesn't take ``limits.SEND_MAX_BYTES``
        within each send timeout is cut off. Raises ``ClientGone``.
        """
        ...

    def end(self) -> None:
        """The answer that was begun is complete."""
        ...
