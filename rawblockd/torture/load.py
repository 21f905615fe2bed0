"""Clients: mixed load over several connections, until the daemon is gone or they are told to end."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgpack

from rawblockd.torture.ledger import ABSENT, Ledger
from rawblockd.torture.values import NotThatValue, make_value, version_of

ALL_LEVELS = ("none", "journal", "flush")
UNFLUSHED_LEVELS = ("none", "journal")
TIMEOUT_SECONDS = 60.0
NAMESPACE = "torture"
MSGPACK = "application/msgpack"
CONNECTIONS = 6

PUT_SHARE, BATCH_SHARE, DELETE_SHARE = 0.55, 0.06, 0.14
BATCH_KEYS_MAX = 6


Connect = Callable[[], http.client.HTTPConnection]
"""Makes a connection to the daemon under load."""


class TortureFailed(Exception):
    """The daemon broke a promise; the text says which."""


@dataclass(frozen=True)
class Mix:
    """Which keys there are, how large their values get, and at which levels they are put."""

    sizes: dict[str, tuple[int, int]]
    """Key → smallest and largest size of its values, in bytes."""
    levels: tuple[str, ...] = ALL_LEVELS
    checkpoint_share: float = 0.01
    """Of the steps; so many ask for a checkpoint."""
    wipe_share: float = 0.0
    """Of the steps; so many wipe the namespace with all its keys."""
    evicting: bool = False
    """The daemon may evict: any key may be gone at any time."""
    failing: bool = False
    """The device fails now and then: any answer of the daemon's that says so is one."""


