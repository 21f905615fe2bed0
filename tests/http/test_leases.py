"""Leases over HTTP: what is held stays readable until it is released or its time is over."""

from __future__ import annotations

import json

import httpx2
import pytest

from tests.http.batches import HEADERS, objects, pack, values
from tests.http.daemon import POLLS_MAX, Daemon


def lease(daemon: Daemon, namespace: str, keys: list[bytes], **fields: object) -> httpx2.Response:
    body = pack({"keys": keys, "ttl_seconds": 60, **fields})
    return daemon.http.post(f"/v1/kv/{namespace}:lease", content=body, headers=HEADERS)


def test_a_lease_tells_what_is_there_and_keeps_it(daemon: Daemon) -> None:
    for name in ("a", "b"):
        assert daemon.http.put(f"/v1/kv/leased/{name}", content=name * 100).status_code == 201
    answer = lease(daemon, "leased", [b"a", b"gone", b"b", b""], owner="a test")
    (document,) = objects(answer.content)
    assert (document["bitmap"], document["count"], document["leading_hits"]) == (b"\x05", 2, 1)
    assert (document["entries"], document["invalid"]) == (2, [3])
    assert document["held_bytes"] >= 8192
    assert 0 < document["expires_in_seconds"] <= 60
    lease_id = document["lease"]
    # Overwritten and deleted: who names the lease reads what it holds, others what is there now.
    assert daemon.http.put("/v1/kv/leased/a", content="new").status_code == 204
    assert daemon.http.delete("/v1/kv/leased/b").status_code == 204
    assert daemon.http.get("/v1/kv/leased/a").text == "new"
    assert daemon.http.get("/v1/kv/leased/b").status_code == 404
    for name in ("a", "b"):
        assert daemon.http.get(f"/v1/kv/leased/{name}", params={"lease": lease_id}).text == name * 100
        head = daemon.http.head(f"/v1/kv/leased/{name}", params={"lease": lease_id})
        assert (head.status_code, head.headers["content-length"]) == (200, "100")
    body = pack({"keys": [b"a", b"b"]})
    answer = daemon.http.post(f"/v1/kv/leased:mget?lease={lease_id}", content=body, headers=HEADERS)
    assert [value for _, value in values(answer.content)[0]] == [b"a" * 100, b"b" * 100]
    assert daemon.http.delete(f"/v1/leases/{lease_id}").status_code == 204
    assert daemon.http.delete(f"/v1/leases/{lease_id}").json()["code"] == "lease_not_found"
    assert daemon.http.get("/v1/kv/leased/b", params={"lease": lease_id}).json()["code"] == "lease_not_found"
    daemon.wait_at_rest()


def test_b1_a_lease_opens_no_other_namespace(daemon: Daemon) -> None:
    for name in ("lease-mine", "lease-other"):
        daemon.http.put(f"/v1/kv/{name}/k", content=name)
    lease_id = objects(lease(daemon, "lease-mine", [b"k"]).content)[0]["lease"]
    for name in ("lease-other", "no-such"):
        for method in ("GET", "HEAD"):
            assert daemon.http.request(method, f"/v1/kv/{name}/k", params={"lease": lease_id}).status_code == 404
        body = pack({"keys": [b"k"]})
        answer = daemon.http.post(f"/v1/kv/{name}:mget?lease={lease_id}", content=body, headers=HEADERS)
        assert (answer.status_code, answer.json()["code"]) == (404, "lease_not_found")
        answer = lease(daemon, name, [b"k"], lease=lease_id)
        assert (answer.status_code, answer.json()["code"]) == (404, "lease_not_found")
    assert daemon.http.get("/v1/kv/lease-mine/k", params={"lease": lease_id}).text == "lease-mine"
    daemon.http.delete(f"/v1/leases/{lease_id}")


