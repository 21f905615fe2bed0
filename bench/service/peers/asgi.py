"""Services in Python on uvicorn, one process each, in an environment of their own."""

from __future__ import annotations

from pathlib import Path

from bench.service.processes import ServerProcess
from bench.service.server import HttpServer

APPLICATIONS = Path(__file__).parent / "applications"


class AsgiServer(HttpServer):
    """``module`` of the applications beside this file."""

    module = ""

    def start(self) -> ServerProcess:
        words = [str(self.place.peers_python), "-m", "uvicorn", f"{self.module}:application", "--workers", "1"]
        words += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
        words += ["--app-dir", str(APPLICATIONS), "--port", str(self._port)]
        environment = {"BENCH_FOLDER": str(self.folder), "BENCH_FILE": str(self.place.twin)}
        process = ServerProcess(self.name, words, self.folder, environment=environment)
        process.wait_for_port(self._port)
        return process


class Constant(AsgiServer):
    """A bare ASGI application that answers the same 4 KiB from memory: what this HTTP stack costs by itself."""

    name = "asgi"
    module = "constant"
    stores = False


class Executor(AsgiServer):
    """Bare ASGI with ``run_in_executor`` around ``pread``: the usual way to read a device from asyncio."""

    name = "executor"
    module = "executor"
    stores = False

    def keys(self, size: int, wanted: int) -> int:
        return self.place.twin.stat().st_size // size


class Naive(AsgiServer):
    """FastAPI and diskcache: an afternoon's cache service."""

    name = "diskcache"
    module = "naive"

    def keys(self, size: int, wanted: int) -> int:
        # It takes its time, and how many there are makes no difference to it.
        return min(wanted, 2048)