class Load:
    """Threads with a connection each. They end when the connection does; what went wrong is in ``errors``."""

    def __init__(self, connect: Connect, ledger: Ledger, mix: Mix, seed: str, connections: int = CONNECTIONS) -> None:
        self._connect = connect
        self._ledger = ledger
        self._mix = mix
        self._stopping = threading.Event()
        self._left = connections
        self._lock = threading.Lock()
        self.errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),), daemon=True)
            for number in range(connections)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        """Every connection was cut, or an answer was wrong."""
        return self._left == 0 or bool(self.errors)

    def join(self, *, stop: bool = False) -> None:
        """Wait until the threads have ended; ``stop`` lets them end between two requests. Raises TortureFailed."""
        if stop:
            self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
            if thread.is_alive():
                raise TortureFailed(f"a request was not answered within {TIMEOUT_SECONDS:.0f} s")
        if self.errors:
            raise TortureFailed(str(self.errors[0])) from self.errors[0]

    def _run(self, rng: random.Random) -> None:
        connection = self._connect()
        try:
            while not self._stopping.is_set():
                self._step(connection, rng)
        except (TortureFailed, NotThatValue, TimeoutError) as error:
            self.errors.append(error)
            self._stopping.set()
        except (OSError, http.client.HTTPException):
            pass  # the daemon is gone; whether it should be is the round's to know
        finally:
            connection.close()
            with self._lock:
                self._left -= 1
            self._ledger.wake()

    def _step(self, connection: http.client.HTTPConnection, rng: random.Random) -> None:
        key = rng.choice(list(self._mix.sizes))
        chance = rng.random()
        if chance < self._mix.checkpoint_share:
            code, _ = exchange(connection, "POST", "/v1/checkpoint")
            self._allow("checkpoint", code, {200})
            self._ledger.count("checkpoint")
        elif chance < self._mix.checkpoint_share + self._mix.wipe_share:
            self._wipe(connection)
        elif chance < PUT_SHARE:
            self._put(connection, key, rng)
        elif chance < PUT_SHARE + BATCH_SHARE:
            self._put_many(connection, rng)
        elif chance < PUT_SHARE + BATCH_SHARE + DELETE_SHARE:
            self._delete(connection, key, rng.choice(self._mix.levels))
        else:
            self._get(connection, key)

    def _allow(self, what: str, code: int, codes: set[int]) -> None:
        if code not in codes and not (self._mix.failing and code == 503):
            raise TortureFailed(f"{what} was answered with {code}")

    def _wipe(self, connection: http.client.HTTPConnection) -> None:
        attempts = [self._ledger.begin(key, ABSENT, "journal") for key in self._mix.sizes]
        code, _ = exchange(connection, "DELETE", f"/v1/namespaces/{NAMESPACE}")
        self._allow("a wipe", code, {200, 204, 404})
        if code in (200, 204, 404):
            for attempt in attempts:
                self._ledger.acknowledge(attempt, "wipe")
        else:
            self._ledger.count(f"wipe failed {code}")

    def _put_many(self, connection: http.client.HTTPConnection, rng: random.Random) -> None:
        """One batch of several keys; each of them is promised for itself."""
        level = rng.choice(self._mix.levels)
        keys = rng.sample(list(self._mix.sizes), min(len(self._mix.sizes), rng.randint(1, BATCH_KEYS_MAX)))
        attempts, body = [], [msgpack.packb({"durability": level})]
        for key in keys:
            smallest, largest = self._mix.sizes[key]
            version = self._ledger.draw_version()
            attempts.append(self._ledger.begin(key, version, level))
            value = make_value(key, version, int(smallest * (largest / smallest) ** rng.random()))
            body += [msgpack.packb({"key": key.encode()}), msgpack.packb(value)]
        code, answer = exchange(connection, "POST", f"/v1/kv/{NAMESPACE}:mput", b"".join(body), MSGPACK)
        self._allow(f"a batch of {keys}", code, {200, 413, 503})  # 413: too much of a small device at once
        if code != 200:
            for attempt in attempts:
                self._ledger.refuse(attempt, f"batch refused {code}")
            return
        unpacker = msgpack.Unpacker()
        unpacker.feed(answer)
        for attempt, result in zip(attempts, unpacker, strict=False):
            status = result["status"]
            self._allow(f"a put of {attempt.key} in a batch", status, {201, 204, 503, 507})
            if status in (201, 204):
                self._ledger.acknowledge(attempt, f"batch put {level}")
            elif self._mix.failing:
                self._ledger.count(f"batch put failed {status}")
            else:
                self._ledger.refuse(attempt, f"batch put refused {status}")

    def _put(self, connection: http.client.HTTPConnection, key: str, rng: random.Random) -> None:
        version, level = self._ledger.draw_version(), rng.choice(self._mix.levels)
        smallest, largest = self._mix.sizes[key]
        size = int(smallest * (largest / smallest) ** rng.random())  # as many of some kB as of some MB
        attempt = self._ledger.begin(key, version, level)
        code, _ = exchange(connection, "PUT", f"{path_of(key)}?durability={level}", make_value(key, version, size))
        self._allow(f"a put of {key}", code, {201, 204, 503, 507})
        if code in (201, 204):
            self._ledger.acknowledge(attempt, f"put {level}")
        elif self._mix.failing:
            self._ledger.count(f"put failed {code}")  # it may have reached the device all the same
        else:
            self._ledger.refuse(attempt, f"put refused {code}")

    def _delete(self, connection: http.client.HTTPConnection, key: str, level: str) -> None:
        # A delete is carried out at level journal at least.
        attempt = self._ledger.begin(key, ABSENT, "journal" if level == "none" else level)
        code, _ = exchange(connection, "DELETE", f"{path_of(key)}?durability={level}")
        self._allow(f"a delete of {key}", code, {204, 404})
        if code in (204, 404):
            self._ledger.acknowledge(attempt, f"delete {code}")
        else:
            self._ledger.count(f"delete failed {code}")

    def _get(self, connection: http.client.HTTPConnection, key: str) -> None:
        reading = self._ledger.begin_read(key)
        try:
            code, value = exchange(connection, "GET", path_of(key))
        finally:
            self._ledger.end_read(reading)
        self._allow(f"a get of {key}", code, {200, 404})
        self._ledger.count(f"get {code}")
        gone_at_any_time = self._mix.evicting or self._mix.failing
        if code in (200, 404):
            versions = reading.versions | ({ABSENT} if gone_at_any_time else set())
            check_found(key, code, value, versions, self._ledger.history(key))


def check_found(key: str, code: int, value: bytes, admissible: set[int], history: str) -> int:
    """The version that a read found: one whole put of the key (B1), and none that is past (D2).

    Raises NotThatValue, TortureFailed.
    """
    if code not in (200, 404):
        raise TortureFailed(f"a get of {key} was answered with {code}: {value[:300]!r}")
    version = version_of(key, value) if code == 200 else ABSENT
    if version not in admissible:
        raise TortureFailed(f"{key} holds version {version}; only {sorted(admissible)} may be ({history})")
    return version


def path_of(key: str) -> str:
    return f"/v1/kv/{NAMESPACE}/{key}"


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None, content_type: str = ""
) -> tuple[int, bytes]:
    """One request: the answer's code and whole body."""
    connection.request(method, path, body=body, headers={"Content-Type": content_type} if content_type else {})
    answer = connection.getresponse()
    return answer.status, answer.read()
