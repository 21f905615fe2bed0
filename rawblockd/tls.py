"""TLS for the TCP listeners: the context from the settings' files, and accepting connections with a bounded handshake.

The event loop's own TLS server tells the application of a connection only after the handshake, so that clients who
never finish theirs would be counted by nobody. Here each handshake is a task, their number is bounded, and a
certificate that is read again holds from the next handshake on, without a moment of not listening.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

import structlog

from rawblockd.settings import Settings
from storage.errors import SettingsInvalid

log = structlog.stdlib.get_logger("rawblockd.http")

HANDSHAKES_MAX = 256
"""Handshakes under way at one listener; a connection beyond is closed unheard."""
HANDSHAKE_MAX_SECONDS = 10.0
SHUTDOWN_SECONDS = 2.0
"""How long a client may take for its own goodbye before the connection is cut."""
ACCEPTS_AT_ONCE = 64
PAUSE_SECONDS = 0.5
"""How long nothing is accepted after the system has refused another open file."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The context of the TCP listeners, or None without a certificate. Raises SettingsInvalid for files of no use."""
    if settings.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # The parser of requests is fed by one client; nothing is gained by letting that client ask for new keys.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        with_key = "" if settings.tls_key is None else f" with tls_key {settings.tls_key}"
        raise _unusable("tls_certificate", settings.tls_certificate + with_key, error) from None
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("tls_client_ca", settings.tls_client_ca, error) from None
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask the terminal, and the daemon would wait for ever.
    raise SettingsInvalid("tls_key, or the key in tls_certificate, is protected by a password", settings=["tls_key"])


def _unusable(name: str, path: str, error: OSError) -> SettingsInvalid:
    reason = error.strerror or getattr(error, "reason", None) or str(error)
    return SettingsInvalid(f"{name} {path} can't be used: {reason}", settings=[name])


class TlsAcceptor:
    """Accepts on one listening socket, from ``start`` to ``stop``. ``context`` may be exchanged at any time."""

    def __init__(
        self,
        listening: socket.socket,
        make_connection: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        timeout_seconds: float,
    ) -> None:
        self.context = context
        self._listening = listening
        self._make_connection = make_connection
        self._timeout_seconds = min(HANDSHAKE_MAX_SECONDS, timeout_seconds)
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def stop(self) -> None:
        """Accept no more, and give up the handshakes under way."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        for task in self._handshakes:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            if len(self._handshakes) >= HANDSHAKES_MAX:
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._shake_hands(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _pause_accepting(self, error: OSError) -> None:
        """Let go of a socket that stays readable while the system gives nothing to accept with."""
        if error.errno not in _NO_ROOM:
            raise error
        log.warning("connections can't be accepted for the moment", errno=error.errno)
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self.start)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_connection,
                accepted,
                ssl=self.context,
                ssl_handshake_timeout=self._timeout_seconds,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:
            # Strangers, scanners, plain HTTP: the client's mistake, and the client has heard of it.
            log.debug("a TLS handshake failed", reason=type(error).__name__)
            accepted.close()
