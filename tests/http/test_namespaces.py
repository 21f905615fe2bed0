"""Namespaces over HTTP: settings, what they do to puts, exact usage, wipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.batches import HEADERS, entries, results
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

DEFAULTS: dict[str, Any] = {
    "quota_bytes": None,
    "quota_entries": None,
    "quota_mode": "soft",
    "default_ttl_seconds": None,
    "sliding_ttl": False,
    "ttl_jitter_percent": 0,
    "default_durability": None,
    "eviction_weight_percent": 100,
    "parts": [],
    "on_missing": "reject",
    "schema_version": 0,
}


def set_namespace(daemon: Daemon, name: str, **settings: Any) -> int:
    answer = daemon.http.put(f"/v1/namespaces/{name}", json=settings)
    assert answer.status_code in (200, 201), answer.text
    document = answer.json()
    assert {field: document[field] for field in DEFAULTS} == {**DEFAULTS, **settings}
    return int(answer.status_code)


def test_settings_are_made_replaced_whole_and_listed(daemon: Daemon) -> None:
    assert set_namespace(daemon, "settings", quota_bytes=1 << 20, quota_mode="hard") == 201
    assert set_namespace(daemon, "settings", default_ttl_seconds=60, sliding_ttl=True, ttl_jitter_percent=10) == 200
    assert set_namespace(daemon, "settings", default_durability="flush", eviction_weight_percent=500) == 200
    assert set_namespace(daemon, "settings") == 200
    document = daemon.http.get("/v1/namespaces/settings").json()
    assert document == {"name": "settings", **DEFAULTS, "entries": 0, "used_bytes": 0, "payload_bytes": 0}
    names = [one["name"] for one in daemon.http.get("/v1/namespaces").json()["namespaces"]]
    assert "settings" in names
    assert names == sorted(names)
    assert daemon.http.get("/v1/namespaces/no-such").json()["code"] == "namespace_not_found"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('{"quota_entries": 5.0}', "quota_entries"),
        ('{"quota_entries": "5"}', "quota_entries"),
        ('{"quota_entries": true}', "quota_entries"),
        ('{"quota_entries": 0}', "quota_entries"),
        ('{"quota_bytes": -1}', "quota_bytes"),
        ('{"quota_mode": "Soft"}', "quota_mode"),
        ('{"quota_mode": null}', "quota_mode"),
        ('{"sliding_ttl": 1}', "sliding_ttl"),
        ('{"sliding_ttl": true}', "sliding_ttl"),
        ('{"ttl_jitter_percent": 101}', "ttl_jitter_percent"),
        ('{"default_durability": "disk"}', "default_durability"),
        ('{"default_ttl_seconds": 2147483648}', "default_ttl_seconds"),
        ('{"eviction_weight_percent": 1001}', "eviction_weight_percent"),
        ('{"quota": 5}', "quota"),
        ('{"name": "other"}', "name"),
        ("[]", ""),
        ("", ""),
        ("{", ""),
        ('{"quota_bytes": NaN}', ""),
    ],
)
def test_settings_are_read_strictly_and_refused_by_name(daemon: Daemon, body: str, named: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = daemon.http.put("/v1/namespaces/strict", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "parameters_invalid")
    assert named in answer.json()["detail"]
    assert daemon.http.get("/v1/namespaces/strict").status_code == 404


def test_l1_the_body_is_bounded(daemon: Daemon) -> None:
    answer = daemon.http.put("/v1/namespaces/bounded", content=b" " * 100_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "batch_too_large")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("name", ["a%20b", "a:b", "%C3%A9", "n" * 129])
def test_bad_names_are_refused(client: RawClient, name: str) -> None:
    for method, body in (("GET", None), ("PUT", b"{}"), ("DELETE", None)):
        answer = client.ask(method, f"/v1/namespaces/{name}", body=body)
        assert (answer.status, answer.code) == (400, "namespace_invalid")


def test_a2_usage_is_exact(daemon: Daemon) -> None:
    daemon.http.post("/v1/kv/usage:mput", content=entries([(b"a", bytes(100)), (b"b", bytes(9000))]), headers=HEADERS)
    document = daemon.http.get("/v1/namespaces/usage").json()
    assert (document["entries"], document["payload_bytes"]) == (2, 9100)
    assert document["used_bytes"] >= 9100
    daemon.http.put("/v1/kv/usage/a", content=bytes(50))
    daemon.http.delete("/v1/kv/usage/b")
    document = daemon.http.get("/v1/namespaces/usage").json()
    assert (document["entries"], document["payload_bytes"]) == (1, 50)


def test_a_hard_quota_refuses_and_a_soft_one_makes_room(daemon: Daemon) -> None:
    set_namespace(daemon, "hard", quota_entries=2, quota_mode="hard")
    answer = daemon.http.post("/v1/kv/hard:mput", content=entries((b"%d" % n, b"") for n in range(4)), headers=HEADERS)
    found = results(answer.content)
    assert sorted((result["status"], result.get("reason")) for result in found) == [
        (201, None), (201, None), (507, "quota_exceeded"), (507, "quota_exceeded"),
    ]  # fmt: skip
    refused = daemon.http.put("/v1/kv/hard/5", content=b"")
    assert (refused.status_code, refused.json()["code"]) == (507, "quota_exceeded")
    assert set_namespace(daemon, "hard", quota_entries=3, quota_mode="soft") == 200
    for number in range(10, 20):
        assert daemon.http.put(f"/v1/kv/hard/{number}", content=b"").status_code == 201
    assert daemon.http.get("/v1/namespaces/hard").json()["entries"] <= 3
    # A lowered quota holds at once.
    assert set_namespace(daemon, "hard", quota_entries=1) == 200
    assert daemon.http.get("/v1/namespaces/hard").json()["entries"] <= 1


def test_defaults_hold_for_puts_that_name_none(daemon: Daemon) -> None:
    set_namespace(daemon, "defaults", default_ttl_seconds=5000, default_durability="flush")

    def put(query: str = "", **headers: str) -> tuple[str, str | None]:
        answer = daemon.http.put(f"/v1/kv/defaults/k{query}", content=b"x", headers=headers)
        assert answer.status_code in (201, 204)
        lifetime = daemon.http.get("/v1/kv/defaults/k").headers.get("cache-control")
        return answer.headers["rawblockd-durability"], lifetime

    assert put()[0] == "flush"
    assert put()[1] in ("max-age=5000", "max-age=4999")
    assert put("?durability=journal&ttl=none") == ("journal", None)
    assert put("?ttl=6000")[1] in ("max-age=6000", "max-age=5999")
    assert put(**{"Cache-Control": "max-age=7000"})[1] in ("max-age=7000", "max-age=6999")
    answer = daemon.http.post("/v1/kv/defaults:mput", content=entries([(b"k", b"x")]), headers=HEADERS)
    assert results(answer.content)[0]["durability"] == "flush"
    assert daemon.http.get("/v1/kv/defaults/k").headers["cache-control"] in ("max-age=5000", "max-age=4999")


def test_a_jittered_expiry_lies_in_the_last_part_of_the_ttl(daemon: Daemon) -> None:
    set_namespace(daemon, "jitter", default_ttl_seconds=10_000, ttl_jitter_percent=50)
    lifetimes = set()
    for number in range(20):
        daemon.http.put(f"/v1/kv/jitter/{number}", content=b"")
        told = daemon.http.get(f"/v1/kv/jitter/{number}").headers["cache-control"]
        lifetimes.add(int(told.removeprefix("max-age=")))
    assert len(lifetimes) > 10
    assert all(4999 <= lifetime <= 10_000 for lifetime in lifetimes)


def test_a_wipe_ends_a_namespace_and_the_name_can_be_used_at_once(daemon: Daemon) -> None:
    set_namespace(daemon, "wiped", default_ttl_seconds=500)
    daemon.http.post("/v1/kv/wiped:mput", content=entries((b"%d" % n, bytes(n)) for n in range(100)), headers=HEADERS)
    answer = daemon.http.delete("/v1/namespaces/wiped")
    assert (answer.status_code, answer.json()["entries"], answer.json()["default_ttl_seconds"]) == (200, 100, 500)
    assert daemon.http.get("/v1/namespaces/wiped").status_code == 404
    assert daemon.http.get("/v1/kv/wiped/5").status_code == 404
    assert daemon.http.delete("/v1/namespaces/wiped").status_code == 404
    assert daemon.http.put("/v1/kv/wiped/5", content=b"new").status_code == 201
    assert "cache-control" not in daemon.http.get("/v1/kv/wiped/5").headers
    assert daemon.http.get("/v1/namespaces/wiped").json()["entries"] == 1
    daemon.wait_at_rest()


def test_settings_survive_a_restart(tmp_path: Path) -> None:
    device = tmp_path / "cache.img"
    settings = {"quota_entries": 7, "quota_mode": "hard", "default_ttl_seconds": 9, "default_durability": "flush"}
    copy = tmp_path / "copy.img"
    with Daemon(device, size="64MiB") as first:
        set_namespace(first, "kept", **settings)
        assert first.http.put("/v1/kv/kept/a", content=b"x").status_code == 201
        assert first.http.post("/v1/checkpoint").status_code == 200
        copy.hardlink_to(device)  # the helper removes its own
    with Daemon(copy, size="64MiB") as second:
        document = second.http.get("/v1/namespaces/kept").json()
        assert {field: document[field] for field in DEFAULTS} == {**DEFAULTS, **settings}
