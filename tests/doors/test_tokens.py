"""Doors of a daemon with tokens: the ways in which build tools send theirs, and what it allows them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.access.roles import Role
from tests.access.servers import Guarded, Holder
from tests.doors.build_tools import Ccache, sccache
from tests.doors.conftest import ALL_DOORS

WRITER = Holder("builders", Role.WRITER, ("bazel", "ccache", "gradle", "sccache"))
READER = Holder("people", Role.READER, ("ccache", "gradle"))
GRADLE_ENTRY = "/gradle/" + hashlib.md5(b"task").hexdigest()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(
        tmp_path_factory.mktemp("guarded"), *ALL_DOORS, "--admin-port", "0", holders=(WRITER, READER)
    ) as running:
        yield running


def test_a_reader_loads_and_does_not_store(guarded: Guarded) -> None:
    assert guarded.ask("PUT", GRADLE_ENTRY, holder=READER, body=b"entry").status == 403
    assert guarded.ask("GET", GRADLE_ENTRY, holder=READER).status == 404
    assert guarded.ask("PUT", GRADLE_ENTRY, holder=WRITER, body=b"entry").status == 201
    assert guarded.ask("GET", GRADLE_ENTRY, holder=READER).body == b"entry"


def test_without_a_token_nothing_is_answered(guarded: Guarded) -> None:
    assert guarded.ask("GET", GRADLE_ENTRY).status == 401
    assert guarded.ask("PROPFIND", "/sccache/a/").status == 401
    assert guarded.ask("GET", "/bazel/ac/" + "a" * 64, holder=READER).status == 403


def test_operators_have_no_doors_on_their_listener(guarded: Guarded) -> None:
    port = int(str(guarded.process.wait_logged("listening")["admin_url"]).rpartition(":")[2])
    assert guarded.ask("GET", "/livez", port=port).status == 200
    answer = guarded.ask("GET", GRADLE_ENTRY, holder=WRITER, port=port)
    assert (answer.status, answer.code) == (404, "no_such_route")


def test_bazel_encodes_its_password_in_its_own_way(guarded: Guarded) -> None:
    field = base64.urlsafe_b64encode(f"~~>~~?:{WRITER.token}".encode()).decode()
    assert "-" in field
    assert "_" in field
    answer = guarded.ask("GET", "/bazel/ac/" + "a" * 64, ("Authorization", f"Basic {field}"))
    assert answer.status == 404


def test_ccache_with_its_token_in_the_address(guarded: Guarded, tmp_path: Path) -> None:
    address = f"127.0.0.1:{guarded.address[1]}/ccache"
    tool = Ccache(tmp_path, f"http://builder:{WRITER.token}@{address}")
    built = tool.compile("first")
    assert tool.statistics("first")["remote_storage_write"] == 2
    tool = Ccache(tmp_path, f"http://someone:{READER.token}@{address}")
    assert tool.compile("second") == built
    assert tool.statistics("second")["remote_storage_hit"] == 1
    # Without one, it compiles.
    assert Ccache(tmp_path, f"http://{address}").compile("third") == built


def test_sccache_with_its_token_as_bearer(guarded: Guarded, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{guarded.address[1]}/sccache"
    with sccache(tmp_path, SCCACHE_WEBDAV_ENDPOINT=endpoint, SCCACHE_WEBDAV_TOKEN=WRITER.token) as tool:
        tool.compile()
        assert tool.statistics()["cache_writes"] == 1
