"""B2 on the real process: memory that nobody filled reaches neither the device nor an answer.

Buffers of the arena are full of poison when they are handed out, and so is what the C library allocates, and what it
was given back. Values are put, in parts too, imported with parts to be filled in, exported; the process is killed in
the middle of all that and recovers. Then every byte is one that was supplied or declared, and no poison is anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.http.batches import HEADERS, entries, entry, objects, pack
from tests.http.restores import DEFAULTS, PARTS, chunk, chunks, names, parse, rows_of
from tests.support.daemon_process import DaemonProcess
from tests.support.engines import POISON

PERTURB = 0xA9
"""The C library fills what is given back with this byte, and what it hands out with its complement."""
PATTERNS = (POISON, bytes([PERTURB]) * 16, bytes([PERTURB ^ 0xFF]) * 16)
SIZES = (0, 1, 100, 3500, 4096, 65_537, (1 << 20) + 1, (3 << 19) + 7)
IMPORTED = range(400)
"""Keys of the import's first part; the others have less, and the schema's numbers stand in."""
LISTS = {"w": IMPORTED, "m": range(390), "v": range(380)}


class PoisonedDaemon(DaemonProcess):
    module = "tests.crash.killer.poisoned_server"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """A request whose answer is free of poison, to its last byte."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            head, data = str(answer.getheaders()).encode(), answer.read()
        finally:
            connection.close()
        assert_clean(head + data, f"{method} {path}")
        return answer.status, data

    def tell(self, method: str, path: str, document: Any = None) -> Any:
        code, answer = self.ask(method, path, None if document is None else json.dumps(document).encode())
        assert code in (200, 201, 202), answer
        return json.loads(answer)


def assert_clean(data: bytes, what: str) -> None:
    for pattern in PATTERNS:
        at = data.find(pattern)
        assert at < 0, f"poison in {what} at byte {at}"


@contextmanager
def running(device: Path, log: Path) -> Iterator[PoisonedDaemon]:
    arguments = ("--device", str(device), "--create", "--size", "256MiB", "--buffer-bytes", "32MiB")
    environment = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": str(PERTURB)}
    daemon = PoisonedDaemon(log, *arguments, **environment)
    with daemon:
        daemon.wait_ready()
        yield daemon
        assert not [record for record in daemon.records() if "exception" in record]


