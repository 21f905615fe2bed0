"""Parts over HTTP: named, read one by one, refused by name; of one generation, and only their blocks read."""

from __future__ import annotations

import json
import os
from typing import Any

import msgpack
import pytest

from tests.http.batches import HEADERS, entry, pack, results, values
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head

MIB = 1 << 20
W, M = os.urandom(32), os.urandom(3 * MIB)
PARTS = {"Rawblockd-Parts": f"w=float32[8], m=uint8[3,{MIB}]"}


@pytest.fixture
def parted(daemon: Daemon, key: str) -> str:
    answer = daemon.http.put(key, content=W + M, headers=PARTS)
    assert answer.status_code == 201
    return key


def test_b1_a_part_is_read_by_itself(daemon: Daemon, parted: str) -> None:
    whole = daemon.http.get(parted)
    assert (whole.content, whole.headers["rawblockd-parts"]) == (W + M, PARTS["Rawblockd-Parts"])
    for name, data in (("w", W), ("m", M)):
        answer = daemon.http.get(f"{parted}?part={name}")
        assert (answer.status_code, answer.content) == (200, data)
        assert (answer.headers["rawblockd-part"], answer.headers["etag"]) == (name, whole.headers["etag"])
        assert answer.headers["rawblockd-parts"] == PARTS["Rawblockd-Parts"]
        head = daemon.http.head(f"{parted}?part={name}")
        assert head.headers["content-length"] == str(len(data))
        assert head.headers["rawblockd-part"] == name
    piece = daemon.http.get(f"{parted}?part=m", headers={"Range": "bytes=1000000-1000099"})
    assert (piece.status_code, piece.content) == (206, M[1_000_000:1_000_100])
    assert piece.headers["content-range"] == f"bytes 1000000-1000099/{len(M)}"
    assert daemon.http.get(f"{parted}?part=w", headers={"Range": "bytes=-4"}).content == W[-4:]
    behind = daemon.http.get(f"{parted}?part=w", headers={"Range": "bytes=32-"})
    assert (behind.status_code, behind.headers["content-range"]) == (416, "bytes */32")
    tag = {"If-None-Match": whole.headers["etag"]}
    assert daemon.http.get(f"{parted}?part=w", headers=tag).status_code == 304


def test_a_part_that_is_not_there_is_named(daemon: Daemon, parted: str) -> None:
    for name in ("none", "", "W", "%F0%9F%98%80"):
        answer = daemon.http.get(f"{parted}?part={name}")
        assert (answer.status_code, answer.json()["code"]) == (404, "part_not_found")
        assert answer.json()["parts"] == ["w", "m"]
        assert daemon.http.head(f"{parted}?part={name}").status_code == 404
    assert daemon.http.get(f"{parted}-none?part=w").json()["code"] == "not_found"
    assert daemon.http.get(f"{parted}?part=w&part=m").json()["code"] == "parameter_invalid"


def test_only_the_blocks_of_a_part_are_read(daemon: Daemon, parted: str) -> None:
    """The daemon reads for itself too, now and then, so the least of several counts is the request's own."""
    counts = []
    for _ in range(5):
        before = daemon.http.get("/metrics").text
        daemon.http.get(f"{parted}?part=w")
        counts.append(_read_bytes(daemon.http.get("/metrics").text) - _read_bytes(before))
    assert 0 < min(counts) <= 128 * 1024


