"""Mixed load over several connections, until the daemon is gone."""

from __future__ import annotations

import http.client
import random
import threading
from dataclasses import dataclass

from tests.crash.killer.ledger import ABSENT, Ledger
from tests.crash.killer.values import make_value, version_of

LEVELS = ("none", "journal", "flush")
TIMEOUT_SECONDS = 60.0
NAMESPACE = "killed"


@dataclass(frozen=True)
class Mix:
    """Which keys there are and how large their values get."""

    sizes: dict[str, tuple[int, int]]
    """Key → smallest and largest size of its values, in bytes."""
    checkpoint_ratio: float = 0.01
    """Share of the steps that ask for a checkpoint."""
    evicting: bool = False
    """Whether the daemon may evict: then any key may be gone at any time."""


def small_and_large(small: int, large: int, large_max_bytes: int, *, evicting: bool = False) -> Mix:
    """A few keys of up to 3 kB, a few from 4 KiB up to ``large_max_bytes``."""
    sizes = {f"small-{number}": (100, 3000) for number in range(small)}
    sizes |= {f"large-{number}": (4096, large_max_bytes) for number in range(large)}
    return Mix(sizes, evicting=evicting)


class Load:
    """Threads with a connection each. They end when the connection does; what went wrong is in ``errors``."""

    def __init__(self, port: int, ledger: Ledger, mix: Mix, seed: str, connections: int) -> None:
        self._port = port
        self._ledger = ledger
        self._mix = mix
        self._stopping = threading.Event()
        self._left = connections
        self._lock = threading.Lock()
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),))
            for number in range(connections)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        """Every connection was cut, or an answer was wrong."""
        return self._left == 0 or bool(self.errors)

    def join(self, *, stop: bool = False) -> None:
        """Wait until the threads have ended; ``stop`` lets them end between two requests. Raises what they found."""
        if stop:
            self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def _run(self, rng: random.Random) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        try:
            while not self._stopping.is_set():
                self._step(connection, rng)
        except (AssertionError, TimeoutError) as error:
            self.errors.append(error)
            self._stopping.set()
        except (OSError, http.client.HTTPException):
            pass  # the daemon is gone; whether it should be is the test's to know
        finally:
            connection.close()
            with self._lock:
                self._left -= 1
            self._ledger.wake()

    def _step(self, connection: http.client.HTTPConnection, rng: random.Random) -> None:
        key = rng.choice(list(self._mix.sizes))
        chance = rng.random()
        if chance < self._mix.checkpoint_ratio:
            code, _ = exchange(connection, "POST", "/v1/checkpoint")
            assert code == 200, f"checkpoint: {code}"
            self._ledger.count("checkpoint")
        elif chance < 0.60:
            self._put(connection, key, rng)
        elif chance < 0.75:
            self._delete(connection, key, rng.choice(LEVELS))
        else:
            self._get(connection, key)

    def _put(self, connection: http.client.HTTPConnection, key: str, rng: random.Random) -> None:
        version, level = self._ledger.draw_version(), rng.choice(LEVELS)
        smallest, largest = self._mix.sizes[key]
        # Sizes spread over their magnitudes: as many of some kB as of some MB.
        size = int(smallest * (largest / smallest) ** rng.random())
        value = make_value(key, version, size)
        attempt = self._ledger.begin(key, version, level)
        code, answer = exchange(connection, "PUT", f"{path_of(key)}?durability={level}", value)
        if code in (201, 204):
            self._ledger.acknowledge(attempt, f"put {level}")
        else:
            assert code in (503, 507), f"PUT {key}: {code} {answer[:200]!r}"
            self._ledger.refuse(attempt, f"put refused {code}")

    def _delete(self, connection: http.client.HTTPConnection, key: str, level: str) -> None:
        # A delete is carried out at level journal at least.
        attempt = self._ledger.begin(key, ABSENT, "journal" if level == "none" else level)
        code, answer = exchange(connection, "DELETE", f"{path_of(key)}?durability={level}")
        assert code in (204, 404), f"DELETE {key}: {code} {answer[:200]!r}"
        self._ledger.acknowledge(attempt, f"delete {code}")

    def _get(self, connection: http.client.HTTPConnection, key: str) -> None:
        reading = self._ledger.begin_read(key)
        try:
            code, value = exchange(connection, "GET", path_of(key))
        finally:
            self._ledger.end_read(reading)
        self._ledger.count(f"get {code}")
        versions = reading.versions | ({ABSENT} if self._mix.evicting else set())
        check_found(key, code, value, versions, self._ledger.history(key))


def check_found(key: str, code: int, value: bytes, admissible: set[int], history: str) -> int:
    """The version that a read found; it must be one whole put of the key (B1), and none that is past (D2)."""
    assert code in (200, 404), f"GET {key}: {code} {value[:200]!r}"
    version = version_of(key, value) if code == 200 else ABSENT
    assert version in admissible, f"{key} holds version {version}; only {sorted(admissible)} may be ({history})"
    return version


def path_of(key: str) -> str:
    return f"/v1/kv/{NAMESPACE}/{key}"


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """One request: the answer's code and whole body."""
    connection.request(method, path, body=body)
    answer = connection.getresponse()
    return answer.status, answer.read()
