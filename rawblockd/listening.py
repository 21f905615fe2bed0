"""The listening socket: TCP or Unix, bound before anything touches the device."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from rawblockd.errors import AddressUnavailable
from rawblockd.settings import Settings

BACKLOG = 2048


class Listener:
    """A bound, listening socket and how it is written for people."""

    def __init__(self, bound: socket.socket, url: str, path: str | None = None) -> None:
        self.socket = bound
        self.url = url
        self._path = path
        self._identity = _identity(path) if path else None

    def close(self) -> None:
        """Stop listening. A Unix socket's file is removed unless another daemon has put its own there."""
        self.socket.close()
        if self._path and _identity(self._path) == self._identity:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


def listen(settings: Settings) -> Listener:
    """Bind and listen as the settings say, or raise ``AddressUnavailable``."""
    if settings.uds is not None:
        return _listen_unix(settings.uds)
    return _listen_tcp(settings.host, settings.port)


def _listen_tcp(host: str, port: int) -> Listener:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            # A restart must not wait for the old connections' TIME_WAIT.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise AddressUnavailable(f"{host} port {port}: {error.strerror}", host=host, port=port) from error
    shown = f"[{host}]" if ":" in host else host
    return Listener(bound, f"http://{shown}:{bound.getsockname()[1]}")


def _listen_unix(path: str) -> Listener:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # Who may connect follows from the umask and the folder: the unit sets both.
        bound.bind(path)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise AddressUnavailable(f"{path}: {error.strerror or error}", path=path) from error
    return Listener(bound, f"unix://{os.path.abspath(path)}", path)


def _remove_stale(path: str) -> None:
    """Remove the socket file of a daemon that is gone. Anything else at the path is left alone."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its backlog is full, so somebody listens
    raise OSError(errno.EADDRINUSE, "another process listens there")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
