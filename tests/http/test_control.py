"""The operator's routes, probes, pages and the framework's own errors."""

from __future__ import annotations

import pytest

from rawblockd.error_tree import error_classes
from storage.recovery.errors import RecoveryRefused
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

JSON_ROUTES = ["/v1/status", "/v1/recovery", "/readyz?verbose", "/openapi.json"]
TEXT_ROUTES = ["/livez", "/readyz", "/metrics"]
PAGES = ["/", "/docs"]


def test_status_names_what_the_contract_names(daemon: Daemon) -> None:
    status = daemon.status()
    assert status["state"] in ("ready", "degraded")
    assert {
        "reasons", "partial_recovery", "skipped_entries", "skipped_by_reason", "auto_checkpoint", "recovery",
        "checkpoint", "journal", "capacity", "classes", "namespaces", "holds", "device", "version", "uptime_seconds",
    } <= status.keys()  # fmt: skip
    assert {"path", "uuid", "direct_io", "block_bytes", "io_engine"} <= status["device"].keys()
    assert {"free", "live", "quarantined", "retired", "limbo", "in_flight", "total"} == status["capacity"][
        "slots"
    ].keys()


def test_status_says_how_much_of_the_buffers_is_huge(daemon: Daemon) -> None:
    """As the kernel tells of the process's mappings, of which the arena is the largest."""
    buffers = daemon.status()["buffers"]
    largest = max(daemon.huge_bytes_by_mapping())
    assert 0 <= buffers["huge_bytes"] <= min(largest, buffers["total_bytes"])
    assert buffers["huge_bytes"] or largest < buffers["total_bytes"] // 2


def test_a1_status_counts_what_was_put(daemon: Daemon, key: str) -> None:
    before = daemon.wait_at_rest()["capacity"]["slots"]["live"]
    assert daemon.http.put(key, content=b"x" * 100).status_code == 201
    assert daemon.wait_at_rest()["capacity"]["slots"]["live"] == before + 1
    assert daemon.http.delete(key).status_code == 204
    assert daemon.wait_at_rest()["capacity"]["slots"]["live"] == before


def test_the_recovery_report_is_paged(daemon: Daemon) -> None:
    report = daemon.http.get("/v1/recovery", params={"start": 5, "limit": 10}).json()
    assert report["start"] == 5
    assert (report["partial_recovery"], report["skipped_entries"], report["entries"]) == (False, 0, [])
    assert report["recovery"]["copies"] is not None


@pytest.mark.parametrize("query", ["start=-1", "limit=0", "limit=1001", "start=x", "limit=", "start=1e3"])
def test_odd_pages_are_refused(client: RawClient, query: str) -> None:
    answer = client.ask("GET", f"/v1/recovery?{query}")
    assert (answer.status, answer.code) == (422, "parameters_invalid")
    assert query.partition("=")[0] in answer.problem["detail"]


def test_r5_without_partial_recovery_there_is_nothing_to_acknowledge(client: RawClient) -> None:
    answer = client.ask("POST", "/v1/recovery/acknowledge", body=b"")
    assert (answer.status, answer.code) == (409, "nothing_to_acknowledge")


def test_a_checkpoint_on_request(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=b"x").status_code == 201
    answer = daemon.http.post("/v1/checkpoint")
    assert answer.status_code == 200
    assert answer.json()["seq"] > 0
    assert daemon.http.get(key).content == b"x"


@pytest.mark.parametrize("path", [*JSON_ROUTES, *TEXT_ROUTES, *PAGES])
def test_head_is_get_without_the_body(daemon: Daemon, path: str) -> None:
    with RawClient(daemon.address) as client:
        head = client.ask("HEAD", path)
        assert head.status == 200
        assert head.body == b""
        get = client.ask("GET", path)
        assert get.status == 200
        assert get.body
        assert head.header("content-type") == get.header("content-type")


@pytest.mark.parametrize("path", [path.partition("?")[0] for path in (*JSON_ROUTES, *TEXT_ROUTES, *PAGES)])
def test_other_methods_are_405_with_allow(client: RawClient, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.ask(method, path, body=b"")
        assert (answer.status, answer.code, answer.header("allow")) == (405, "method_not_allowed", "GET, HEAD")


@pytest.mark.parametrize("path", ["/v1/checkpoint", "/v1/recovery/acknowledge"])
def test_reading_an_action_is_405(client: RawClient, path: str) -> None:
    answer = client.ask("GET", path)
    assert (answer.status, answer.header("allow")) == (405, "POST")


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/kv", "/v1/status/", "/v1/kv/tests:none", "//"])
def test_unknown_paths_are_404_problems(client: RawClient, path: str) -> None:
    answer = client.ask("GET", path)
    assert answer.status in (400, 404)
    assert answer.code in ("no_such_route", "bad_request")


def test_values_name_the_methods_they_take(client: RawClient) -> None:
    for method in ("POST", "OPTIONS", "TRACE", "PROPFIND"):
        answer = client.ask(method, "/v1/kv/tests/k")
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert answer.header("allow") == "GET, HEAD, PUT, PATCH, DELETE"


def test_probes_of_a_ready_daemon(daemon: Daemon) -> None:
    assert daemon.http.get("/livez").text == "alive\n"
    assert daemon.http.get("/readyz").text.strip() in ("ready", "degraded")
    for query in ("?verbose", "?verbose=1", "?verbose="):
        answer = daemon.http.get(f"/readyz{query}")
        assert answer.headers["content-type"] == "application/json"
        document = answer.json()
        assert document["state"] in ("ready", "degraded")
        assert (document["partial_recovery"], document["skipped_entries"]) == (False, 0)
        assert "progress" not in document


def test_metrics_count_requests_by_template_never_by_key(daemon: Daemon) -> None:
    marker = "a-key-that-must-not-become-a-label"
    before = daemon.request_count("GET", 404)
    for _ in range(3):
        daemon.http.get(f"/v1/kv/tests/{marker}")
    daemon.http.get(f"/{marker}")
    daemon.http.request("X" + marker.upper(), f"/v1/kv/tests/{marker}")
    assert daemon.request_count("GET", 404) == before + 3
    text = daemon.http.get("/metrics").text
    assert marker not in text.lower()
    assert 'route="other"' in text
    assert 'route="/v1/status"' in text


def test_metrics_speak_openmetrics_when_asked(daemon: Daemon) -> None:
    answer = daemon.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert daemon.http.get("/metrics").headers["content-type"].startswith("text/plain")


def test_the_operator_page_links_to_what_is_there(daemon: Daemon) -> None:
    page = daemon.http.get("/").text
    assert daemon.status()["state"] in page
    for link in ("/v1/status", "/v1/recovery", "/readyz?verbose", "/metrics", "/docs"):
        assert f'href="{link}"' in page
        assert daemon.http.get(link).status_code == 200


def test_the_reference_is_complete(daemon: Daemon) -> None:
    page = daemon.http.get("/docs").text
    document = daemon.http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        assert f"<code>{path}</code>" in page
        for method, operation in operations.items():
            if method == "parameters":
                continue
            assert operation["summary"]
            assert operation["description"]
            assert {"405", "500"} <= operation["responses"].keys()
    with RawClient(daemon.address) as client:
        problem = client.ask("GET", "/v1/kv/tests/%").problem
    assert f'id="{problem["type"].partition("#")[2]}"' in page
    of_a_start = {kind.code for _, kind in error_classes(RecoveryRefused)} | {RecoveryRefused.code}
    for code in {kind.code for _, kind in error_classes() if kind.http_status != 500} - of_a_start:
        assert page.count(f'id="problem-{code}"') == 1, code