def put_plain(daemon: PoisonedDaemon, rng: random.Random) -> dict[str, bytes]:
    """Values of all sizes, some overwritten, some put together."""
    values = {f"{number}-{size}": rng.randbytes(size) for number, size in enumerate(SIZES * 2)}
    for name, value in values.items():
        assert daemon.ask("PUT", f"/v1/kv/plain/{name}", value, Rawblockd_Meta_Name=name)[0] == 201
    for name in list(values)[::3]:
        values[name] = rng.randbytes(len(values[name]) // 2)
        assert daemon.ask("PUT", f"/v1/kv/plain/{name}?durability=flush", values[name])[0] == 204
    assert daemon.ask("PATCH", "/v1/kv/plain/1-1?meta=none")[0] == 204
    together = {f"m{number}": rng.randbytes(number * 100) for number in range(20)}
    body = entries((name.encode(), value) for name, value in together.items())
    assert daemon.ask("POST", "/v1/kv/plain:mput", body, **HEADERS)[0] == 200
    return values | together


def put_parts(daemon: PoisonedDaemon) -> dict[str, bytes]:
    """Records of three parts, of some of which two are left out."""
    daemon.tell("PUT", "/v1/namespaces/parts", {"parts": PARTS, "schema_version": 1, "on_missing": "default"})
    values: dict[str, bytes] = {}
    described = ", ".join(f"{part}=float32[8]" for part in "wmv")
    for key in range(20):
        given = {part: rows_of(part, [key]).tobytes() for part in "wmv"}
        values[f"{key}"] = b"".join(given.values())
        assert daemon.ask("PUT", f"/v1/kv/parts/{key}", values[f"{key}"], Rawblockd_Parts=described)[0] == 201
        values[f"w{key}"] = given["w"] + defaults("mv")
        alone = "w=float32[8]"
        assert daemon.ask("PUT", f"/v1/kv/parts/w{key}", given["w"], Rawblockd_Parts=alone)[0] == 201
    head = {"key": b"batch", "parts": [["w", "float32", [8]]]}
    values["batch"] = rows_of("w", [99]).tobytes() + defaults("mv")
    body = pack({}) + entry(head, rows_of("w", [99]).tobytes())
    assert daemon.ask("POST", "/v1/kv/parts:mput", body, **HEADERS)[0] == 200
    return values


def defaults(parts: str) -> bytes:
    return b"".join(np.full(8, DEFAULTS[part], dtype="<f4").tobytes() for part in parts)


def begin(daemon: PoisonedDaemon) -> str:
    return str(daemon.tell("POST", "/v1/namespaces/imported/imports", {"ttl_seconds": 600})["id"])


def send_parts(daemon: PoisonedDaemon, import_id: str) -> None:
    for part, keys in LISTS.items():
        body = b"".join(chunks(names(keys), rows_of(part, keys).tobytes(), step=37))
        code, answer = daemon.ask("PUT", f"/v1/imports/{import_id}/parts/{part}", body, **HEADERS)
        assert (code, json.loads(answer)) == (200, {"keys": len(keys)})


def imported_values() -> dict[str, bytes]:
    return {
        str(key): b"".join(
            rows_of(part, [key]).tobytes() if key in keys else defaults(part) for part, keys in LISTS.items()
        )
        for key in IMPORTED
    }


def check(daemon: PoisonedDaemon, namespace: str, values: dict[str, bytes]) -> None:
    """Exactly these, read one by one, together, and as a snapshot."""
    for name in list(values)[:60]:
        assert daemon.ask("GET", f"/v1/kv/{namespace}/{name}") == (200, values[name])
    body = pack({"keys": [name.encode() for name in values]})
    code, answer = daemon.ask("POST", f"/v1/kv/{namespace}:mget", body, **HEADERS)
    assert (code, objects(answer)[-1]["hits"]) == (200, len(values))
    snapshot = daemon.tell("POST", f"/v1/namespaces/{namespace}/snapshots", {"ttl_seconds": 60})
    _, exported = daemon.ask("GET", f"/v1/snapshots/{snapshot['id']}/export")
    found = parse(objects(exported))
    assert {key.decode(): value for key, value in found.values.items()} == values
    assert daemon.ask("DELETE", f"/v1/snapshots/{snapshot['id']}")[0] == 204
    daemon.ask("GET", f"/v1/kv/{namespace}?limit=1000")


def test_b2_poison_is_nowhere(device: Path, tmp_path: Path) -> None:
    with running(device, tmp_path / "first.log") as daemon:
        plain = put_plain(daemon, random.Random(5))
        parts = put_parts(daemon)
        daemon.tell("PUT", "/v1/namespaces/imported", {"parts": PARTS, "schema_version": 1})
        given_up = begin(daemon)
        send_parts(daemon, given_up)
        assert daemon.ask("DELETE", f"/v1/imports/{given_up}")[0] == 204
        import_id = begin(daemon)
        send_parts(daemon, import_id)
        outcome = daemon.tell("POST", f"/v1/imports/{import_id}/commit", {"policy": "default"})
        assert outcome["filled"] == {"w": 0, "m": 10, "v": 20}
        imported = imported_values()
        for namespace, values in (("plain", plain), ("parts", parts), ("imported", imported)):
            check(daemon, namespace, values)
        daemon.tell("POST", "/v1/checkpoint")
        # Killed with a commit, a part and a put under way.
        under_way = begin(daemon)
        send_parts(daemon, under_way)
        other = begin(daemon)
        part, put = daemon.connect(), daemon.connect()
        part.putrequest("PUT", f"/v1/imports/{other}/parts/w")
        part.putheader("Content-Type", "application/msgpack")
        part.putheader("Content-Length", "1000000")
        part.endheaders(chunk(names(range(100)), rows_of("w", range(100)).tobytes()))
        put.putrequest("PUT", "/v1/kv/plain/unfinished")
        put.putheader("Content-Length", str(3 << 20))
        put.endheaders(random.Random(6).randbytes(2 << 20))
        daemon.tell("POST", f"/v1/imports/{under_way}/commit", {"policy": "default", "wait_seconds": 0})
        daemon.kill()
        part.close()
        put.close()
    assert_clean(device.read_bytes(), "the device after the kill")
    with running(device, tmp_path / "second.log") as daemon:
        for namespace, values in (("plain", plain), ("parts", parts), ("imported", imported)):
            check(daemon, namespace, values)
        for path in ("/v1/status", "/v1/recovery", "/metrics", "/v1/namespaces", "/"):
            assert daemon.ask("GET", path)[0] == 200
        assert daemon.stop() == 0
    assert_clean(device.read_bytes(), "the device after the stop")
