"""The listening sockets, TCP and Unix: bound before anything touches the device."""

from __future__ import annotations

import contextlib
import errno
import grp
import ipaddress
import os
import socket
import stat
from collections.abc import Sequence

from rawblockd.errors import AddressUnavailable
from rawblockd.settings import Settings
from storage.errors import SettingsInvalid

BACKLOG = 2048


class Listener:
    """Bound, listening sockets of one kind of clients, and how they are written for people."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self._urls: list[str] = []
        self._files: list[tuple[str, tuple[int, int] | None]] = []

    @property
    def url(self) -> str:
        return ", ".join(self._urls)

    def add(self, bound: socket.socket, url: str, path: str | None = None) -> None:
        """``path`` is the file of a Unix socket that is this process's to remove."""
        self.sockets.append(bound)
        self._urls.append(url)
        if path is not None:
            self._files.append((path, _identity(path)))

    def close(self) -> None:
        """Stop listening. A Unix socket's file is removed unless another daemon has put its own there."""
        for bound in self.sockets:
            bound.close()
        for path, identity in self._files:
            if _identity(path) == identity:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def listen(settings: Settings, passed: Sequence[socket.socket] = ()) -> Listener:
    """Bind and listen as the settings say, or raise ``AddressUnavailable``, or ``SettingsInvalid`` for an address that
    others can reach while there are no tokens.

    Sockets ``passed`` by systemd come instead of the address in the settings; their Unix paths are systemd's to remove.
    """
    wants_tcp = settings.uds is None if settings.tcp is None else settings.tcp
    listener = _listen_all(settings, passed, settings.uds, settings.host, settings.port if wants_tcp else None)
    if listener is None:
        raise SettingsInvalid("tcp is false and uds is not set: nowhere to listen", settings=["tcp", "uds"])
    return listener


def listen_for_operators(settings: Settings, passed: Sequence[socket.socket] = ()) -> Listener | None:
    """As ``listen``, for the operators' own listener; None if there is none."""
    return _listen_all(settings, passed, settings.admin_uds, settings.admin_host, settings.admin_port)


def _listen_all(
    settings: Settings, passed: Sequence[socket.socket], path: str | None, host: str, port: int | None
) -> Listener | None:
    listener = Listener()
    with contextlib.ExitStack() as undoing:
        undoing.callback(listener.close)
        scheme = "http" if settings.tls_certificate is None else "https"
        for one in passed:
            if one.family != socket.AF_UNIX:
                _refuse_open_access(settings, one.getsockname()[0])
            listener.add(one, _url_of(one, scheme))
        if not passed and path is not None:
            listener.add(_bind_unix(settings, path), f"unix://{os.path.abspath(path)}", path)
        if not passed and port is not None:
            bound = _bind_tcp(settings, host, port)
            listener.add(bound, _tcp_url(scheme, host, bound.getsockname()[1]))
        undoing.pop_all()
    return listener if listener.sockets else None


def _refuse_open_access(settings: Settings, address: str) -> None:
    """Raise SettingsInvalid if others than this machine's users could reach the address, and nothing asks them for a
    token.
    """
    if settings.token_file is not None or settings.allow_open_access:
        return
    parsed = ipaddress.ip_address(address)
    if not (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback:
        raise SettingsInvalid(
            f"{address} can be reached from other machines and there are no tokens, so anybody could read, change and "
            "delete everything. Set token_file (rawblockd token makes a token), listen on 127.0.0.1, ::1 or a Unix "
            "socket, or set allow_open_access = true if only trusted machines can reach this address",
            settings=["host", "token_file", "allow_open_access"],
        )


def _bind_tcp(settings: Settings, host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        _refuse_open_access(settings, str(address[0]))
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
    return bound


def _bind_unix(settings: Settings, path: str) -> socket.socket:
    group = -1 if settings.uds_group is None else _group_number(settings.uds_group)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # Nobody may connect before group and mode are right. No other thread runs yet that the umask could confuse.
        before = os.umask(0o777)
        try:
            bound.bind(path)
        finally:
            os.umask(before)
        try:
            if group != -1:
                os.chown(path, -1, group)
            os.chmod(path, int(settings.uds_mode, 8))
            bound.listen(BACKLOG)
            bound.setblocking(False)
        except OSError:
            os.unlink(path)
            raise
    except OSError as error:
        bound.close()
        raise AddressUnavailable(f"{path}: {error.strerror or error}", path=path) from error
    return bound


def _group_number(name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise SettingsInvalid(f"uds_group is {name!r}: there is no such group", settings=["uds_group"]) from None


def _url_of(bound: socket.socket, scheme: str) -> str:
    address = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        # One in the abstract namespace comes as bytes that begin with 0.
        return f"unix://{address}" if isinstance(address, str) else f"unix:@{address[1:].decode(errors='replace')}"
    return _tcp_url(scheme, address[0], address[1])


def _tcp_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


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
