"""A mistake of the daemon's own is answered as a problem too, and counted."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from api.counters import METHODS, HttpCounters
from api.settings import ApiSettings
from tests.http.local_server import server_over_unstarted_engine


class Mistake(Exception):
    pass


def _fail(accept: str | None) -> tuple[bytes, str]:
    raise Mistake(accept)


@pytest.fixture
def mistaken(tmp_path: Path) -> httpx2.Response:
    """The answer of a server whose metrics can't be rendered."""
    with server_over_unstarted_engine(tmp_path, ApiSettings(), _fail) as client:
        answer = client.get("/metrics")
        assert client.get("/livez").status_code == 200
        return answer


def test_a_mistake_is_a_500_problem_that_ends_the_connection(mistaken: httpx2.Response) -> None:
    assert mistaken.status_code == 500
    assert mistaken.headers["content-type"] == "application/problem+json"
    assert mistaken.headers["connection"] == "close"
    assert mistaken.json()["code"] == "internal_error"
    assert "Mistake" not in mistaken.text


def test_labels_are_of_closed_sets() -> None:
    counters = HttpCounters()
    counters.declare("/a/{b}", ["GET"])
    counters.record("/a/{b}", "GET", 200, 0.001)
    counters.record("/a/{b}", "BREW", 405, 0.001)
    counters.record("/a/secret", "GET", 404, 0.001)
    assert counters.requests == {("/a/{b}", "GET", 200): 1, ("/a/{b}", "other", 405): 1, ("other", "GET", 404): 1}
    assert {method for _, method in counters.durations} <= set(METHODS)


def test_durations_are_there_from_the_start_and_fall_into_their_buckets() -> None:
    counters = HttpCounters()
    counters.declare("/a", ["GET"])
    histogram = counters.durations["/a", "GET"]
    assert (histogram.count, histogram.sum_seconds, sum(histogram.buckets)) == (0, 0.0, 0)
    for seconds in (0.0, histogram.bounds[0], 1e9):
        counters.record("/a", "GET", 200, seconds)
    assert (histogram.buckets[0], histogram.buckets[-1], histogram.count) == (2, 1, 3)
