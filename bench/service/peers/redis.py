"""redis with its append-only file flushed every second. Reads come from memory."""

from __future__ import annotations

from bench.service.generator.running import Requests
from bench.service.processes import ServerProcess
from bench.service.server import LocalServer, mixture
from bench.service.work import Work

KEY_BYTES = 14
"""``{size:05}:{key}``, so that sizes do not share keys; a key is eight digits."""


class Redis(LocalServer):
    name = "redis"
    grows = True

    def start(self) -> ServerProcess:
        words = ["/usr/bin/redis-server", "--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self.folder)]
        words += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        # No rewriting of the file while it is measured: that only helps it.
        words += ["--auto-aof-rewrite-percentage", "0"]
        process = ServerProcess(self.name, words, self.folder)
        process.wait_for_port(self._port)
        return process

    def requests(self, work: Work, keys: int) -> Requests:
        key = f"{work.size >> 10:05}:{{key}}"
        read = f"*2\r\n$3\r\nGET\r\n${KEY_BYTES}\r\n{key}\r\n"
        write = f"*3\r\n$3\r\nSET\r\n${KEY_BYTES}\r\n{key}\r\n${work.size}\r\n"
        return mixture(
            work,
            Requests("redis", read, write, tail="\r\n", bytes=work.size, keys=keys, first_key=work.first_key),
        )
