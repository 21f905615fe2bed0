"""Imports over HTTP: all or nothing, every byte supplied or declared, differences told exactly (B1, B2, D2, L1)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.http.batches import HEADERS, pack
from tests.http.daemon import POLLS_MAX, Daemon
from tests.http.raw_client import RawClient, head
from tests.http.restores import (
    DEFAULTS,
    PARTS,
    ROW,
    ROW_BYTES,
    Floats,
    begin,
    chunk,
    chunks,
    commit,
    content,
    give,
    names,
    rows_of,
    send,
    set_schema,
    wait_for_import,
)
from tests.support.daemon_process import DaemonProcess

FIRST, SECOND, THIRD = 70_339, 70_348, 70_357
"""Keys of three lists of which each was saved a little later than the one before: a torn snapshot, at a hundredth."""
NO_SUCH = "0" * 32


@pytest.fixture(autouse=True)
def _nothing_is_left(daemon: Daemon) -> Iterator[None]:
    """No test holds what another one needs, if it fails."""
    yield
    for one in daemon.http.get("/v1/imports").json()["imports"]:
        daemon.http.delete(f"/v1/imports/{one['id']}")


def expected_rows(lists: Mapping[str, range], keys: range, version: int = 1) -> Floats:
    """For each key the three parts behind each other: as they were sent, or the number that is declared."""
    columns = []
    for part in "wmv":
        column = rows_of(part, keys, version)
        missing = np.array([key not in lists[part] for key in keys])
        if missing.any():
            column[missing] = DEFAULTS[part]
        columns.append(column)
    return np.concatenate(columns, axis=1)


def as_rows(found: Mapping[bytes, bytes], keys: range) -> Floats:
    """All elements of all records, in the order of the keys, which must be exactly these."""
    assert found.keys() == {b"%d" % key for key in keys}
    return np.frombuffer(b"".join(found[b"%d" % key] for key in keys), dtype="<f4").reshape(len(keys), 3 * ROW)


def give_all(daemon: Daemon, import_id: str, lists: Mapping[str, range], version: int = 1) -> None:
    for part, keys in lists.items():
        give(daemon, import_id, part, keys, version)


def test_the_torn_snapshot_is_measured_and_refused_or_cut_to_what_is_whole(daemon: Daemon) -> None:
    lists = {"w": range(FIRST), "m": range(SECOND), "v": range(THIRD)}
    set_schema(daemon, "torn")
    import_id = begin(daemon, "torn")
    give_all(daemon, import_id, lists)
    document = daemon.http.get(f"/v1/imports/{import_id}/differences").json()
    found = {(one["has"], one["lacks"]): one["keys"] for one in document["differences"]}
    assert found == {("m", "w"): 9, ("v", "w"): 18, ("v", "m"): 9}
    examples = {(one["has"], one["lacks"]): one["examples"] for one in document["differences"]}
    assert examples["v", "m"] == [{"key": str(key)} for key in range(SECOND, SECOND + 5)]
    refused = commit(daemon, import_id, "reject")
    assert (refused.status_code, refused.json()["code"], refused.json()["incomplete"]) == (409, "import_refused", 18)
    unfilled = commit(daemon, import_id, "default")
    assert (unfilled.status_code, unfilled.json()["code"], unfilled.json()["part"]) == (422, "parts_invalid", "w")
    after = daemon.http.get(f"/v1/imports/{import_id}").json()
    assert (after["state"], after["outcome"], after["problem"]["code"]) == ("open", None, "parts_invalid")
    assert daemon.http.get("/v1/namespaces/torn").json()["entries"] == 0

    dropped = commit(daemon, import_id, "drop")
    assert dropped.status_code == 200, dropped.text
    outcome = dropped.json()
    assert (outcome["entries"], outcome["dropped"], outcome["filled"]) == (FIRST, 18, {})
    assert outcome["usage"]["payload_bytes"] == FIRST * 3 * ROW_BYTES
    first = content(daemon, "torn")
    assert np.array_equal(as_rows(first, lists["w"]), expected_rows(lists, lists["w"]))
    usage = daemon.http.get("/v1/namespaces/torn").json()
    assert {name: usage[name] for name in outcome["usage"]} == outcome["usage"]


def test_the_torn_snapshot_is_filled_with_what_is_declared_twice_the_same(daemon: Daemon) -> None:
    """As it is if the parts with a default were saved first."""
    lists = {"v": range(7_039), "m": range(7_048), "w": range(7_057)}
    set_schema(daemon, "filled")
    contents = []
    for _ in range(2):
        import_id = begin(daemon, "filled")
        give_all(daemon, import_id, lists)
        answer = commit(daemon, import_id, "default")
        assert answer.status_code == 200, answer.text
        outcome = answer.json()
        assert (outcome["entries"], outcome["dropped"]) == (7_057, 0)
        assert outcome["filled"] == {"w": 0, "m": 9, "v": 18}
        contents.append(content(daemon, "filled"))
    assert np.array_equal(as_rows(contents[0], lists["w"]), expected_rows(lists, lists["w"]))
    assert contents[0] == contents[1], "twice: identical"
    status = daemon.wait_at_rest()
    assert status["holds"] == []


def test_an_import_replaces_everything_by_one_step(daemon: Daemon) -> None:
    """Readers see what was there until the commit, and nothing of it behind it."""
    set_schema(daemon, "step")
    old = begin(daemon, "step")
    give_all(daemon, old, dict.fromkeys("wmv", range(50)))
    assert commit(daemon, old, "reject").status_code == 200
    import_id = begin(daemon, "step")
    give_all(daemon, import_id, dict.fromkeys("wmv", range(40, 3000)), version=2)
    seen: set[int] = set()
    ended = threading.Event()

    def read() -> None:
        with RawClient(daemon.address) as client:
            while not ended.is_set():
                listing = client.ask("GET", "/v1/namespaces/step")
                seen.add(json.loads(listing.body)["entries"])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert commit(daemon, import_id, "reject").status_code == 200
    finally:
        ended.set()
        reader.join()
    assert seen <= {50, 2960}
    rows = as_rows(content(daemon, "step"), range(40, 3000))
    assert np.array_equal(rows, expected_rows(dict.fromkeys("wmv", range(3000)), range(40, 3000), version=2))


def test_a_commit_goes_on_without_its_client_and_is_remembered(daemon: Daemon) -> None:
    set_schema(daemon, "left")
    import_id = begin(daemon, "left")
    give_all(daemon, import_id, dict.fromkeys("wmv", range(6_000)))
    accepted = commit(daemon, import_id, "reject", wait_seconds=0)
    assert accepted.status_code == 202
    assert accepted.json()["state"] in ("open", "committing")
    with RawClient(daemon.address) as client:
        body = b'{"policy": "reject"}'
        client.send(head("POST", f"/v1/imports/{import_id}/commit", [("Content-Length", str(len(body)))]) + body)
    other = commit(daemon, import_id, "drop")
    assert (other.status_code, other.json()["code"]) in [(409, "import_busy"), (200, None)]
    assert daemon.http.delete(f"/v1/imports/{import_id}").json()["code"] in ("import_busy", "import_not_found")
    document = wait_for_import(daemon, import_id)
    assert (document["state"], document["committed_ratio"], document["held_bytes"]) == ("committed", 1.0, 0)
    outcome = document["outcome"]
    assert (outcome["policy"], outcome["entries"]) == ("reject", 6_000)
    again = commit(daemon, import_id, "reject")
    assert (again.status_code, again.json()) == (200, outcome)
    assert daemon.http.get("/v1/imports").json()["imports"] == []
    assert daemon.http.get("/v1/namespaces/left").json()["entries"] == 6_000


def test_a_part_that_breaks_off_is_forgotten_and_its_space_comes_back(daemon: Daemon) -> None:
    set_schema(daemon, "broken")
    before = in_use(daemon)
    import_id = begin(daemon, "broken")
    whole = chunk(names(range(10_000)), rows_of("w", range(10_000)).tobytes())
    for sent in (whole * 3, whole + whole[: len(whole) // 2], pack({"keys": []})):
        with RawClient(daemon.address) as client:
            path = f"/v1/imports/{import_id}/parts/w"
            client.send(head("PUT", path, [*HEADERS.items(), ("Content-Length", str(len(sent) + 1000))]) + sent)
            wait_for_parts(daemon, import_id, ["w"])
        wait_for_parts(daemon, import_id, [])
    give(daemon, import_id, "w", range(10))
    (part,) = daemon.http.get(f"/v1/imports/{import_id}").json()["parts"]
    assert part == {"name": "w", "keys": 10, "complete": True}
    assert daemon.http.delete(f"/v1/imports/{import_id}").status_code == 204
    assert in_use(daemon) == before
    assert daemon.http.get(f"/v1/imports/{import_id}").json()["code"] == "import_not_found"


def in_use(daemon: Daemon) -> dict[str, int]:
    """Slots by state once nothing is on its way, but the free ones: a slab that a class got on the way it keeps."""
    slots: dict[str, int] = daemon.wait_at_rest()["capacity"]["slots"]
    return {state: count for state, count in slots.items() if state not in ("free", "total")}


def wait_for_parts(daemon: Daemon, import_id: str, expected: list[str]) -> None:
    for _ in range(POLLS_MAX):
        if [part["name"] for part in daemon.http.get(f"/v1/imports/{import_id}").json()["parts"]] == expected:
            return
    raise AssertionError(f"the parts are not {expected}")


def test_an_import_given_up_while_a_part_comes_in_leaves_nothing(daemon: Daemon) -> None:
    set_schema(daemon, "given-up")
    before = in_use(daemon)
    whole = chunk(names(range(10_000)), rows_of("w", range(10_000)).tobytes())
    for _ in range(3):
        import_id = begin(daemon, "given-up")
        with RawClient(daemon.address) as client:
            path = f"/v1/imports/{import_id}/parts/w"
            client.send(head("PUT", path, [*HEADERS.items(), ("Content-Length", str(20 * len(whole)))]) + whole * 4)
            wait_for_parts(daemon, import_id, ["w"])
            assert daemon.http.delete(f"/v1/imports/{import_id}").status_code == 204
            client.send(whole * 2)
            assert client.answer_head().status == 404
        assert in_use(daemon) == before


def test_an_import_ends_with_its_time(daemon: Daemon) -> None:
    set_schema(daemon, "import-brief")
    before = in_use(daemon)
    import_id = begin(daemon, "import-brief", ttl_seconds=1)
    give(daemon, import_id, "w", range(1000))
    for _ in range(POLLS_MAX):
        if daemon.http.get(f"/v1/imports/{import_id}").status_code == 404:
            break
    else:
        raise AssertionError("it does not end")
    assert in_use(daemon) == before
    assert not daemon.status()["holds"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (chunk([b"1", b"2"], bytes(3 * ROW_BYTES)), 422, "parts_invalid"),
        (chunk([b"1", b"2"], bytes(2 * ROW_BYTES - 1)), 422, "parts_invalid"),
        (chunk([b"1"], b""), 422, "parts_invalid"),
        (chunk([b"1", b"2", b"1"], bytes(3 * ROW_BYTES)), 409, "import_refused"),
        (chunk([b"1"], bytes(ROW_BYTES)) * 2, 409, "import_refused"),
        (chunk([b""], bytes(ROW_BYTES)), 400, "key_invalid"),
        (chunk([b"k" * 1025], bytes(ROW_BYTES)), 400, "key_invalid"),
        (chunk([b"k" * 100_000], bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"keys": [b"1"]}), 400, "body_invalid"),
        (pack({"keys": ["1"]}) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"keys": [[b"1"]]}) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"keys": [None]}) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"keys": b"1"}) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"rows": [b"1"]}) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"keys": [b"1"], "more": 1}) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack([b"1"]) + pack(bytes(ROW_BYTES)), 400, "body_invalid"),
        (pack({"keys": [b"1"]}) + pack("x" * ROW_BYTES), 400, "body_invalid"),
        (pack({"keys": [b"1"]}) + pack(bytes(ROW_BYTES))[:-1], 400, "body_invalid"),
        (b"\xc1", 400, "body_invalid"),
        (b"{}", 400, "body_invalid"),
        (b"\x81\xa4keys\xdd\xff\xff\xff\xff", 413, "batch_too_large"),
        (pack({"keys": [b"%d" % key for key in range(10_001)]}), 413, "batch_too_large"),
        (pack({"keys": [b"1", b"2"]}) + b"\xc6" + ((4 << 20) + 1).to_bytes(4, "big"), 413, "batch_too_large"),
        (pack({"keys": [b"1"]}) + b"\xc6\xff\xff\xff\xff", 413, "batch_too_large"),
    ],
)
def test_a_part_is_read_strictly(daemon: Daemon, body: bytes, status: int, code: str) -> None:
    """What is refused is refused with counts, and nothing of the part stays."""
    if daemon.http.get("/v1/namespaces/import-strict").status_code == 404:
        set_schema(daemon, "import-strict")
    import_id = begin(daemon, "import-strict")
    refused = send(daemon, import_id, "w", body)
    assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    if code == "import_refused":
        assert (refused.json()["repeated"], refused.json()["part"]) == (1, "w")
    give(daemon, import_id, "w", range(3))
    assert daemon.http.delete(f"/v1/imports/{import_id}").status_code == 204


def test_what_is_not_there_and_what_is_asked_for_wrongly(daemon: Daemon) -> None:
    http = daemon.http
    daemon.http.put("/v1/kv/plain/key", content=b"v")
    plain = http.post("/v1/namespaces/plain/imports", json={"ttl_seconds": 1})
    assert (plain.status_code, plain.json()["code"]) == (400, "parameter_invalid")
    absent = http.post("/v1/namespaces/absent/imports", json={"ttl_seconds": 1})
    assert (absent.status_code, absent.json()["code"]) == (404, "namespace_not_found")
    for path in ("", "/differences"):
        assert http.get(f"/v1/imports/{NO_SUCH}{path}").json()["code"] == "import_not_found"
    assert http.delete(f"/v1/imports/{NO_SUCH}").json()["code"] == "import_not_found"
    assert commit(daemon, NO_SUCH, "drop").json()["code"] == "import_not_found"
    assert send(daemon, NO_SUCH, "w", b"").json()["code"] == "import_not_found"
    set_schema(daemon, "import-asked")
    import_id = begin(daemon, "import-asked")
    path = f"/v1/imports/{import_id}"
    unknown = send(daemon, import_id, "x", b"")
    assert (unknown.status_code, unknown.json()["code"], unknown.json()["part"]) == (422, "parts_invalid", "x")
    assert http.put(f"{path}/parts/w", content=b"{}").status_code == 415
    assert http.put(f"{path}/parts/w", json={}).status_code == 415
    assert http.put(f"{path}/parts/w?x=1", content=b"", headers=HEADERS).json()["code"] == "parameter_invalid"
    got = http.get(f"{path}/parts/w")
    assert (got.status_code, got.headers["allow"]) == (405, "PUT")
    give(daemon, import_id, "w", range(3))
    twice = send(daemon, import_id, "w", b"")
    assert (twice.status_code, twice.json()["code"]) == (409, "import_busy")
    missing = commit(daemon, import_id, "reject").json()
    assert (missing["code"], missing["missing_parts"]) == ("import_refused", ["m", "v"])
    for body in (
        b"",
        b"{}",
        b'{"policy": "maybe"}',
        b'{"policy": "drop", "x": 1}',
        b'{"policy":"drop","wait_seconds":26}',
    ):
        assert http.post(f"{path}/commit", content=body).status_code == 422


def test_keys_that_are_no_text_are_shown_in_base64(daemon: Daemon) -> None:
    set_schema(daemon, "binary")
    import_id = begin(daemon, "binary")
    send(daemon, import_id, "w", chunk([b"\xff\x00", b"both"], bytes(2 * ROW_BYTES)))
    send(daemon, import_id, "m", chunk([b"both"], bytes(ROW_BYTES)))
    assert daemon.http.get(f"/v1/imports/{import_id}/differences").json() == {
        "differences": [{"has": "w", "lacks": "m", "keys": 1, "examples": [{"key_base64": "/wA="}]}]
    }


def test_l1_imports_are_bounded(daemon: Daemon) -> None:
    set_schema(daemon, "import-bounded")
    ids = [begin(daemon, "import-bounded") for _ in range(4)]
    refused = daemon.http.post("/v1/namespaces/import-bounded/imports", json={"ttl_seconds": 1})
    assert (refused.status_code, refused.json()["code"]) == (413, "import_too_large")
    assert {one["id"] for one in daemon.http.get("/v1/imports").json()["imports"]} == set(ids)
    holds = [hold["kind"] for hold in daemon.status()["holds"]]
    assert holds == ["import"] * 4


def test_l1_a_part_of_much_takes_little_memory(daemon: Daemon) -> None:
    """Rows of 6 MiB, which are a chunk each: what has come is on the device."""
    floats = 3 << 19
    set_schema(daemon, "much", [{"name": "w", "dtype": "float32", "shape": [floats]}])
    import_id = begin(daemon, "much")
    rows = [np.full(floats, key, dtype="<f4").tobytes() for key in range(3)]

    def body(keys: range) -> Iterator[bytes]:
        for key in keys:
            yield chunk([b"%d" % key], rows[key % 3])

    assert send(daemon, import_id, "w", body(range(2))).status_code == 200
    assert daemon.http.delete(f"/v1/imports/{import_id}").status_code == 204
    resident = daemon.resident_bytes()
    import_id = begin(daemon, "much")
    assert send(daemon, import_id, "w", body(range(30))).json() == {"keys": 30}
    assert daemon.http.get(f"/v1/imports/{import_id}").json()["held_bytes"] >= 30 * 4 * floats
    assert daemon.resident_bytes() - resident < 48 << 20
    assert commit(daemon, import_id, "reject").status_code == 200
    assert daemon.resident_bytes() - resident < 160 << 20
    assert daemon.http.get("/v1/kv/much/29").content == rows[2]
    daemon.http.delete("/v1/namespaces/much")


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_d2_an_end_in_the_middle_of_a_commit_leaves_no_trace(tmp_path: Path, ending: str) -> None:
    """What was there is there, whole, or the import is: after a stop as after a kill; and the space comes back."""
    device = tmp_path / "cache.img"
    arguments = ("--device", str(device), "--create", "--size", "256MiB")
    lists = dict.fromkeys("wmv", range(6_000))
    try:
        with DaemonProcess(tmp_path / "first.log", *arguments) as process:
            process.wait_ready()
            tell(process, "PUT", "/v1/namespaces/n", {"parts": PARTS, "schema_version": 1})
            old = tell(process, "POST", "/v1/namespaces/n/imports", {"ttl_seconds": 600})["id"]
            for part in "wmv":
                upload(process, old, part, range(100), 1)
            tell(process, "POST", f"/v1/imports/{old}/commit", {"policy": "reject"})
            new = tell(process, "POST", "/v1/namespaces/n/imports", {"ttl_seconds": 600})["id"]
            for part, keys in lists.items():
                upload(process, new, part, keys, 2)
            before = process.status()["capacity"]["slots"]
            assert before["live"] == 100
            tell(process, "POST", f"/v1/imports/{new}/commit", {"policy": "reject", "wait_seconds": 0})
            while tell(process, "GET", f"/v1/imports/{new}")["committed_ratio"] == 0:
                pass
            if ending == "kill":
                process.kill()
            else:
                assert process.stop() == 0, process.log_text()
            assert not [record for record in process.records() if "exception" in record]
        with DaemonProcess(tmp_path / "second.log", *arguments) as process:
            process.wait_ready()
            slots = process.wait_at_rest()["capacity"]["slots"]
            assert slots["live"] in (100, 6_000)
            assert slots["free"] + slots["live"] == slots["total"]
            assert tell(process, "GET", "/v1/namespaces/n")["entries"] == slots["live"]
            version = 1 if slots["live"] == 100 else 2
            for key in (0, 99):
                _, value = process.get(f"/v1/kv/n/{key}")
                assert value == b"".join(rows_of(part, [key], version).tobytes() for part in "wmv")
            assert process.status()["holds"] == []
            assert process.stop() == 0
    finally:
        device.unlink(missing_ok=True)


def tell(process: DaemonProcess, method: str, path: str, body: Any = None) -> Any:
    code, answer = process.request(
        method, path, None if body is None else json.dumps(body).encode(), timeout_seconds=60
    )
    assert code in (200, 201, 202), answer
    return json.loads(answer)


def upload(process: DaemonProcess, import_id: str, part: str, keys: range, version: int) -> None:
    connection = process.connect()
    body = b"".join(chunks(names(keys), rows_of(part, keys, version).tobytes()))
    connection.request("PUT", f"/v1/imports/{import_id}/parts/{part}", body, HEADERS)
    assert json.loads(connection.getresponse().read()) == {"keys": len(keys)}
    connection.close()
