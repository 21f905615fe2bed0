"""Listening sockets that systemd passes (sd_listen_fds): named ``http`` for clients, ``admin`` for operators.

The names are the ``FileDescriptorName=`` of the socket units. A socket without one of them is ``http``, if it's the
only one: then there is nothing to confuse. One name may stand for several sockets, a TCP port and a Unix path.

systemd keeps the sockets open while the daemon is away, so clients that connect during a restart wait in the backlog
instead of being refused; and a daemon that gets its sockets needs no right to bind.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import MutableMapping

from storage.errors import SettingsInvalid

FIRST_DESCRIPTOR = 3
DESCRIPTORS_MAX = 64
"""More than any unit has; a larger number is a mistake."""

HTTP = "http"
ADMIN = "admin"
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited_sockets(environment: MutableMapping[str, str] = os.environ) -> dict[str, list[socket.socket]]:
    """The sockets by name; empty without socket activation.

    Takes the variables out of the environment, so that they mean nothing to a child process, and nothing when called
    again. Raises SettingsInvalid for a descriptor that is no listening stream socket and for a name that is unknown.
    """
    text = {name: environment.pop(name, "") for name in VARIABLES}
    if not text["LISTEN_FDS"] or text["LISTEN_PID"] != str(os.getpid()):
        return {}
    count = int(text["LISTEN_FDS"]) if text["LISTEN_FDS"].isascii() and text["LISTEN_FDS"].isdigit() else -1
    if not 0 <= count <= DESCRIPTORS_MAX:
        raise SettingsInvalid(f"LISTEN_FDS is {text['LISTEN_FDS']!r}", settings=["LISTEN_FDS"])
    names = text["LISTEN_FDNAMES"].split(":") if text["LISTEN_FDNAMES"] else [""] * count
    if len(names) != count:
        raise SettingsInvalid(f"LISTEN_FDNAMES has {len(names)} names for {count} sockets", settings=["LISTEN_FDNAMES"])
    found: dict[str, list[socket.socket]] = {}
    for number, name in enumerate(names):
        known = _known_name(name, count)
        found.setdefault(known, []).append(_listening_socket(FIRST_DESCRIPTOR + number, known))
    return found


def _known_name(name: str, count: int) -> str:
    if name in (HTTP, ADMIN):
        return name
    if count == 1:
        return HTTP
    raise SettingsInvalid(
        f"a socket passed by systemd is named {name!r}; FileDescriptorName= must be {HTTP} or {ADMIN}",
        settings=["LISTEN_FDNAMES"],
    )


def _listening_socket(descriptor: int, name: str) -> socket.socket:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError as error:
        raise SettingsInvalid(f"descriptor {descriptor}: {error.strerror}", settings=["LISTEN_FDS"]) from error
    if not is_socket:
        raise SettingsInvalid(f"descriptor {descriptor} ({name}) is no socket", settings=["LISTEN_FDS"])
    os.set_inheritable(descriptor, False)
    passed = socket.socket(fileno=descriptor)
    listens = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if passed.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX) or not listens:
        passed.detach()
        raise SettingsInvalid(
            f"descriptor {descriptor} ({name}) is no listening TCP or Unix socket; the unit needs ListenStream= "
            "and Accept=no",
            settings=["LISTEN_FDS"],
        )
    passed.setblocking(False)
    return passed
