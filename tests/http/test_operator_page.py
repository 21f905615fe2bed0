"""The operator page without a browser: its files, its forms, its headers, and what it never does."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from api.operator_page.forms import FORM_MAX_BYTES, MEDIA_TYPE
from api.operator_page.history import SAMPLES_MAX
from api.operator_page.static_files import FOLDER, static_files
from tests.http.daemon import Daemon
from tests.http.raw_client import RawAnswer, RawClient

PAGES = ["/", "/skipped", "/operator/retry", "/operator/acknowledge", "/operator/checkpoint", "/docs"]
POLICY = {
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'",
}  # fmt: skip


def post(client: RawClient, path: str, fields: dict[str, str], content_type: str = MEDIA_TYPE) -> RawAnswer:
    return client.ask("POST", path, body=urlencode(fields).encode(), headers=[("Content-Type", content_type)])


@pytest.mark.parametrize("path", PAGES)
def test_pages_run_nothing_of_their_own_and_fetch_nothing_from_elsewhere(daemon: Daemon, path: str) -> None:
    answer = daemon.http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert set(answer.headers["content-security-policy"].split("; ")) == POLICY
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert answer.headers["referrer-policy"] == "same-origin"
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", answer.text)
    for script in re.findall(r"<script[^>]*>.*?</script>", answer.text):
        assert re.fullmatch(r'<script src="/static/[\w.]+\?v=[0-9a-f]{16}" defer></script>', script)


def test_the_page_names_only_files_that_are_there(daemon: Daemon) -> None:
    page = daemon.http.get("/").text
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert len(named) == 6
    for url in named:
        answer = daemon.http.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    for link in set(re.findall(r'href="(/[^"#]*)"', page)):
        assert daemon.http.get(link).status_code == 200, link


@pytest.mark.parametrize("name", sorted(static_files()))
def test_static_files(client: RawClient, name: str) -> None:
    file = static_files()[name]
    answer = client.ask("GET", f"/static/{name}")
    assert (answer.status, answer.body) == (200, file.content)
    assert answer.header("content-type") == file.content_type
    assert answer.header("cache-control") == "no-cache"
    assert answer.header("x-content-type-options") == "nosniff"
    tag = answer.header("etag")
    assert tag is not None
    head = client.ask("HEAD", f"/static/{name}")
    assert (head.status, head.body, head.header("content-length")) == (200, b"", str(len(file.content)))
    again = client.ask("GET", f"/static/{name}", headers=[("If-None-Match", tag)])
    assert (again.status, again.body, again.header("etag")) == (304, b"", tag)
    other = client.ask("GET", f"/static/{name}?v=0123456789abcdef", headers=[("If-None-Match", '"other"')])
    assert (other.status, other.header("cache-control")) == (200, "no-cache")


def test_vendored_files_come_with_their_licences() -> None:
    vendored = FOLDER / "vendor"
    described = (vendored / "README.md").read_text(encoding="utf-8")
    for path in vendored.glob("*.min.*"):
        assert f"`{path.name}`" in described
        assert (vendored / f"{path.name.split('.')[0]}.LICENSE.txt").stat().st_size > 0


@pytest.mark.parametrize(
    "path",
    [
        "/static/", "/static/nothing.js", "/static/../operator.html", "/static/..%2Foperator.html",
        "/static/%2e%2e/pages.py",
        "/static//etc/passwd", "/static/%2Fetc%2Fpasswd", "/static/vendor/htmx.min.js", "/static/htmx.LICENSE.txt",
        "/static/page.css%00", "/static/PAGE.CSS", "/templates/operator.html",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client: RawClient, path: str) -> None:
    assert client.ask("GET", path).status in (400, 404)


def test_an_action_is_answered_with_the_way_to_its_result(client: RawClient) -> None:
    answer = post(client, "/operator/checkpoint", {})
    assert answer.status == 303
    location = answer.header("location")
    assert location is not None
    assert re.fullmatch(r"/\?done=\d+#result", location)
    page = client.ask("GET", location.partition("#")[0]).body.decode()
    assert "Checkpoint written on request: seq " in page
    assert 'class="notice good"' in page


def test_r5_without_evidence_there_is_nothing_to_retry(client: RawClient) -> None:
    location = post(client, "/operator/retry", {}).header("location")
    assert location is not None
    page = client.ask("GET", location.partition("#")[0]).body.decode()
    assert "Retry refused: There is no partial recovery" in page
    assert 'class="notice bad"' in page


@pytest.mark.parametrize("seen", [{}, {"seen": ""}, {"seen": "3.3.0"}])
def test_r5_what_was_not_shown_is_not_acknowledged(client: RawClient, seen: dict[str, str]) -> None:
    answer = post(client, "/operator/acknowledge", seen)
    assert (answer.status, answer.header("location")) == (303, "/operator/acknowledge?changed=true")


def test_a_result_that_was_never_written_is_not_shown(daemon: Daemon) -> None:
    assert 'id="result"' not in daemon.http.get("/?done=999999999").text
    assert daemon.http.get("/?done=x").status_code == 422


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"seen": "0.0.0"}', "application/json"),
        (b"seen=0.0.0", "text/plain"),
        (b"seen=0.0.0", "multipart/form-data; boundary=x"),
        (b"seen=%ff", MEDIA_TYPE),
        (b"seen=\xff", MEDIA_TYPE),
        (b"&".join(b"a=%d" % n for n in range(17)), MEDIA_TYPE),
        (b"seen=" + b"0" * FORM_MAX_BYTES, MEDIA_TYPE),
    ],
)
def test_l1_odd_forms_are_refused(daemon: Daemon, body: bytes, content_type: str) -> None:
    with RawClient(daemon.address) as client:
        answer = client.ask("POST", "/operator/retry", body=body, headers=[("Content-Type", content_type)])
        assert (answer.status, answer.code) == (400, "parameter_invalid")


@pytest.mark.parametrize("path", ["/operator/format", "/operator/", "/operator/Retry"])
def test_other_operations_do_not_exist(client: RawClient, path: str) -> None:
    assert post(client, path, {}).status in (404, 422)


def test_history_has_columns_of_one_length(daemon: Daemon) -> None:
    history = daemon.http.get("/v1/history").json()
    assert history["interval_seconds"] * SAMPLES_MAX == history["span_seconds"]
    columns = [column for name, column in history.items() if isinstance(column, list)]
    assert len(columns) == 6
    assert len({len(column) for column in columns}) == 1
    assert history["at"] == sorted(history["at"])
