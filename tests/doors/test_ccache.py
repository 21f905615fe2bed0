"""ccache's door: its layouts, and what a damaged entry does to a compilation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.doors.build_tools import Ccache
from tests.doors.conftest import ALL_DOORS
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

BASE_32 = "0af3q7v1m5k9cgh2b6tdsr8lnpe4ijou0"
BASE_16 = "0123456789abcdef0123456789abcdef01234567"
PATHS = [
    f"/ccache/{BASE_32[:2]}/{BASE_32[2:]}",
    f"/ccache/{BASE_32}",
    f"/ccache/{BASE_16[:2]}/{BASE_16[2:]}",
    f"/ccache/{BASE_16}",
    f"/ccache/ac/{BASE_16}{BASE_16[:24]}",
]


@pytest.mark.parametrize("path", PATHS)
def test_the_requests_of_each_layout(client: RawClient, path: str) -> None:
    assert client.ask("HEAD", path).status == 404
    assert client.ask("PUT", path, [("Content-Type", "application/octet-stream")], b"entry").status == 201
    assert client.ask("HEAD", path).status == 200
    assert client.ask("GET", path).body == b"entry"
    assert client.ask("DELETE", path).status == 204
    assert client.ask("DELETE", path).status == 404


@pytest.mark.parametrize(
    "path", ["ab/cd", "AB/" + BASE_16, "ab/cd/" + BASE_16, "ac/" + "a" * 63 + "w", "../" + BASE_16, "CACHEDIR.TAG"]
)
def test_other_paths_are_refused(client: RawClient, path: str) -> None:
    answer = client.ask("PUT", f"/ccache/{path}", body=b"entry")
    assert (answer.status, answer.code) == (400, "build_key_invalid")


def test_r8_damaged_entries_cost_a_compilation_and_nothing_else(tmp_path: Path) -> None:
    with Daemon(tmp_path / "cache.img", *ALL_DOORS, "--default-durability", "flush", size="64MiB") as daemon:
        tool = Ccache(tmp_path, f"{daemon.url}/ccache")
        built = tool.compile("first")
        for entry in tool.entries("first"):
            _damage(daemon.device, entry)
        assert tool.compile("second") == built
        second = tool.statistics("second")
        assert (second["cache_miss"], second["remote_storage_read_hit"], second["remote_storage_error"]) == (1, 0, 0)
        # What was compiled went into the cache again.
        assert tool.compile("third") == built
        assert tool.statistics("third")["remote_storage_hit"] == 1
        assert daemon.wait_at_rest()["capacity"]["slots"]["quarantined"] >= 1
        assert daemon.http.get("/readyz").status_code == 200


def _damage(device: Path, entry: bytes) -> None:
    """Overwrite the end of an entry where it lies on the device."""
    content = device.read_bytes()
    at = content.index(entry[-64:])
    with device.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(64), at)
        os.fsync(file.fileno())
