"""Messages to systemd (sd_notify): ready, status, stopping, reloading, watchdog, more time.

Without NOTIFY_SOCKET every message is dropped, and a failure to send never harms the daemon:
supervision is a service to it, not a condition.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("rawblockd.sd_notify")


class SystemdNotifier:
    """Sends datagrams to the socket that systemd named. ``environment`` is read once, at the start."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_seconds = _watchdog_seconds(environment)
        """Interval within which systemd expects a ping; 0 without a watchdog."""
        self._socket: socket.socket | None = None
        self._failing = False
        self._status = ""

    @property
    def active(self) -> bool:
        return self._address is not None

    def ready(self) -> None:
        self._send("READY=1")

    def status(self, sentence: str) -> None:
        """One line for ``systemctl status``; a repeated sentence is not sent again."""
        line = " ".join(sentence.split())
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def reloading(self) -> None:
        """A reload began; ``ready`` ends it. The time stamp is what Type=notify-reload asks for."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for ``seconds`` more, counted from now, for the start or stop that is under way."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                # systemd may be busy: a full socket must not stop the loop.
                self._socket.setblocking(False)
            self._socket.sendto(message.encode(), self._address)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("systemd can't be notified", extra={"fields": {"error": str(error)}})
            self._failing = True


def _address(value: str) -> str | None:
    """The socket's address: a path, or ``@name`` in the abstract namespace."""
    if value.startswith("@"):
        return "\0" + value[1:]
    if value.startswith("/"):
        return value
    if value:
        log.warning("NOTIFY_SOCKET is of a kind that is not supported", extra={"fields": {"value": value}})
    return None


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0  # meant for another process of the unit
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isascii() and text.isdigit() else 0.0
