"""What a device is spared: puts that the settings refuse are answered before their body is sent."""

from __future__ import annotations

from pathlib import Path

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head


def test_puts_above_the_write_budget_are_answered_429_and_when_to_come_back(tmp_path: Path) -> None:
    size = 100_000  # the second put overdraws the account by many seconds
    with (
        Daemon(tmp_path / "cache.img", "--write-budget-bytes-per-second", "128KiB", size="256MiB") as running,
        RawClient(running.address) as client,
    ):
        for number in range(2):
            assert client.ask("PUT", f"/v1/kv/n/{number}", body=bytes(size * 20**number)).status == 201
        client.send(head("PUT", "/v1/kv/n/late", [("Content-Length", str(size)), ("Expect", "100-continue")]))
        refused = client.answer()
        assert (refused.status, refused.code) == (429, "write_budget")
        assert 1 <= int(refused.header("retry-after") or "0") <= 20
        assert running.http.get("/v1/kv/n/0").content == bytes(size)
        metrics = running.http.get("/metrics").text
        assert 'rawblockd_put_rejections_total{reason="write_budget"} 1.0' in metrics


def test_a_full_device_takes_a_new_key_at_its_second_put(tmp_path: Path) -> None:
    value = bytes(200_000)
    with Daemon(tmp_path / "cache.img", "--admission", "second_put", size="64MiB") as running:
        number = 1
        while (answer := running.http.put(f"/v1/kv/n/{number}", content=value)).status_code == 201:
            number += 1
        assert (answer.status_code, answer.json()["code"]) == (507, "not_admitted")
        assert number > 50
        assert running.http.get(f"/v1/kv/n/{number}").status_code == 404
        assert running.http.put(f"/v1/kv/n/{number}", content=value).status_code == 201
        assert running.http.get(f"/v1/kv/n/{number}").content == value
