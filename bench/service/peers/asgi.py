"""Services in Python on uvicorn, one process each, in an environment of their own."""

from __future__ import annotations

from pathlib import Path

from bench.service.generator.running import Requests
from bench.service.processes import ServerProcess, free_port
from bench.service.server import Place, Server, http_requests
from bench.service.work import Work

APPLICATIONS = Path(__file__).parent / "applications"


class AsgiServer(Server):
    """``module`` of the applications beside this file."""

    module = ""

    def __init__(self, place: Place) -> None:
        self._port = free_port()
        super().__init__(place)

    def start(self) -> ServerProcess:
        words = [str(self.place.peers_python), "-m", "uvicorn", f"{self.module}:application", "--workers", "1"]
        words += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
        words += ["--app-dir", str(APPLICATIONS), "--port", str(self._port)]
        environment = {"BENCH_FOLDER": str(self.folder), "BENCH_FILE": str(self.place.twin)}
        process = ServerProcess(self.name, words, self.folder, environment=environment)
        process.wait_for_port(self._port)
        return process

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def requests(self, work: Work, keys: int) -> Requests:
        return http_requests(work, keys, f"/{work.size}/{{key}}", host="127.0.0.1")


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
