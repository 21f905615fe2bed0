"""D2 for one client that mixes levels: what it did last is what holds, though level ``none`` answers early."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawblockd.torture.load import exchange
from tests.support.forked_daemon import ForkedDaemon

ROUNDS = 20
SIZES = (100, 1_000_000)
FLAGS = ("--create", "--size", "64MiB", "--buffer-bytes", "32MiB")


@pytest.fixture
def connection(device: Path, log: Path) -> Iterator[http.client.HTTPConnection]:
    with ForkedDaemon(log, "--device", str(device), *FLAGS) as daemon:
        daemon.wait_ready()
        connection = daemon.connect()
        yield connection
        connection.close()
        assert daemon.stop() == 0


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_delete_finds_what_was_put_at_level_none(connection: http.client.HTTPConnection, size_bytes: int) -> None:
    """D2: the payload may still be on its way; the key is deleted all the same, and stays so."""
    for number in range(ROUNDS):
        path = f"/v1/kv/levels/{number}"
        assert exchange(connection, "PUT", f"{path}?durability=none", b"x" * size_bytes)[0] == 201
        assert exchange(connection, "DELETE", path)[0] == 204
        assert exchange(connection, "GET", path)[0] == 404
    for number in range(ROUNDS):
        assert exchange(connection, "GET", f"/v1/kv/levels/{number}")[0] == 404


@pytest.mark.parametrize("level", ["none", "journal", "flush"])
def test_a_later_put_wins_over_a_larger_one_at_level_none(connection: http.client.HTTPConnection, level: str) -> None:
    """D2: older versions don't come back, whichever payload is on the device first."""
    for number in range(ROUNDS):
        path = f"/v1/kv/levels/{number}"
        exchange(connection, "PUT", f"{path}?durability=none", b"x" * SIZES[1])
        assert exchange(connection, "PUT", f"{path}?durability={level}", b"later")[0] in (201, 204)
        if level != "none":
            assert exchange(connection, "GET", path) == (200, b"later")
    # A put that was acknowledged at a level that holds comes after all that were acknowledged before it.
    for number in range(ROUNDS):
        path = f"/v1/kv/levels/{number}"
        assert exchange(connection, "PUT", path, b"last")[0] == 204
        assert exchange(connection, "GET", path) == (200, b"last")


def test_conditions_see_what_was_put_at_level_none(connection: http.client.HTTPConnection) -> None:
    """D3: a condition is decided against everything that was acknowledged before."""
    for number in range(ROUNDS):
        path = f"/v1/kv/levels/{number}"
        assert exchange(connection, "PUT", f"{path}?durability=none", b"x" * SIZES[1])[0] == 201
        connection.request("PUT", path, body=b"never", headers={"If-None-Match": "*"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 412
