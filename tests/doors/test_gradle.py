"""Gradle's door, with the requests that ``HttpBuildCache`` makes."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head

CONTENT_TYPE = "application/vnd.gradle.build-cache-artifact.v2"
ACCEPT = ("Accept", f"{CONTENT_TYPE}, */*")
BASIC = ("Authorization", "Basic Z3JhZGxlOnNlY3JldA==")
TOO_LARGE_BYTES = 3 << 20


def _path(name: str) -> str:
    return f"/gradle/{hashlib.md5(name.encode()).hexdigest()}"


def test_load_store_load(client: RawClient) -> None:
    path, body = _path("task"), bytes(range(256)) * 100
    assert client.ask("GET", path, [ACCEPT, BASIC]).status == 404
    assert client.ask("PUT", path, [("Content-Type", CONTENT_TYPE), BASIC], body).status == 201
    answer = client.ask("GET", path, [ACCEPT, BASIC])
    assert (answer.status, answer.header("content-type"), answer.body) == (200, CONTENT_TYPE, body)
    assert client.ask("PUT", path, [("Content-Type", CONTENT_TYPE)], body).status == 204


def test_expect_continue_is_answered_before_the_body(client: RawClient) -> None:
    path, body = _path("expected"), b"artifact"
    fields = [("Content-Length", str(len(body))), ("Content-Type", CONTENT_TYPE), ("Expect", "100-continue")]
    client.send(head("PUT", path, fields))
    assert client.answer().status == 100
    client.send(body)
    assert client.answer("PUT").status == 201
    assert client.ask("GET", path).body == body


def test_too_large_is_413_without_a_byte_of_the_body(client: RawClient) -> None:
    fields = [("Content-Length", str(TOO_LARGE_BYTES)), ("Content-Type", CONTENT_TYPE), ("Expect", "100-continue")]
    client.send(head("PUT", _path("too large"), fields))
    answer = client.answer()
    assert (answer.status, answer.code) == (413, "value_too_large")


def test_too_large_is_413_for_a_client_that_sends_at_once(client: RawClient) -> None:
    answer = client.ask("PUT", _path("sent"), [("Content-Type", CONTENT_TYPE)], bytes(TOO_LARGE_BYTES))
    assert (answer.status, answer.code) == (413, "value_too_large")


def test_curl_waits_for_the_answer_and_goes_on(open_doors: Daemon, tmp_path: Path) -> None:
    source, target = tmp_path / "artifact", tmp_path / "loaded"
    source.write_bytes(hashlib.shake_128(b"artifact").digest(500_000))
    url = open_doors.url + _path("curl")
    curl = ["curl", "--silent", "--show-error", "--noproxy", "*", "--fail", "--user", "gradle:secret"]
    subprocess.run([*curl, "--header", "Expect: 100-continue", "--upload-file", str(source), url], check=True)
    subprocess.run([*curl, "--output", str(target), url], check=True)
    assert target.read_bytes() == source.read_bytes()
    # A part of it, as a client asks that resumes.
    subprocess.run([*curl, "--range", "1000-1999", "--output", str(target), url], check=True)
    assert target.read_bytes() == source.read_bytes()[1000:2000]


@pytest.mark.parametrize("name", ["A" * 32, "a" * 31, "a" * 129, "%61" + "a" * 31, "g" * 32])
def test_what_is_no_hash_is_refused(client: RawClient, name: str) -> None:
    answer = client.ask("GET", f"/gradle/{name}")
    assert (answer.status, answer.code) == (400, "build_key_invalid")


@pytest.mark.parametrize("path", ["/gradle", "/gradle/", "/gradle/team/" + "a" * 32])
def test_other_paths_are_404(client: RawClient, path: str) -> None:
    assert client.ask("GET", path).code == "no_such_route"


def test_entries_are_not_deleted(client: RawClient) -> None:
    assert client.ask("DELETE", _path("task")).header("allow") == "GET, HEAD, PUT"