def test_leases_are_listed_without_their_ids(daemon: Daemon) -> None:
    daemon.http.put("/v1/kv/listed-leases/a", content=b"x")
    lease_id = objects(lease(daemon, "listed-leases", [b"a"], owner="somebody").content)[0]["lease"]
    answer = daemon.http.get("/v1/leases")
    assert lease_id not in answer.text
    (found,) = (one for one in answer.json()["leases"] if one["owner"] == "somebody")
    assert (found["namespace"], found["entries"]) == ("listed-leases", 1)
    assert lease_id not in json.dumps(daemon.status())
    assert any(hold["kind"] == "lease" for hold in daemon.status()["holds"])
    daemon.http.delete(f"/v1/leases/{lease_id}")


def test_a_lease_is_extended_with_its_id(daemon: Daemon) -> None:
    for name in ("a", "b"):
        daemon.http.put(f"/v1/kv/extended/{name}", content=b"x")
    first = objects(lease(daemon, "extended", [b"a"]).content)[0]
    more = objects(lease(daemon, "extended", [b"b"], lease=first["lease"], ttl_seconds=600).content)[0]
    assert (more["lease"], more["entries"]) == (first["lease"], 2)
    assert more["expires_in_seconds"] > 500
    answer = lease(daemon, "extended", [b"b"], lease="0" * 32)
    assert (answer.status_code, answer.json()["code"]) == (404, "lease_not_found")
    daemon.http.delete(f"/v1/leases/{first['lease']}")


def test_a_holder_that_vanishes_costs_its_time(daemon: Daemon) -> None:
    daemon.http.put("/v1/kv/vanished/a", content=b"x")
    lease_id = objects(lease(daemon, "vanished", [b"a"], ttl_seconds=1).content)[0]["lease"]
    for _ in range(POLLS_MAX):
        if daemon.http.get("/v1/kv/vanished/a", params={"lease": lease_id}).status_code == 404:
            break
    else:
        raise AssertionError("the lease does not end")
    assert daemon.http.get("/v1/kv/vanished/a").status_code == 200


def test_exists_leases_in_the_same_call(daemon: Daemon) -> None:
    daemon.http.put("/v1/kv/both/a", content=b"old")
    body = pack({"keys": [b"gone", b"a"], "sizes": True})
    answer = daemon.http.post("/v1/kv/both:exists?lease=60", content=body, headers=HEADERS)
    (document,) = objects(answer.content)
    assert (document["bitmap"], document["sizes"], document["leading_hits"]) == (b"\x02", [None, 3], 0)
    daemon.http.put("/v1/kv/both/a", content=b"new")
    assert daemon.http.get("/v1/kv/both/a", params={"lease": document["lease"]}).content == b"old"
    daemon.http.delete(f"/v1/leases/{document['lease']}")


def test_ten_thousand_keys_are_leased_or_none(daemon: Daemon) -> None:
    daemon.http.put("/v1/kv/many-leased/9999", content=b"x")
    document = objects(lease(daemon, "many-leased", [b"%d" % number for number in range(10_000)]).content)[0]
    assert (document["count"], document["entries"], document["bitmap"][-1]) == (1, 1, 0b1000_0000)
    assert daemon.http.delete(f"/v1/leases/{document['lease']}").status_code == 204


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": 1.5}, "ttl_seconds"),
        ({"ttl_seconds": True}, "ttl_seconds"),
        ({"ttl_seconds": None}, "ttl_seconds"),
        ({"ttl_seconds": 3601}, "ttl_seconds"),
        ({"owner": "x" * 129}, "owner"),
        ({"owner": "line\nbreak"}, "owner"),
        ({"owner": b"bytes"}, "owner"),
        ({"lease": 5}, "lease"),
        ({"lease": ""}, "lease"),
    ],
)
def test_odd_leases_are_refused_by_name(daemon: Daemon, fields: dict[str, object], named: str) -> None:
    answer = lease(daemon, "odd", [], **fields)
    assert (answer.status_code, answer.json()["parameter"]) == (400, named)


@pytest.mark.parametrize("query", ["lease=0", "lease=", "lease=3601", "lease=1.5", "lease=x", "lease=1&lease=1"])
def test_odd_times_of_a_lease_are_refused(daemon: Daemon, query: str) -> None:
    answer = daemon.http.post(f"/v1/kv/odd:exists?{query}", content=pack({"keys": []}), headers=HEADERS)
    assert (answer.status_code, answer.json()["parameter"]) == (400, "lease")
