"""Rates of single tokens, and the metrics for whoever reaches the listener."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.access.roles import Role
from tests.access.servers import Guarded, Holder

SLOW = Holder("slow", Role.WRITER, rate=0.001)
QUICK = Holder("quick", Role.READER)
ALIEN = Holder("alien", Role.OPERATOR)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("rates"), "--metrics-open", holders=(SLOW, QUICK)) as running:
        yield running


def test_a_holder_that_asks_too_much_is_told_when_to_come_back(daemon: Guarded) -> None:
    assert daemon.ask("GET", "/v1/kv/a/k", holder=SLOW).status == 404
    for method, path, body in (("GET", "/v1/kv/a/k", None), ("PUT", "/v1/kv/a/k", b"x"), ("GET", "/docs", None)):
        answer = daemon.ask(method, path, body=body, holder=SLOW)
        assert (answer.status, answer.code) == (429, "rate_limited")
        assert 900 < int(answer.header("retry-after") or 0) <= 1000
        assert answer.problem["requests_per_second"] == 0.001
    assert daemon.ask("GET", "/v1/kv/a/k", holder=QUICK).status == 404, "the rate is of one token"
    assert daemon.ask("GET", "/livez").status == 200


def test_metrics_can_be_open_alone(daemon: Guarded) -> None:
    for holder in (None, ALIEN, QUICK):
        answer = daemon.ask("GET", "/metrics", holder=holder)
        assert answer.status == 200
        assert b"rawblockd_engine_state" in answer.body
    assert daemon.ask("GET", "/v1/history").status == 401
    text = daemon.ask("GET", "/metrics").body.decode()
    refused = [line for line in text.splitlines() if 'code="401"' in line and 'route="/v1/history"' in line]
    assert refused and refused[0].endswith(" 1.0"), "refusals are counted with their route"
