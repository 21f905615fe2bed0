"""Before the engine is ready: every route answers at once, and none waits for the recovery."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from api.batch.verbs import BATCH_VERBS
from api.settings import ApiSettings
from tests.http.local_server import server_over_unstarted_engine


@pytest.fixture(scope="module")
def not_started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("device")
    settings = ApiSettings(retry_after_seconds=7)
    with server_over_unstarted_engine(folder, settings, lambda accept: (b"", "text/plain")) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/kv/tests/k"),
        ("HEAD", "/v1/kv/tests/k"),
        ("PUT", "/v1/kv/tests/k"),
        ("PATCH", "/v1/kv/tests/k?ttl=1"),
        ("DELETE", "/v1/kv/tests/k"),
        ("GET", "/v1/kv/tests"),
        *(("POST", f"/v1/kv/tests:{verb}") for verb in BATCH_VERBS),
        ("GET", "/v1/namespaces"),
        ("GET", "/v1/namespaces/tests"),
        ("PUT", "/v1/namespaces/tests"),
        ("DELETE", "/v1/namespaces/tests"),
        ("GET", "/v1/leases"),
        ("DELETE", "/v1/leases/some"),
        ("POST", "/v1/checkpoint"),
        ("POST", "/v1/recovery/acknowledge"),
    ],
)
def test_values_and_mutations_are_503_recovering(not_started: httpx2.Client, method: str, path: str) -> None:
    has_body = method == "PUT" or ":" in path
    answer = not_started.request(method, path, content=b"{}" if has_body else None)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["content-type"] == "application/problem+json"
    if method != "HEAD":
        assert answer.json()["code"] == "recovering"
    is_unread = has_body and path.startswith("/v1/kv/")
    assert answer.headers.get("connection") == ("close" if is_unread else None)


def test_what_needs_no_engine_is_answered_as_ever(not_started: httpx2.Client) -> None:
    assert not_started.get("/livez").status_code == 200
    assert not_started.get("/metrics").status_code == 200
    assert not_started.get("/docs").status_code == 200
    assert not_started.get("/v1/status").json()["state"] == "starting"
    assert not_started.get("/v1/recovery").json()["entries"] == []
    assert "Starting" in not_started.get("/").text


def test_readiness_is_503_and_says_how_far_the_recovery_is(not_started: httpx2.Client) -> None:
    answer = not_started.get("/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json()["code"] == "not_ready"
    verbose = not_started.get("/readyz?verbose")
    assert (verbose.status_code, verbose.headers["content-type"]) == (503, "application/json")
    document = verbose.json()
    assert document["state"] == "starting"
    assert 0 <= document["progress"]["ratio"] <= 1
    assert isinstance(document["progress"]["step"], str)
