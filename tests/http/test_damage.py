"""Values that are damaged on the device: misses that say so, never wrong bytes (B1, R8)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, request


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of its own: its state is degraded after the first damage."""
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img") as running:
        yield running


def _damage(device: Path, pattern: bytes) -> None:
    """Overwrite where ``pattern`` lies on the device."""
    with device.open("r+b") as file:
        at = 0
        while block := file.read(1 << 20):
            found = block.find(pattern)
            if found >= 0:
                os.pwrite(file.fileno(), bytes(len(pattern)), at + found)
                os.fsync(file.fileno())
                return
            at += len(block)
    raise AssertionError("the value is not on the device")


def test_r8_a_corrupt_entry_is_a_miss_that_says_so(damaged: Daemon, key: str) -> None:
    body = hashlib.shake_128(b"to be damaged").digest(9000)
    with RawClient(damaged.address) as client:
        assert client.ask("PUT", f"{key}?durability=flush", body=body).status == 201
        _damage(damaged.device, body[100:164])
        answer = client.ask("GET", key)
        assert (answer.status, answer.code) == (404, "corrupt")
        assert answer.header("cache-status") == "rawblockd; fwd=miss; detail=corrupt"
        assert client.ask("GET", key).header("cache-status") == "rawblockd; fwd=miss"
        # The key can be used again at once; what failed stays as evidence until an operator has seen it.
        assert client.ask("PUT", key, body=b"new").status == 201
        assert client.ask("GET", key).body == b"new"
        assert damaged.wait_at_rest()["capacity"]["slots"]["quarantined"] == 1
        readiness = client.ask("GET", "/readyz?verbose")
        assert (readiness.status, b'"corruption"' in readiness.body) == (200, True)
        assert client.ask("POST", "/v1/recovery/acknowledge", body=b"").status == 200
    status = damaged.wait_at_rest()
    assert (status["state"], status["capacity"]["slots"]["quarantined"]) == ("ready", 0)


def test_b1_damage_found_behind_the_head_ends_the_answer_short(damaged: Daemon, key: str) -> None:
    body = hashlib.shake_128(b"large and to be damaged").digest(4 << 20)
    at = 3_500_000
    with RawClient(damaged.address) as client:
        assert client.ask("PUT", f"{key}?durability=flush", body=body).status == 201
        _damage(damaged.device, body[at : at + 64])
        client.send(request("GET", key))
        answer = client.answer_head()
        assert (answer.status, answer.header("content-length")) == (200, str(len(body)))
        received = client.read_to_end()
        assert len(received) < at
        assert received == body[: len(received)]
    with RawClient(damaged.address) as client:
        assert client.ask("GET", key).status == 404
    damaged.wait_at_rest()
