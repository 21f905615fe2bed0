"""``:mput`` over connections: many entries, pieces of any size, uploads that are cut, clients that pause."""

from __future__ import annotations

from typing import Any

from api.limits import BATCH_ENTRIES_MAX
from tests.http.batches import HEADERS, entries, entry, pack, results
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head
from tests.support.engines import payload_of


def mput(daemon: Daemon, namespace: str, body: bytes) -> list[dict[str, Any]]:
    answer = daemon.http.post(f"/v1/kv/{namespace}:mput", content=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return results(answer.content)


def test_a2_ten_thousand_entries_are_stored_counted_and_deleted(daemon: Daemon) -> None:
    name = "ten-thousand"
    pairs = [(b"key-%d" % n, payload_of(n, n % 700)) for n in range(BATCH_ENTRIES_MAX)]
    found = mput(daemon, name, entries(pairs))
    assert {result["status"] for result in found} == {201}
    usage = daemon.http.get(f"/v1/namespaces/{name}").json()
    assert (usage["entries"], usage["payload_bytes"]) == (len(pairs), sum(len(value) for _, value in pairs))
    assert {result["status"] for result in mput(daemon, name, entries(pairs))} == {204}
    assert daemon.http.get(f"/v1/namespaces/{name}").json()["entries"] == len(pairs)
    body = pack({"keys": [key for key, _ in pairs]})
    answer = daemon.http.post(f"/v1/kv/{name}:mdelete", content=body, headers=HEADERS)
    assert {result["status"] for result in results(answer.content)} == {204}
    usage = daemon.http.get(f"/v1/namespaces/{name}").json()
    assert (usage["entries"], usage["used_bytes"], usage["payload_bytes"]) == (0, 0, 0)
    daemon.wait_at_rest()


def test_an_upload_that_is_cut_leaves_nothing(daemon: Daemon) -> None:
    body = entries((b"key-%d" % n, payload_of(n, 5000)) for n in range(100))
    for share in (0.0, 0.3, 0.99):
        with RawClient(daemon.address) as client:
            client.send(head("POST", "/v1/kv/cut:mput", [*HEADERS.items(), ("Content-Length", str(len(body)))]))
            client.send(body[: int(len(body) * share)])
        daemon.wait_at_rest()
    answer = daemon.http.get("/v1/kv/cut")
    assert answer.status_code == 404 or answer.json()["entries"] == []


def test_a_client_that_pauses_within_a_batch_is_told_408(impatient: Daemon) -> None:
    body = entries([(b"a", b"1"), (b"b", b"2")])
    with RawClient(impatient.address) as client:
        client.send(head("POST", "/v1/kv/pauses:mput", [*HEADERS.items(), ("Content-Length", str(len(body)))]))
        client.send(body[:-2])
        assert client.answer().status == 408
    impatient.wait_at_rest()


def test_a_batch_may_be_sent_without_its_length(daemon: Daemon) -> None:
    pairs = [(b"%d" % n, payload_of(n, 1000)) for n in range(50)]
    pieces = iter([entries(pairs[:20]), *(entry({"key": key}, value) for key, value in pairs[20:])])
    answer = daemon.http.post("/v1/kv/chunked:mput", content=pieces, headers=HEADERS)
    assert {result["status"] for result in results(answer.content)} == {201}


def test_100_continue_is_not_sent_for_a_batch_that_is_refused(daemon: Daemon) -> None:
    for headers, status in (
        ([("Content-Type", "text/plain"), ("Content-Length", "5")], 415),
        ([*HEADERS.items(), ("Content-Length", str(1 << 60))], 413),
    ):
        with RawClient(daemon.address) as client:
            client.send(head("POST", "/v1/kv/refused:mput", [*headers, ("Expect", "100-continue")]))
            assert client.answer().status == status
            assert client.at_end()