def _read_bytes(metrics: str) -> float:
    (line,) = (line for line in metrics.splitlines() if line.startswith('rawblockd_io_bytes_total{op="read"}'))
    return float(line.split()[1])


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("w=float32[4]", None),
        ("w=float32[8]x", "w"),
        ("w=float32[8],", ""),
        ("w=float33[8]", "w"),
        ("=float32[8]", ""),
        ("a b=float32[8]", "a b"),
        ("w=float32[-8]", "w"),
        ("w=float32[08]", "w"),
        ("w=float32[8,]", "w"),
        ("w=float32[99999999999999999999]", "w"),
        ("w=float32[4], w=float32[4]", "w"),
        ("w[8]", "w[8]"),
        ("", ""),
        (", ".join(f"p{number}=uint8[1]" for number in range(17)), "p16"),
        ("w=uint8[1,1,1,1,1,1,1,1,32]", "w"),
    ],
)
def test_b4_odd_parts_are_refused_before_the_body(client: RawClient, key: str, field: str, named: str | None) -> None:
    fields = [("Content-Length", "32"), ("Expect", "100-continue"), ("Rawblockd-Parts", field)]
    client.send(head("PUT", key, fields))
    answer = client.answer("PUT")
    assert answer.status == 422
    problem = answer.problem
    assert problem["code"] == "parts_invalid"
    assert problem.get("part") == named


def test_parts_are_written_with_blanks_or_without(daemon: Daemon, key: str) -> None:
    for field in ("a=uint8[2, 2],b=int16[]", "a=uint8[ 2,2 ] ,\tb=int16[]"):
        assert daemon.http.put(key, content=b"123456", headers={"Rawblockd-Parts": field}).status_code in (201, 204)
        assert daemon.http.head(key).headers["rawblockd-parts"] == "a=uint8[2,2], b=int16[]"


def test_what_is_patched_keeps_its_parts(daemon: Daemon, parted: str) -> None:
    assert daemon.http.patch(parted, headers={"Content-Type": "a/b"}).status_code == 204
    assert daemon.http.get(f"{parted}?part=w").content == W


def test_batches_take_and_return_parts(daemon: Daemon) -> None:
    url, parts = "/v1/kv/part-batch", [["w", "float32", [8]], ["m", "uint8", [3, MIB]]]
    body = (
        pack({})
        + entry({"key": b"a", "parts": parts}, W + M)
        + entry({"key": b"b", "parts": [["w", "float32", [2, 4]]]}, W)
        + entry({"key": b"c", "parts": [["w", "float32", [9]]]}, W)
        + entry({"key": b"d", "parts": [["w", 1, [8]]]}, W)
        + entry({"key": b"e", "parts": "w"}, W)
        + entry({"key": b"f"}, W)
    )
    stored = results(daemon.http.post(f"{url}:mput", content=body, headers=HEADERS).content)
    assert [result["status"] for result in stored] == [201, 201, 422, 400, 400, 201]
    assert [result["reason"] for result in stored[2:5]] == ["parts_invalid", *["parameter_invalid"] * 2]

    def mget(**fields: Any) -> list[tuple[dict[str, Any], bytes | None]]:
        request = pack({"keys": [b"a", b"b", b"f", b"none"], **fields})
        return values(daemon.http.post(f"{url}:mget", content=request, headers=HEADERS).content)[0]

    whole = mget()
    assert [value for _, value in whole] == [W + M, W, W, None]
    assert [result.get("parts") for result, _ in whole] == [parts, [["w", "float32", [2, 4]]], None, None]
    some = mget(parts=["m", "w"])
    assert (some[0][1], some[0][0]["parts"], some[0][0]["size"]) == (M + W, parts[::-1], len(W + M))
    assert [result.get("reason") for result, _ in some] == [None, "part_not_found", "part_not_found", "not_found"]
    assert [value for _, value in mget(parts=["w"])] == [W, W, None, None]
    document = {"keys": ["b", "f"], "parts": ["w"]}
    found = daemon.http.post(f"{url}:mget", json=document).json()["results"]
    assert (found[0]["parts"], found[0]["size"]) == ([["w", "float32", [2, 4]]], 32)
    assert found[1]["reason"] == "part_not_found"
    as_json: dict[str, Any] = {"key": "g", "value": "AAAA", "parts": [["x", "uint8", [3]]]}
    odd = {**as_json, "parts": [["x", "uint8", [4]]]}
    answer = daemon.http.post(f"{url}:mput", json={"entries": [as_json, {**odd, "key": "h"}]}).json()
    assert [result["status"] for result in answer["results"]] == [201, 422]
    odd["parts"] = [["x", "uint8", [3], None]]
    refused = daemon.http.post(f"{url}:mput", json={"entries": [as_json, odd]})
    assert (refused.status_code, refused.json()["parameter"]) == (400, "entries[1].parts")


