"""Many clients on one key: exactly one wins, and the others learn what is there now."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.http.batches import HEADERS, entry, pack, results
from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient

CLIENTS = 32
INCREMENTS = 3
ATTEMPTS_MAX = 2000

Result = TypeVar("Result")


def at_once(daemon: Daemon, work: Callable[[RawClient, int], Result]) -> list[Result]:
    def run(number: int) -> Result:
        with RawClient(daemon.address) as client:
            return work(client, number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(run, range(CLIENTS)))


def test_of_many_that_create_one_key_exactly_one_does(daemon: Daemon, key: str) -> None:
    def create(client: RawClient, number: int) -> tuple[int, str | None]:
        answer = client.ask("PUT", key, [("If-None-Match", "*")], b"%d" % number)
        return answer.status, answer.header("etag")

    for _ in range(5):
        answers = at_once(daemon, create)
        winner = [number for number, (status, _) in enumerate(answers) if status == 201]
        assert len(winner) == 1
        assert {status for status, _ in answers} == {201, 412}
        present = daemon.http.get(key)
        assert present.content == b"%d" % winner[0]
        assert {etag for _, etag in answers} == {present.headers["etag"]}
        assert daemon.http.delete(key).status_code == 204


def test_of_many_batches_that_create_one_key_exactly_one_does(daemon: Daemon) -> None:
    def create(client: RawClient, number: int) -> dict[str, object]:
        body = pack({}) + entry({"key": b"own-%d" % number}, b"") + entry({"key": b"one", "if_none_match": True}, b"")
        found = results(client.ask("POST", "/v1/kv/race-batch:mput", HEADERS.items(), body).body)
        assert found[0]["status"] == 201
        return found[1]

    answers = at_once(daemon, create)
    winners = [answer for answer in answers if answer["status"] == 201]
    assert len(winners) == 1
    assert {answer.get("present_etag", answer.get("etag")) for answer in answers} == {winners[0]["etag"]}
    assert daemon.http.get("/v1/namespaces/race-batch").json()["entries"] == CLIENTS + 1


def test_compare_and_swap_loses_no_update(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=b"0").status_code == 201

    def increment(client: RawClient, _: int) -> int:
        won = 0
        for _ in range(ATTEMPTS_MAX):
            found = client.ask("GET", key)
            etag = found.header("etag")
            assert etag is not None
            with RawClient(daemon.address) as other:  # a put that is refused ends its connection
                status = other.ask("PUT", key, [("If-Match", etag)], b"%d" % (int(found.body) + 1)).status
            assert status in (204, 412)
            won += status == 204
            if won == INCREMENTS:
                break
        return won

    assert at_once(daemon, increment) == [INCREMENTS] * CLIENTS
    assert int(daemon.http.get(key).content) == CLIENTS * INCREMENTS
    daemon.wait_at_rest()
