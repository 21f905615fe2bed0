"""rawblockd itself, started as a user would."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgpack

from bench.service.batches import requests_file
from bench.service.generator.running import LoadFailed, Requests
from bench.service.processes import START_TIMEOUT_SECONDS, ServerFailed, ServerProcess, free_port
from bench.service.server import Place, Server, http_requests
from bench.service.work import Work

TIMEOUT_SECONDS = 120.0
ROOT = Path(__file__).parents[2]


class Daemon(Server):
    """``device`` is a file that may be overwritten. ``tree`` is the checkout whose code runs."""

    name = "rawblockd"
    options: tuple[str, ...] = ()
    """Further flags of ``serve``; by default it runs with its defaults."""

    def __init__(self, place: Place, device: Path, *, tree: Path = ROOT, name: str = "rawblockd") -> None:
        self.name = name
        self.device = device
        self._environment = {"PYTHONPATH": str(tree)}
        self._tree = tree
        self.port = free_port()
        super().__init__(place)

    def start(self) -> ServerProcess:
        self._command("format", str(self.device), "--force")
        return self._serve()

    def restart(self) -> None:
        """Stop it, and start it again on what it has written."""
        self.process.stop()
        self.process = self._serve()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def requests(self, work: Work, keys: int) -> Requests:
        space = f"/v1/kv/{_namespace(work.size)}"
        if work.operation in ("mget", "mput"):
            return requests_file(self.folder, work, keys, space)
        query = f"?durability={work.durability}" if work.durability else ""
        return http_requests(work, keys, space + "/{key}", host=self.address, query=query)

    def fill(self, size: int, wanted: int) -> None:
        """As of any server; values of other sizes are forgotten, or it might have to evict for these."""
        if others := [other for other in self._filled if other != size]:
            for other in others:
                self.call("DELETE", f"/v1/namespaces/{_namespace(other)}")
                del self._filled[other]
            self._wait_for_free_slots()
        super().fill(size, wanted)

    def _wait_for_free_slots(self) -> None:
        """Until what was wiped is free: that takes its time, in the background."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.status()["capacity"]["slots"]["limbo"]:
            if time.monotonic() > deadline:
                raise ServerFailed("what was wiped has not become free")
            time.sleep(0.1)

    def verify_batch(self, work: Work, keys: int) -> None:
        """Each key of a batch is a hit, and its value has the right size. Raises ``LoadFailed``."""
        names = [b"%08x" % (number % keys) for number in range(work.values)]
        target = f"/v1/kv/{_namespace(work.size)}:mget"
        answer = self.call("POST", target, msgpack.packb({"keys": names}), kind="application/msgpack")
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(answer)
        objects = list(unpacker)
        sizes = sum(len(item) for item in objects if isinstance(item, bytes))
        if not objects or objects[-1].get("hits") != work.values or sizes != work.values * work.size:
            raise LoadFailed(f"a batch of {work.values} has {sizes} bytes of values and ends with {objects[-1:]}")

    def call(self, method: str, target: str, body: bytes | None = None, *, kind: str = "application/json") -> bytes:
        """One request beside the load. Raises ``ServerFailed`` for what isn't 2xx."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, target, body, {"Content-Type": kind} if body is not None else {})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"{method} {target}: {error!r}") from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise ServerFailed(f"{method} {target}: {answer.status} {content[:300]!r}")
        return content

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.call("GET", "/v1/status"))
        return document

    def _serve(self) -> ServerProcess:
        words = ["serve", "--device", str(self.device), "--host", "127.0.0.1", "--port", str(self.port)]
        words += self.options
        process = ServerProcess(
            self.name, [sys.executable, "-m", "rawblockd", *words], self.folder, environment=self._environment
        )
        process.wait_for_port(self.port)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                self.call("GET", "/readyz")
            except ServerFailed as error:
                if time.monotonic() > deadline or not process.alive():
                    raise ServerFailed(f"{error}; its log ends with: {process.log_tail()}") from error
                time.sleep(0.05)
            else:
                return process

    def _command(self, *words: str) -> None:
        environment = {**os.environ, **self._environment}
        done = subprocess.run(
            [sys.executable, "-m", "rawblockd", *words],
            cwd=self._tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"rawblockd {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")


def _namespace(size: int) -> str:
    """Where the values of a size are."""
    return f"values-{size}"
