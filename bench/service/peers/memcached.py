"""memcached with extstore, which takes values that were idle for a second, so that reads come from its file."""

from __future__ import annotations

import socket
import time

from bench.service.generator.running import Requests
from bench.service.processes import ServerProcess
from bench.service.server import LocalServer, mixture
from bench.service.work import Work

# With less, it drops values while it is filled: they come faster than it hands them to its file.
MEMORY_MIB = 1024
VALUES_BYTES = 512 << 20
"""What it is filled with of each size."""
SETTLE_TIMEOUT_SECONDS = 20.0
"""How long it may take to hand its values to the file."""
SETTLE_STEP_SECONDS = 1.5


class Memcached(LocalServer):
    name = "memcached"
    misses_allowed = True
    """It may drop values; only hits are counted."""
    grows = True

    def start(self) -> ServerProcess:
        words = ["/usr/bin/memcached", "-l", "127.0.0.1", "-p", str(self._port), "-m", str(MEMORY_MIB), "-u", "root"]
        words += ["-I", "2m", "-o", f"ext_path={self.folder}/values:2G,ext_item_age=1"]
        process = ServerProcess(self.name, words, self.folder)
        process.wait_for_port(self._port)
        return process

    def fill(self, size: int, wanted: int) -> None:
        super().fill(size, wanted)
        deadline, before = time.monotonic() + SETTLE_TIMEOUT_SECONDS, -1
        while (now := self._objects_in_file()) != before and time.monotonic() < deadline:
            before = now
            time.sleep(SETTLE_STEP_SECONDS)

    def _objects_in_file(self) -> int:
        with socket.create_connection(("127.0.0.1", self._port), timeout=10.0) as connection:
            connection.sendall(b"stats\r\nquit\r\n")
            text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        for line in text.splitlines():
            if line.startswith("STAT extstore_objects_used "):
                return int(line.split()[2])
        return 0

    def keys(self, size: int, wanted: int) -> int:
        return VALUES_BYTES // size

    def requests(self, work: Work, keys: int) -> Requests:
        key = f"{work.size >> 10:05}:{{key}}"
        read, write = f"get {key}\r\n", f"set {key} 0 0 {work.size}\r\n"
        return mixture(
            work,
            Requests("memcached", read, write, tail="\r\n", bytes=work.size, keys=keys, first_key=work.first_key),
        )
