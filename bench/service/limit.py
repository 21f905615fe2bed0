"""What the load generator can do at most: against a server in C that answers from memory."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.service.generator.compiling import compiled
from bench.service.generator.running import Generator, checked
from bench.service.server import WARMUP_SECONDS, http_requests
from bench.service.work import Operation, Work

KEYS = 4096
OPERATIONS: tuple[Operation, ...] = ("get", "put")


@dataclass(frozen=True, slots=True)
class Limit:
    operation: str
    size: int
    rate: float
    """Requests per second."""


def measure_limit(generator: Generator, programs: Path, sizes: tuple[int, ...], seconds: float) -> list[Limit]:
    """Raises ``LoadFailed``."""
    program = compiled("constant", programs)
    found = []
    for size in sizes:
        words = ["setpriv", "--pdeathsig", "KILL", str(program), str(size)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
            try:
                assert server.stdout is not None
                address = f"127.0.0.1:{int(server.stdout.readline())}"
                for operation in OPERATIONS:
                    work = Work(operation, size)
                    requests = http_requests(work, KEYS, "/{key}", host="127.0.0.1")
                    load = generator.run(
                        address, requests, connections=work.connections, seconds=seconds, warmup=WARMUP_SECONDS
                    )
                    found.append(Limit(operation, size, checked(load).ok / load.seconds))
            finally:
                server.kill()
    return found
