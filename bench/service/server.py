"""A contender that is a server: started, filled, asked, stopped."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from bench.service.generator.running import Generator, LoadFailed, Requests, checked
from bench.service.network import loss_probes
from bench.service.processes import ServerProcess, free_port
from bench.service.work import READS_PERCENT, Figures, Work

WARMUP_SECONDS = 0.3
FILL_CONNECTIONS = 8
FILL_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run works."""

    folder: Path
    twin: Path
    """A fully written file that anybody may read."""
    peers_python: Path
    """Python of the environment that the others' packages are in."""
    generator: Generator


class Server(ABC):
    """Values of a size have the keys 0, 1, … and always the same bytes, so that reads can be compared with them."""

    name = ""
    misses_allowed = False
    stores = True
    """Whether values are put into it before they are read."""

    grows = False
    """Whether what it writes only grows: it is then made anew for each series, so that the disk has room."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = place.folder / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._filled: dict[int, int] = {}
        self.process = self.start()

    @abstractmethod
    def start(self) -> ServerProcess:
        """Raises ``ServerFailed``."""

    @property
    @abstractmethod
    def address(self) -> str: ...

    @abstractmethod
    def requests(self, work: Work, keys: int) -> Requests:
        """What the generator is to send."""

    def keys(self, size: int, wanted: int) -> int:
        """How many values of a size it is filled with."""
        return wanted

    def fill(self, size: int, wanted: int) -> None:
        """Put so many values of a size, and read each back and compare it. Raises ``LoadFailed``."""
        keys = self.keys(size, wanted)
        if not self.stores or self._filled.get(size, 0) >= keys:
            return
        for attempt in range(1, FILL_ATTEMPTS + 1):
            try:
                self._run(Work("put", size), keys, "--sequence")
                self.verify(size, keys)
            except LoadFailed as failed:
                if attempt == FILL_ATTEMPTS:
                    raise LoadFailed(f"filling {self.name}: {failed}") from failed
            else:
                self._filled[size] = keys
                return

    def verify(self, size: int, keys: int) -> None:
        self._run(Work("get", size), keys, "--sequence", "--verify")

    def measure(self, work: Work, seconds: float, seed: int) -> Figures:
        """Raises ``LoadFailed``."""
        keys = work.keys or self._filled.get(work.size, 0) or self.keys(work.size, 1)
        probes, cpu = loss_probes(), self.process.cpu_seconds()
        load = self.place.generator.run(
            self.address,
            self.requests(work, keys),
            connections=work.connections,
            seconds=seconds,
            warmup=WARMUP_SECONDS,
            seed=seed,
        )
        checked(load, misses_allowed=self.misses_allowed)
        cpu = self.process.cpu_seconds() - cpu
        latency = load.reads if load.reads.count >= load.writes.count else load.writes
        return Figures(
            rate=load.ok / load.seconds,
            values_per_second=load.values / load.seconds,
            bytes_per_second=load.values * work.size / load.seconds,
            p50_microseconds=latency.p50,
            p99_microseconds=latency.p99,
            misses=load.misses,
            cpu_microseconds=1e6 * cpu / max(1, load.total_requests),
            probes=loss_probes() - probes,
        )

    def stop(self) -> None:
        self.process.stop()

    def dispose(self) -> None:
        """Stop it for good and remove what it wrote."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, work: Work, keys: int, *options: str) -> None:
        requests = self.requests(work, keys)
        # In sequence each connection takes the next key: all of them once.
        ordered = requests.with_options(*options)
        load = self.place.generator.run(self.address, ordered, connections=FILL_CONNECTIONS, count=keys)
        checked(load, misses_allowed=self.misses_allowed)


class LocalServer(Server):
    """One that listens on a free port of this machine."""

    def __init__(self, place: Place) -> None:
        self._port = free_port()
        super().__init__(place)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"


class HttpServer(LocalServer):
    """One that has a value of a size at ``/size/key``."""

    def requests(self, work: Work, keys: int) -> Requests:
        return http_requests(work, keys, f"/{work.size}/{{key}}", host="127.0.0.1")


def http_requests(work: Work, keys: int, path: str, *, host: str, query: str = "") -> Requests:
    """Single values over HTTP: ``path`` has ``{key}`` in it."""
    fields = f"Host: {host}\r\n"
    read = f"GET {path} HTTP/1.1\r\n{fields}\r\n"
    write = f"PUT {path}{query} HTTP/1.1\r\n{fields}Content-Length: {work.size}\r\n\r\n"
    return mixture(work, Requests(read=read, write=write, bytes=work.size, keys=keys, first_key=work.first_key))


def mixture(work: Work, requests: Requests) -> Requests:
    """Of requests that could do both, what the work asks for."""
    shares = {"get": (100, 0), "put": (0, 100), "mixed": (READS_PERCENT, 100 - READS_PERCENT)}
    reads, writes = shares[work.operation]
    return Requests(
        protocol=requests.protocol,
        read=requests.read if reads else "",
        write=requests.write if writes else "",
        read_weight=reads,
        write_weight=writes,
        tail=requests.tail,
        bytes=requests.bytes,
        keys=requests.keys,
        first_key=requests.first_key,
    )
