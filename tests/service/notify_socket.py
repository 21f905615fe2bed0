"""systemd's end of sd_notify: a real datagram socket that hears everything."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 60.0


class NotifySocket:
    """Datagrams in the order they came. ``address`` is the value of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[str] = []
        self._ended = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(0.05)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                self.heard.append(self._socket.recv(4096).decode())
            except TimeoutError:
                continue

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def wait(self, beginning: str, count: int = 1, after: int = 0) -> int:
        """Until ``count`` messages with this beginning came behind the first ``after``; how many came in all."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            heard = list(self.heard)
            if sum(message.startswith(beginning) for message in heard[after:]) >= count:
                return len(heard)
            time.sleep(0.01)
        raise AssertionError(f"no {beginning!r} in {self.heard[after:]}")


@contextmanager
def notify_socket(address: str) -> Iterator[NotifySocket]:
    one = NotifySocket(address)
    try:
        yield one
    finally:
        one.close()
