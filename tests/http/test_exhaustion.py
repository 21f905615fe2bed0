"""What is bounded runs out with a defined answer, and is whole again afterwards (L1, A1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head

VALUE = bytes(1 << 18)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A small device without eviction, little memory, and no patience."""
    device: Path = tmp_path_factory.mktemp("device") / "cache.img"
    limits = ["--eviction", "none", "--buffer-bytes", "16MiB", "--wait-timeout-seconds", "0.2"]
    with Daemon(device, *limits, size="64MiB") as running:
        yield running


def test_a1_a_full_device_answers_507_and_serves_again_when_emptied(small: Daemon) -> None:
    stored = 0
    with RawClient(small.address) as client:
        while (answer := client.ask("PUT", f"/v1/kv/full/{stored}", body=VALUE)).status == 201:
            stored += 1
    assert (answer.status, answer.code, answer.closes) == (507, "full", True)
    assert answer.header("retry-after") is None
    assert stored > 50
    for index in range(stored):
        assert small.http.get(f"/v1/kv/full/{index}").content == VALUE
    for index in range(stored):
        assert small.http.delete(f"/v1/kv/full/{index}").status_code == 204
    capacity = small.wait_at_rest()["capacity"]
    assert (capacity["slots"]["live"], capacity["used_bytes"], capacity["payload_bytes"]) == (0, 0, 0)
    for index in range(stored):
        assert small.http.put(f"/v1/kv/full/{index}", content=VALUE).status_code == 201
    for index in range(stored):
        assert small.http.delete(f"/v1/kv/full/{index}").status_code == 204


def test_uploads_that_hold_all_buffers_make_others_wait_then_503(small: Daemon) -> None:
    size = 500_000
    uploads: list[RawClient] = []
    busy = None
    while busy is None:
        upload = RawClient(small.address)
        upload.send(
            head("PUT", f"/v1/kv/busy/{len(uploads)}", [("Content-Length", str(size)), ("Expect", "100-continue")])
        )
        answer = upload.answer()
        if answer.status == 100:
            uploads.append(upload)
        else:
            busy = answer
            upload.close()
    assert (busy.status, busy.code) == (503, "busy")
    assert int(busy.header("retry-after") or "0") >= 1
    assert len(uploads) >= 16
    # Those that came first are not disturbed.
    for upload in uploads:
        upload.send(bytes(size))
    for upload in uploads:
        assert upload.answer().status == 201
        upload.close()
    assert small.wait_at_rest()["capacity"]["slots"]["live"] == len(uploads)
