"""Where clients come in and what they must show: listeners, TLS, tokens; opened together, reloaded together.

Everything is read and bound before the device is touched: what is wrong is then answered with an exit code, and nothing
has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping, Sequence
from socket import socket

import structlog

from api.access.gate import Gate
from api.access.permissions import Room
from api.access.token_file import read_token_file
from api.access.tokens import TokenTable
from api.admission import Admission
from api.application import Application, ListenerApplication
from rawblockd.http_server import HttpServer
from rawblockd.listening import Listener, listen, listen_for_operators
from rawblockd.settings import Settings
from rawblockd.socket_activation import ADMIN, HTTP
from rawblockd.tls import HANDSHAKES_MAX, tls_context
from storage.errors import SettingsInvalid

log = structlog.stdlib.get_logger("rawblockd.access")

OPERATORS_CONNECTIONS_MAX = 64
"""Connections at the operators' own listener, whatever goes on at the other one."""


class Entrance:
    """Open from the constructor to ``close``. Raises SettingsInvalid and AddressUnavailable."""

    def __init__(self, settings: Settings, passed: Mapping[str, Sequence[socket]]) -> None:
        self._settings = settings
        self._gate = Gate(_read_tokens(settings), frozenset(filter(None, (settings.allowed_hosts or "").split(","))))
        self._tls = tls_context(settings)
        self.admission = Admission(self._gate, metrics_open=settings.metrics_open)
        with contextlib.ExitStack() as undoing:
            self._clients = listen(settings, passed.get(HTTP, ()))
            undoing.callback(self._clients.close)
            self._operators = listen_for_operators(settings, passed.get(ADMIN, ()))
            undoing.pop_all()
        self._servers: list[HttpServer] = []

    @property
    def urls(self) -> dict[str, str]:
        """As they are logged: ``url`` for clients, and ``admin_url`` if operators have their own."""
        operators = {} if self._operators is None else {"admin_url": self._operators.url}
        return {"url": self._clients.url, **operators}

    @property
    def connections_max(self) -> int:
        handshakes = 0 if self._tls is None else HANDSHAKES_MAX
        operators = 0 if self._operators is None else OPERATORS_CONNECTIONS_MAX + handshakes
        return self._settings.max_connections + handshakes + operators

    async def serve(self, application: Application) -> None:
        """Serve until ``finish``, and then until the last request has ended or the time to drain is over."""
        if self._operators is None:
            await self._serve_one(application, self._clients, None, None)
            return
        async with asyncio.TaskGroup() as serving:
            serving.create_task(self._serve_one(application, self._clients, Room.VALUES, None))
            serving.create_task(self._serve_one(application, self._operators, Room.CONTROL, OPERATORS_CONNECTIONS_MAX))

    async def _serve_one(
        self, application: Application, listener: Listener, room: Room | None, connections_max: int | None
    ) -> None:
        server = HttpServer(
            application if room is None else ListenerApplication(application, room),
            self._settings,
            value_path=application.value_path,
            room=room,
            max_connections=connections_max,
            tls=self._tls,
        )
        self._servers.append(server)
        await server.serve(sockets=listener.sockets)

    def finish(self) -> None:
        """Accept no more, and let requests end."""
        for server in self._servers:
            server.should_exit = True

    def close(self) -> None:
        self._clients.close()
        if self._operators is not None:
            self._operators.close()

    def reload(self) -> None:
        """Read tokens and certificate again. What is wrong is logged, and what held before goes on holding."""
        try:
            self._gate.tokens = _read_tokens(self._settings)
        except SettingsInvalid as error:
            log.error("tokens not reloaded: those from before still hold", code=error.code, detail=error.detail)
        try:
            renewed = tls_context(self._settings)
        except SettingsInvalid as error:
            log.error("certificate not reloaded: the one from before still holds", code=error.code, detail=error.detail)
        else:
            self._exchange_tls(renewed)

    def _exchange_tls(self, renewed: ssl.SSLContext | None) -> None:
        if renewed is None:
            return
        self._tls = renewed
        for server in self._servers:
            server.exchange_tls(renewed)
        log.info("certificate loaded", certificate=self._settings.tls_certificate)


def _read_tokens(settings: Settings) -> TokenTable | None:
    if settings.token_file is None:
        if settings.allow_open_access:
            log.warning("access is open: whoever reaches this daemon may read, change and delete everything")
        return None
    tokens = read_token_file(settings.token_file)
    log.info("tokens loaded", tokens=tokens.count, file=settings.token_file)
    return tokens
