"""sccache's door: the part of WebDAV that it uses."""

from __future__ import annotations

import hashlib
from xml.etree import ElementTree

import pytest

from tests.http.raw_client import RawAnswer, RawClient, head

PROPFIND = b'<?xml version="1.0" encoding="utf-8" ?><D:propfind xmlns:D="DAV:"><D:allprop/></D:propfind>'
DEPTH_0 = [("Depth", "0"), ("Content-Type", "application/xml")]


def _properties(answer: RawAnswer) -> tuple[str, dict[str, str], bool]:
    """Path, properties as text, and whether it is a collection, of the only response there must be."""
    assert answer.status == 207
    assert (answer.header("content-type") or "").startswith("application/xml")
    document = ElementTree.fromstring(answer.body)
    assert document.tag == "{DAV:}multistatus"
    (response,) = document
    (propstat,) = response.findall("{DAV:}propstat")
    assert propstat.findtext("{DAV:}status") == "HTTP/1.1 200 OK"
    (found,) = propstat.findall("{DAV:}prop")
    properties = {element.tag.removeprefix("{DAV:}"): element.text or "" for element in found}
    is_collection = found.find("{DAV:}resourcetype/{DAV:}collection") is not None
    return response.findtext("{DAV:}href") or "", properties, is_collection


def test_the_sequence_of_a_start_and_a_store(client: RawClient) -> None:
    name = hashlib.sha256(b"object").hexdigest()
    path = f"/sccache/probe/{name[0]}/{name[1]}/{name[2]}/{name}"
    check = "/sccache/probe/.sccache_check"
    assert client.ask("GET", check).status == 404
    for parent in ("/sccache/probe/", path.removesuffix(name)):
        href, _, is_collection = _properties(client.ask("PROPFIND", parent, DEPTH_0, PROPFIND))
        assert (href, is_collection) == (parent, True)
    assert client.ask("PUT", check, body=b"Hello, World!").status == 201
    assert client.ask("GET", check).body == b"Hello, World!"
    assert client.ask("PUT", check, body=b"Hello, World!").status == 204
    assert client.ask("PUT", path, body=b"object").status == 201
    assert client.ask("GET", path).body == b"object"


def test_the_properties_of_an_entry(client: RawClient) -> None:
    path = "/sccache/pro%20perties/%26%3Ca%3E%C3%A4"
    stored = client.ask("PUT", path, [("Content-Type", 'text/plain; charset="a&b"')], b"123456789")
    href, properties, is_collection = _properties(client.ask("PROPFIND", path, DEPTH_0, PROPFIND))
    assert (href, is_collection) == (path, False)
    assert properties.pop("getlastmodified") == client.ask("HEAD", path).header("last-modified")
    assert properties == {
        "resourcetype": "",
        "getcontentlength": "9",
        "getetag": stored.header("etag"),
        "getcontenttype": 'text/plain; charset="a&b"',
    }


def test_a_missing_entry_has_no_properties(client: RawClient) -> None:
    answer = client.ask("PROPFIND", "/sccache/missing", DEPTH_0, PROPFIND)
    assert (answer.status, answer.code, answer.closes) == (404, "not_found", False)


@pytest.mark.parametrize("path", ["/sccache", "/sccache/", "/sccache/a/b/"])
def test_a_collection_is_always_there(client: RawClient, path: str) -> None:
    href, properties, is_collection = _properties(client.ask("PROPFIND", path, [("Depth", "0")]))
    assert (href, is_collection) == (path.rstrip("/") + "/", True)
    assert "getlastmodified" in properties
    assert "getcontentlength" not in properties


@pytest.mark.parametrize("fields", [[("Depth", "1")], [("Depth", "infinity")], []])
def test_members_are_never_listed(client: RawClient, fields: list[tuple[str, str]]) -> None:
    answer = client.ask("PROPFIND", "/sccache/a/", fields)
    assert answer.status == 403
    assert "propfind-finite-depth" in answer.problem["detail"]


def test_an_entry_has_no_members_so_any_depth_will_do(client: RawClient) -> None:
    client.ask("PUT", "/sccache/deep", body=b"entry")
    for fields in ([("Depth", "1")], [("Depth", "Infinity")], []):
        assert not _properties(client.ask("PROPFIND", "/sccache/deep", fields))[2]
    answer = client.ask("PROPFIND", "/sccache/deep", [("Depth", "2")])
    assert (answer.status, answer.code) == (400, "parameter_invalid")


def test_the_body_of_a_propfind_is_bounded(client: RawClient) -> None:
    client.send(head("PROPFIND", "/sccache/", [("Depth", "0"), ("Transfer-Encoding", "chunked")]))
    client.send(b"1\r\n<\r\n0\r\n\r\n")
    assert client.answer().status == 207
    answer = client.ask("PROPFIND", "/sccache/", DEPTH_0, bytes(17_000))
    assert (answer.status, answer.closes) == (413, True)


def test_mkcol(client: RawClient) -> None:
    for path in ("/sccache/new/", "/sccache/new/", "/sccache/new", "/sccache/missing/parent/"):
        answer = client.ask("MKCOL", path)
        assert (answer.status, answer.body) == (201, b"")
    assert client.ask("MKCOL", "/sccache/").status == 405
    client.ask("PUT", "/sccache/occupied", body=b"entry")
    answer = client.ask("MKCOL", "/sccache/occupied")
    assert (answer.status, answer.header("allow")) == (405, "GET, HEAD, PUT, DELETE, PROPFIND")
    answer = client.ask("MKCOL", "/sccache/bodied/", body=b"<x/>")
    assert (answer.status, answer.code) == (415, "media_type_unsupported")


def test_mkcol_takes_no_slot(client: RawClient) -> None:
    client.ask("MKCOL", "/sccache/nothing")
    assert client.ask("GET", "/sccache/nothing").status == 404


def test_delete(client: RawClient) -> None:
    client.ask("PUT", "/sccache/short/lived", body=b"entry")
    assert client.ask("DELETE", "/sccache/short/lived").status == 204
    assert client.ask("DELETE", "/sccache/short/lived").status == 404


def test_a_collection_takes_no_values(client: RawClient) -> None:
    for method in ("GET", "DELETE", "PUT"):
        answer = client.ask(method, "/sccache/a/", body=b"" if method == "PUT" else None)
        assert (answer.status, answer.header("allow")) == (405, "PROPFIND, MKCOL")
    with_move = client.ask("MOVE", "/sccache/a", [("Destination", "/sccache/b")])
    assert (with_move.status, with_move.code) == (405, "method_not_allowed")


@pytest.mark.parametrize("path", ["a/../b", "./a", "a//b", "a/%2e%2e", "a/%00", "a%0ab", "a/%"])
@pytest.mark.parametrize("method", ["GET", "PUT", "PROPFIND", "MKCOL"])
def test_paths_that_a_proxy_would_change_are_refused(client: RawClient, method: str, path: str) -> None:
    answer = client.ask(method, f"/sccache/{path}", [("Depth", "0")], b"x" if method == "PUT" else None)
    assert answer.status == 400
    assert answer.code in ("build_key_invalid", "key_invalid")
