"""What ``docs/batch.md`` shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack

from tests.http.batches import HEADERS, objects, results
from tests.http.daemon import ROOT, Daemon

PAGE = Path(ROOT / "docs" / "batch.md").read_text(encoding="utf-8")


def test_the_client_of_the_page_stores_and_reads(daemon: Daemon) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "batch.md", "exec"), names)
    client = names["Batches"](daemon.host, daemon.port, "page")
    large = bytes(range(256)) * 20_000
    assert [result["status"] for result in client.mput([(b"a", b"one"), (b"b", b""), (b"c", large)])] == [201] * 3
    assert client.mget([b"a", b"gone", b"b", b"c", b"a"]) == [b"one", None, b"", large, b"one"]
    client.connection.close()


def test_the_bytes_of_the_page_are_understood(daemon: Daemon) -> None:
    put, read = bytearray(), bytearray()
    for line in PAGE.splitlines():
        if match := re.match(r"((?:[0-9a-f]{2,} +)+) +\{\"(?:durability|key)\"", line):
            put += bytes.fromhex(match[1])
        elif match := re.match(r"request +((?:[0-9a-f]{2,} +)+)", line):
            read += bytes.fromhex(match[1])
    stored = daemon.http.post("/v1/kv/page-bytes:mput", content=bytes(put), headers=HEADERS)
    assert [result["durability"] for result in results(stored.content)] == ["flush", "flush"]
    assert msgpack.unpackb(read) == {"keys": [b"a", b"no"]}
    hit, value, miss, end = objects(
        daemon.http.post("/v1/kv/page-bytes:mget", content=bytes(read), headers=HEADERS).content
    )
    assert (hit["status"], hit["size"], value) == (200, 3, b"one")
    daemon.http.delete("/v1/namespaces/page-bytes")  # one of them would expire while other tests compare
    assert (miss, end) == (
        {"status": 404, "reason": "not_found"},
        {"end": True, "results": 2, "hits": 1, "leading_hits": 1},
    )


def test_the_examples_for_curl_are_answered(daemon: Daemon) -> None:
    found = re.findall(r"localhost:8790(/\S+) --json '(.*)'", PAGE)
    assert len(found) == 4
    for path, body in found:
        answer = daemon.http.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 200
        if "lease" in answer.json():
            daemon.http.delete(f"/v1/leases/{answer.json()['lease']}")
