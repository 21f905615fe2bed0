"""Tokens that hold for some namespaces: the decision is about the very name that the engine is asked for."""

from __future__ import annotations

import pytest

from tests.access.conftest import OPERATOR, TEAM_OPERATOR, TEAM_READER, TEAM_WRITER
from tests.access.servers import Guarded, Holder

FORBIDDEN = {"team-b": 403, "team-": 403, "team-aa": 403, "Team-a": 403, "other": 403}


@pytest.fixture(scope="module", autouse=True)
def values(guarded: Guarded) -> None:
    for namespace in ("team-a", "team-b", "other"):
        assert guarded.ask("PUT", f"/v1/kv/{namespace}/k", body=namespace.encode(), holder=OPERATOR).status in (
            201,
            204,
        )


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/kv/team-a/k", 200),
        ("/v1/kv/team%2Da/k", 200),
        ("/v1/kv/%74%65am-a/k", 200),
        ("/v1/kv/team-b/k", 403),
        ("/v1/kv/team%2db/k", 403),
        ("/v1/kv/team-a/../team-b/k", 404),
        ("/v1/kv/team-a/%2e%2e/team-b/k", 404),
        ("/v1/kv/team-a%2F..%2Fteam-b/k", 400),
        ("/v1/kv/team-a%2Fk/../../team-b/k", 400),
        ("/v1/kv/a%2Fb/..", 400),
        ("/v1/kv//team-a/k", 400),
        ("/v1/kv/./k", 403),
        ("/v1/kv/../team-b/k", 403),
        ("/v1/kv/team-a%00/k", 400),
        ("/v1/kv/team-a%252Fk/k", 400),
        ("/v1/kv/team-a%/k", 400),
        ("/v1/kv/team%E2%80%90b/k", 400),
        ("/v1/kv/TEAM-A/k", 403),
        ("/v1/kv/team-nowhere/k", 403),
    ],
)
def test_the_name_decides_as_the_engine_reads_it(guarded: Guarded, path: str, status: int) -> None:
    answer = guarded.ask("GET", path, holder=TEAM_READER)
    assert answer.status == status, answer.body
    if status == 200:
        assert answer.body == b"team-a"


def test_a_refusal_does_not_say_whether_a_namespace_exists(guarded: Guarded) -> None:
    there, not_there = (guarded.ask("GET", f"/v1/kv/{name}/k", holder=TEAM_READER) for name in ("other", "eithr"))
    assert there.body.replace(b"other", b"eithr") == not_there.body
    length = ("content-length", str(len(there.body)))
    assert length in there.headers and length in not_there.headers


@pytest.mark.parametrize("namespace", ["team-a", "team-b", "shared"])
def test_a_prefix_and_a_name(guarded: Guarded, namespace: str) -> None:
    assert guarded.ask("PUT", f"/v1/kv/{namespace}/w", body=b"x", holder=TEAM_WRITER).status in (201, 204)
    assert guarded.ask("GET", f"/v1/kv/{namespace}/w", holder=TEAM_WRITER).body == b"x"
    assert guarded.ask("DELETE", f"/v1/kv/{namespace}/w", holder=TEAM_WRITER).status == 204


@pytest.mark.parametrize("namespace", ["team", "tea", "shared1", "xteam-a", "other"])
def test_what_a_prefix_does_not_reach(guarded: Guarded, namespace: str) -> None:
    answer = guarded.ask("PUT", f"/v1/kv/{namespace}/w", body=b"x", holder=TEAM_WRITER)
    assert answer.status == 403
    assert answer.problem["namespace"] == namespace
    assert guarded.ask("GET", f"/v1/kv/{namespace}/w", holder=OPERATOR).status == 404, "nothing was stored"


@pytest.mark.parametrize("verb", ["mget", "exists", "mput", "mdelete", "lease"])
@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [("team-a", True), ("team%2Da", True), ("team-b", False), ("%6fther", False), ("team-a%2F..%2Fother", False)],
)
def test_batches_ask_for_the_same_name(guarded: Guarded, verb: str, name: str, is_allowed: bool) -> None:
    answer = guarded.ask("POST", f"/v1/kv/{name}:{verb}", body=b"", holder=TEAM_OPERATOR)
    refused = answer.status in (401, 403) or (answer.status == 400 and answer.code == "namespace_invalid")
    assert refused is not is_allowed, (answer.status, answer.body)


def test_a_reader_looks_but_holds_nothing(guarded: Guarded) -> None:
    """``:exists`` takes a reader; with a lease it takes what ``:lease`` takes."""
    answer = guarded.ask("POST", "/v1/kv/team-a:exists", body=b"", holder=TEAM_READER)
    assert answer.status not in (401, 403)
    answer = guarded.ask("POST", "/v1/kv/team-a:exists?lease=10", body=b"", holder=TEAM_READER)
    assert (answer.status, answer.problem["role"]) == (403, "writer")


@pytest.mark.parametrize(("name", "status"), [("team-a", 200), ("team%2Da", 200), ("team-b", 403), ("%6fther", 403)])
def test_listings_ask_for_the_same_name(guarded: Guarded, name: str, status: int) -> None:
    assert guarded.ask("GET", f"/v1/kv/{name}?limit=10", holder=TEAM_READER).status == status


def test_an_operator_of_a_namespace_wipes_that_one_only(guarded: Guarded) -> None:
    assert guarded.ask("DELETE", "/v1/namespaces/team-b", holder=TEAM_OPERATOR).status == 403
    assert guarded.ask("GET", "/v1/kv/team-b/k", holder=OPERATOR).status == 200
    assert guarded.ask("DELETE", "/v1/namespaces/team-a-none", holder=TEAM_OPERATOR).status == 403
    for path in ("/v1/checkpoint", "/v1/recovery/acknowledge"):
        assert guarded.ask("POST", path, body=b"", holder=TEAM_OPERATOR).status == 403


@pytest.mark.parametrize("holder", [TEAM_READER, None], ids=["reader", "none"])
def test_a_put_is_refused_before_its_body_is_sent(guarded: Guarded, holder: Holder | None) -> None:
    """The client waits for 100 Continue, and never hears it."""
    waiting = [("Expect", "100-continue"), ("Content-Length", "1000000")]
    answer = guarded.ask("PUT", "/v1/kv/team-a/big", *waiting, holder=holder)
    assert answer.status == (403 if holder else 401)
    assert answer.closes


@pytest.mark.parametrize("query", ["?lease=1", "?%6cease=1", "?&lease=1"])
def test_to_ask_and_lease_at_once_takes_a_writer(guarded: Guarded, query: str) -> None:
    json, body = ("Content-Type", "application/json"), b'{"keys": ["k"]}'
    assert guarded.ask("POST", "/v1/kv/team-a:exists", json, body=body, holder=TEAM_READER).status == 200
    assert guarded.ask("POST", f"/v1/kv/team-a:exists{query}", json, body=body, holder=TEAM_READER).status == 403
    assert guarded.ask("POST", f"/v1/kv/team-a:exists{query}", json, body=body, holder=TEAM_WRITER).status == 200
