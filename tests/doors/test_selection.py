"""The setting that opens doors, and what is shut without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.doors.selection import DoorChoice, DoorName, parse_doors
from rawblockd.settings_sources import load_settings
from storage.errors import SettingsInvalid
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

HASH = "0123456789abcdef" * 4
ENTRIES = {
    "bazel": f"/bazel/ac/{HASH}",
    "ccache": f"/ccache/{HASH}",
    "gradle": f"/gradle/{HASH}",
    "sccache": f"/sccache/{HASH}",
}


@pytest.fixture(scope="module")
def ajar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one open door, whose namespace has another name."""
    settings = ("--doors", "ccache=builds", "--default-durability", "flush")
    with Daemon(tmp_path_factory.mktemp("device") / "cache.img", *settings, size="64MiB") as running:
        yield running


def test_names_and_namespaces() -> None:
    assert parse_doors("bazel") == (DoorChoice(DoorName.BAZEL, "bazel"),)
    assert parse_doors(" sccache = rust-1 , gradle") == (
        DoorChoice(DoorName.SCCACHE, "rust-1"),
        DoorChoice(DoorName.GRADLE, "gradle"),
    )


@pytest.mark.parametrize(
    "text",
    ["", "bazel,", "Bazel", "buck", "bazel=", "bazel=a/b", "bazel,bazel=x", "ccache=x,sccache=x", "gradle=bazel,bazel"],
)
def test_another_form_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load_settings({"doors": text})
    assert "bazel, ccache, gradle or sccache" in refused.value.detail
    assert "flag --doors" in refused.value.detail


@pytest.mark.parametrize("name", ["bazel", "gradle", "sccache"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PROPFIND", "MKCOL"])
def test_a_door_that_is_not_set_is_404(ajar: Daemon, name: str, method: str) -> None:
    with RawClient(ajar.address) as client:
        for path in (ENTRIES[name], f"/{name}/", f"/{name}"):
            answer = client.ask(method, path, body=b"" if method == "PUT" else None)
            assert answer.status == 404
            if method != "HEAD":
                assert answer.code == "no_such_route"


def test_an_open_door_leads_to_its_namespace(ajar: Daemon) -> None:
    with RawClient(ajar.address) as client:
        assert client.ask("PUT", ENTRIES["ccache"], body=b"entry").status == 201
        assert client.ask("GET", f"/v1/kv/builds/{HASH}").body == b"entry"
        assert client.ask("GET", f"/v1/kv/ccache/{HASH}").status == 404
        assert client.ask("GET", "/ccachex/" + HASH).status == 404


def test_d1_the_level_is_the_daemons_default_and_the_answer_says_it(ajar: Daemon) -> None:
    with RawClient(ajar.address) as client:
        stored = client.ask("PUT", ENTRIES["ccache"], body=b"entry")
        assert stored.header("rawblockd-durability") == "flush"


def test_only_open_doors_are_in_the_document_and_in_the_metrics(ajar: Daemon, open_doors: Daemon) -> None:
    def places(daemon: Daemon) -> tuple[set[str], str]:
        return set(daemon.http.get("/openapi.json").json()["paths"]), daemon.http.get("/metrics").text

    paths, metrics = places(ajar)
    assert {path for path in paths if path.split("/")[1] in ENTRIES} == {"/ccache/{key}"}
    assert 'route="/ccache/{key}"' in metrics
    assert "/sccache/" not in metrics
    paths, _ = places(open_doors)
    assert paths >= {"/bazel/cas/{hash}", "/bazel/ac/{hash}", "/ccache/{key}", "/gradle/{hash}", "/sccache/{path}"}


def test_requests_are_counted_by_template(open_doors: Daemon, client: RawClient) -> None:
    client.ask("PROPFIND", "/sccache/counted/", [("Depth", "0")])
    client.ask("GET", f"/bazel/cas/{HASH}")
    metrics = open_doors.http.get("/metrics").text
    assert 'rawblockd_http_requests_total{code="207",method="PROPFIND",route="/sccache/{path}/"}' in metrics
    assert 'rawblockd_http_requests_total{code="404",method="GET",route="/bazel/cas/{hash}"}' in metrics
    assert HASH not in metrics
