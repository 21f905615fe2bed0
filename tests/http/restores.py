"""Snapshots and imports as a client sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt

from storage.format.checksums import crc32c
from storage.limits import CHUNK_BYTES
from tests.http.batches import HEADERS, objects, pack
from tests.http.daemon import POLLS_MAX, Daemon

Floats = npt.NDArray[np.float32]

ROW = 8
"""Floats in a row of each part."""
ROW_BYTES = 4 * ROW
PARTS: list[dict[str, Any]] = [
    {"name": "w", "dtype": "float32", "shape": [ROW]},
    {"name": "m", "dtype": "float32", "shape": [ROW], "default": 0.0},
    {"name": "v", "dtype": "float32", "shape": [ROW], "default": 0.25},
]
DEFAULTS = {"m": 0.0, "v": 0.25}


@dataclass
class Export:
    """An export taken apart, and found to be in order."""

    manifest: dict[str, Any]
    heads: list[dict[str, Any]] = field(default_factory=list)
    values: dict[bytes, bytes] = field(default_factory=dict)
    digests: set[bytes] | None = None
    end: dict[str, Any] = field(default_factory=dict)
    damaged: list[dict[str, Any]] = field(default_factory=list)

    @property
    def next_position(self) -> int:
        return int(self.heads[-1]["position"]) + 1 if self.heads else int(self.manifest["from"])


def parse(found: Sequence[Any], *, whole: bool = True) -> Export:
    """Of one that was cut off, the entries that are there whole."""
    export = Export(found[0])
    pieces: list[bytes] = []
    head: dict[str, Any] | None = None

    def close() -> None:
        nonlocal head, pieces
        value = b"".join(pieces)
        if head is not None and len(value) == head["size"] and (pieces or whole):
            assert head["payload_checksum"] == payload_checksum(value)
            export.heads.append(head)
            assert head["key"] not in export.values
            export.values[head["key"]] = value
        else:
            assert head is None or not whole, head
        head, pieces = None, []

    for one in found[1:]:
        if isinstance(one, bytes) and export.digests is not None:
            export.digests.update(one[at : at + 16] for at in range(0, len(one), 16))
        elif isinstance(one, bytes):
            pieces.append(one)
        elif "digests" in one:
            close()
            export.digests = set()
        elif "end" in one:
            close()
            export.end = one
        elif one["status"] == 200:
            close()
            head = one
        else:
            if head is None or one["position"] != head["position"]:
                close()
            head, pieces = None, []
            export.damaged.append(one)
    if whole:
        assert export.end == {
            "end": True,
            "entries": export.manifest["entries"],
            "damaged": len(export.damaged),
        }
        assert len(export.heads) + len(export.damaged) == export.manifest["entries"]
    return export


def payload_checksum(value: bytes) -> int:
    """The CRC32C of the little-endian CRC32Cs of each 64 KiB."""
    chunks = (value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES))
    return crc32c(b"".join(crc32c(chunk).to_bytes(4, "little") for chunk in chunks))


def take(daemon: Daemon, namespace: str, ttl_seconds: int = 600, owner: str = "a test") -> dict[str, Any]:
    answer = daemon.http.post(
        f"/v1/namespaces/{namespace}/snapshots", json={"ttl_seconds": ttl_seconds, "owner": owner}
    )
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def export(daemon: Daemon, snapshot: Mapping[str, Any], query: str = "") -> Export:
    answer = daemon.http.get(f"/v1/snapshots/{snapshot['id']}/export{query}")
    assert answer.status_code == 200, answer.text
    found = parse(objects(answer.content))
    for name in ("seq", "checksum", "namespace", "schema"):
        assert found.manifest[name] == snapshot[name]
    assert found.manifest["snapshot_entries"] == snapshot["entries"]
    return found


def content(daemon: Daemon, namespace: str) -> dict[bytes, bytes]:
    """All entries of a namespace, of one moment."""
    snapshot = take(daemon, namespace)
    found = export(daemon, snapshot)
    assert not found.damaged
    end(daemon, snapshot)
    return found.values


def end(daemon: Daemon, snapshot: Mapping[str, Any]) -> None:
    assert daemon.http.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204


# -- imports ------------------------------------------------------------------------------------------------------


def set_schema(daemon: Daemon, namespace: str, parts: Sequence[Mapping[str, Any]] = PARTS, **settings: Any) -> None:
    """A namespace as it is before anything was put."""
    daemon.http.delete(f"/v1/namespaces/{namespace}")
    body = {"parts": list(parts), "schema_version": 1, "on_missing": "default", **settings}
    answer = daemon.http.put(f"/v1/namespaces/{namespace}", json=body)
    assert answer.status_code == 201, answer.text


def begin(daemon: Daemon, namespace: str, ttl_seconds: int = 600) -> str:
    answer = daemon.http.post(f"/v1/namespaces/{namespace}/imports", json={"ttl_seconds": ttl_seconds, "owner": "us"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["state"] == "open"
    return str(answer.json()["id"])


def chunk(keys: Sequence[bytes], rows: bytes) -> bytes:
    return pack({"keys": list(keys)}) + pack(rows)


def chunks(keys: Sequence[bytes], rows: bytes, row_bytes: int = ROW_BYTES, step: int = 5000) -> Iterable[bytes]:
    for at in range(0, len(keys), step):
        some = keys[at : at + step]
        yield chunk(some, rows[at * row_bytes : (at + len(some)) * row_bytes])


def send(daemon: Daemon, import_id: str, part: str, body: bytes | Iterable[bytes]) -> httpx2.Response:
    return daemon.http.put(f"/v1/imports/{import_id}/parts/{part}", content=body, headers=HEADERS)


def give(daemon: Daemon, import_id: str, part: str, keys: range, version: int = 1) -> None:
    answer = send(daemon, import_id, part, chunks(names(keys), rows_of(part, keys, version).tobytes()))
    assert (answer.status_code, answer.json()) == (200, {"keys": len(keys)})


def commit(daemon: Daemon, import_id: str, policy: str, **fields: Any) -> httpx2.Response:
    """What came of it, however long a busy machine takes; with ``wait_seconds`` what is answered after these."""
    answer = daemon.http.post(f"/v1/imports/{import_id}/commit", json={"policy": policy, **fields})
    while answer.status_code == 202 and not fields:
        answer = daemon.http.post(f"/v1/imports/{import_id}/commit", json={"policy": policy})
    return answer


def names(keys: Iterable[int]) -> list[bytes]:
    return [b"%d" % key for key in keys]


def rows_of(part: str, keys: Iterable[int], version: int = 1) -> Floats:
    """A row for each key, which tells key, part and version, and an element for each place in it."""
    listed = np.array(list(keys), dtype=np.float32)
    rows = np.empty((len(listed), ROW), dtype="<f4")
    rows[:, 0] = listed
    rows[:, 1] = "wmv".index(part)
    rows[:, 2] = version
    rows[:, 3:] = listed[:, None] / 4 + np.arange(3, ROW) + 100 * "wmv".index(part)
    return rows


def wait_for_import(daemon: Daemon, import_id: str) -> dict[str, Any]:
    """The import once its commit has ended."""
    for _ in range(POLLS_MAX):
        document = daemon.http.get(f"/v1/imports/{import_id}").json()
        if document["state"] != "committing":
            return dict(document)
    raise AssertionError("the commit does not end")