@pytest.mark.parametrize("names", ["w", [], ["w", "w"], [1], ["w"] * 17, [["w"]]])
def test_odd_names_of_parts_are_refused(daemon: Daemon, names: Any) -> None:
    for content, headers in (
        (msgpack.packb({"keys": [], "parts": names}), HEADERS),
        (json.dumps({"keys": [], "parts": names}).encode(), {"Content-Type": "application/json"}),
    ):
        answer = daemon.http.post("/v1/kv/part-batch:mget", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["code"] in ("parameter_invalid", "body_invalid")


def test_d2_a_schema_is_versioned_and_fills_declared_defaults(daemon: Daemon) -> None:
    def settle(version: int, *parts: dict[str, Any], **more: Any) -> Any:
        document = {"parts": parts, "schema_version": version, **more}
        return daemon.http.put("/v1/namespaces/part-schema", json=document)

    w = {"name": "w", "dtype": "float32", "shape": [2]}
    m = {"name": "m", "dtype": "int32", "shape": [2], "default": -1}
    assert settle(1, w, m, on_missing="default").status_code == 201
    document = daemon.http.get("/v1/namespaces/part-schema").json()
    assert document["parts"] == [{**w, "default": None}, m]
    assert (document["on_missing"], document["schema_version"]) == ("default", 1)
    url = "/v1/kv/part-schema/key"
    assert daemon.http.put(url, content=b"12345678", headers={"Rawblockd-Parts": "w=float32[2]"}).status_code == 201
    assert daemon.http.get(f"{url}?part=m").content == b"\xff" * 8
    for field, named in (("m=int32[2]", "w"), ("w=float64[1]", "w"), ("w=float32[1,2]", "w"), ("x=float32[2]", "x")):
        answer = daemon.http.put(url, content=b"12345678", headers={"Rawblockd-Parts": field})
        assert (answer.status_code, answer.json()["part"]) == (422, named)
    assert daemon.http.put(url, content=b"12345678").json()["code"] == "parts_invalid"
    conflict = settle(1, w)
    assert (conflict.status_code, conflict.json()["code"], conflict.json()["schema_version"]) == (
        409, "schema_conflict", 1,
    )  # fmt: skip
    assert daemon.http.put("/v1/namespaces/part-schema", json={"quota_entries": 5}).status_code == 409
    assert settle(2, w).status_code == 200
    assert daemon.http.get(f"{url}?part=m").content == b"\xff" * 8, "records of before stay readable"


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"dtype": "f4"}, "parts_invalid", "p"),
        ({"shape": [-1]}, "parts_invalid", "p"),
        ({"shape": [1 << 31]}, "parts_invalid", "p"),
        ({"shape": [1] * 9}, "parts_invalid", "p"),
        ({"default": 0.5}, "parts_invalid", "p"),
        ({"default": 1 << 31}, "parts_invalid", "p"),
        ({"name": "a b"}, "parts_invalid", "a b"),
        ({"name": "q"}, "parts_invalid", "q"),
        ({"shape": [2.0]}, "parameters_invalid", None),
        ({"shape": "2"}, "parameters_invalid", None),
        ({"default": True}, "parameters_invalid", None),
        ({"default": "0"}, "parameters_invalid", None),
        ({"more": 1}, "parameters_invalid", None),
    ],
)
def test_b4_odd_schemas_are_refused(daemon: Daemon, change: dict[str, Any], code: str, named: str | None) -> None:
    part = {"name": "p", "dtype": "int32", "shape": [2], "default": 0, **change}
    other = {"name": "q", "dtype": "int32", "shape": []}
    answer = daemon.http.put("/v1/namespaces/part-odd", json={"parts": [part, other], "schema_version": 1})
    assert (answer.status_code, answer.json()["code"], answer.json().get("part")) == (422, code, named)
    assert daemon.http.get("/v1/namespaces/part-odd").status_code == 404
