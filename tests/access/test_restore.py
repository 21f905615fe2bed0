"""Snapshots and imports by their ids: an id opens nothing to a token that does not hold for its namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.access.conftest import OPERATOR, READER, TEAM_OPERATOR, TEAM_READER, TEAM_WRITER, WRITER
from tests.access.servers import Guarded, Holder
from tests.http.raw_client import RawAnswer

MSGPACK = ("Content-Type", "application/msgpack")


def ask(guarded: Guarded, holder: Holder, method: str, path: str, body: Any = None) -> RawAnswer:
    return guarded.ask(method, path, holder=holder, body=None if body is None else json.dumps(body).encode())


@pytest.fixture
def snapshot(guarded: Guarded) -> Iterator[str]:
    """Of a namespace of another team."""
    assert guarded.ask("PUT", "/v1/kv/others/key", holder=WRITER, body=b"v").status in (201, 204)
    taken = ask(guarded, WRITER, "POST", "/v1/namespaces/others/snapshots", {"ttl_seconds": 60})
    assert taken.status == 201, taken
    path = f"/v1/snapshots/{json.loads(taken.body)['id']}"
    yield path
    assert ask(guarded, OPERATOR, "DELETE", path).status == 204


@pytest.fixture
def begun(guarded: Guarded) -> Iterator[str]:
    schema = {"parts": [{"name": "w", "dtype": "uint8", "shape": []}], "schema_version": 1}
    assert ask(guarded, OPERATOR, "PUT", "/v1/namespaces/others-tables", schema).status in (200, 201)
    answer = ask(guarded, WRITER, "POST", "/v1/namespaces/others-tables/imports", {"ttl_seconds": 60})
    assert answer.status == 201, answer
    path = f"/v1/imports/{json.loads(answer.body)['id']}"
    yield path
    assert ask(guarded, OPERATOR, "DELETE", path).status == 204


def test_who_may_what_with_a_snapshot(guarded: Guarded, snapshot: str) -> None:
    for method, path in (("GET", ""), ("GET", "/export"), ("HEAD", "/export"), ("DELETE", "")):
        for holder in (TEAM_READER, TEAM_WRITER, TEAM_OPERATOR):
            assert ask(guarded, holder, method, snapshot + path).status == 403, (method, path, holder.name)
        assert guarded.ask(method, snapshot + path).status == 401
    for path in ("", "/export"):
        assert ask(guarded, READER, "GET", snapshot + path).status == 200
    refused = ask(guarded, READER, "DELETE", snapshot)
    assert (refused.status, refused.problem["role"]) == (403, "writer")
    assert ask(guarded, READER, "POST", "/v1/namespaces/others/snapshots", {"ttl_seconds": 60}).status == 403
    assert ask(guarded, TEAM_OPERATOR, "GET", "/v1/snapshots").status == 403
    listed = json.loads(ask(guarded, OPERATOR, "GET", "/v1/snapshots").body)["snapshots"]
    assert [one["namespace"] for one in listed] == ["others"]


def test_who_may_what_with_an_import(guarded: Guarded, begun: str) -> None:
    commit = {"policy": "drop"}
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/differences", None),
        ("PUT", "/parts/w", {}),
        ("POST", "/commit", commit),
        ("DELETE", "", None),
    ):
        for holder in (TEAM_WRITER, TEAM_OPERATOR, READER):
            assert ask(guarded, holder, method, begun + path, body).status == 403, (method, path, holder.name)
        assert guarded.ask(method, begun + path, body=b"").status == 401
    assert ask(guarded, TEAM_OPERATOR, "GET", "/v1/imports").status == 403
    assert guarded.ask("PUT", f"{begun}/parts/w", MSGPACK, holder=WRITER, body=b"").status == 200
    assert ask(guarded, WRITER, "GET", f"{begun}/differences").status == 200
    assert ask(guarded, WRITER, "GET", begun).status == 200
