"""The numbers of ``rawblockd top``: how they are made from two scrapes, and how they read."""

from __future__ import annotations

import pytest

from rawblockd.top.measures import Latency, Rates, Sample, quantiles, rates_between
from rawblockd.top.panels import event_line
from rawblockd.top.texts import bar, count_text, duration_text, plain, rate_text, ratio_text, size_text
from rawblockd.top.watching import Happened, happenings

PAGE = """\
# HELP rawblockd_lookups_total Reads by what they found.
# TYPE rawblockd_lookups_total counter
rawblockd_lookups_total{{result="hit"}} {hits}
rawblockd_lookups_total{{result="miss"}} {misses}
rawblockd_puts_total{{result="created"}} 7.0
rawblockd_http_request_duration_seconds_bucket{{le="0.001",method="GET",route="/v1/kv/{{namespace}}/{{key}}"}} {fast}
rawblockd_http_request_duration_seconds_bucket{{le="0.002",method="GET",route="/v1/kv/{{namespace}}/{{key}}"}} {all}
rawblockd_http_request_duration_seconds_bucket{{le="+Inf",method="GET",route="/v1/kv/{{namespace}}/{{key}}"}} {all}
rawblockd_http_request_duration_seconds_bucket{{le="+Inf",method="GET",route="/metrics"}} 1000.0
rawblockd_io_operations_total{{op="read"}} {all}
"""


def sample(at: float, hits: int, misses: int, fast: int) -> Sample:
    numbers = {"hits": float(hits), "misses": float(misses), "fast": float(fast), "all": float(hits + misses)}
    return Sample.parse(PAGE.format(**numbers), at)


def test_rates_are_what_was_between_two_scrapes() -> None:
    rates = rates_between(sample(10.0, 100, 100, 100), sample(12.0, 190, 110, 150))
    assert rates.gets == 50
    assert rates.hit_ratio == 0.9
    assert rates.puts == 0
    assert rates.io_operations["read"] == 50
    assert rates.get_latency.p50 == pytest.approx(0.001)
    assert rates.get_latency.p99 == pytest.approx(0.00198)
    assert rates.put_latency == Latency()


def test_nothing_is_known_before_the_second_scrape_and_after_a_restart() -> None:
    assert rates_between(None, sample(1.0, 5, 5, 5)) == Rates()
    assert rates_between(sample(1.0, 5, 5, 5), sample(2.0, 1, 0, 0)) == Rates()
    assert rates_between(sample(1.0, 5, 5, 5), sample(1.0, 5, 5, 5)) == Rates()


def test_a_ratio_of_nothing_is_not_known() -> None:
    assert rates_between(sample(1.0, 5, 5, 5), sample(2.0, 5, 5, 5)).hit_ratio is None


def test_what_lies_above_the_last_bound() -> None:
    assert quantiles({0.1: 0.0, float("inf"): 10.0}) == Latency(0.1, 0.1)
    assert quantiles({}) == Latency()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(0), "0"),
        (count_text(999), "999"),
        (count_text(999.7), "1k"),
        (count_text(12_345), "12.3k"),
        (count_text(99_700), "100k"),
        (count_text(5e15), "5000T"),
        (rate_text(None), "-"),
        (rate_text(0.5), "0.5/s"),
        (rate_text(1234), "1.23k/s"),
        (size_text(0), "0 B"),
        (size_text(1023), "0.999 KiB"),
        (size_text(3 << 30), "3 GiB"),
        (size_text(1 << 60), "1.05e+06 TiB"),
        (duration_text(None), "-"),
        (duration_text(0.000123), "123 µs"),
        (duration_text(0.0123), "12.3 ms"),
        (duration_text(99), "99 s"),
        (duration_text(600), "10 min"),
        (duration_text(7200), "2 h"),
        (duration_text(864_000), "10 d"),
        (ratio_text(0.5), "50.0 %"),
        (ratio_text(None), "-"),
        (bar(0.5, 10), "[####....]"),
        (bar(7.0, 4), "[##]"),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_a_key_does_not_steer_the_terminal() -> None:
    line = event_line(Happened("stored", "1", {"seq": 1, "namespace": "n", "key": "\x1b[2J\n[red]x", "size": 3}))
    assert line == "--:--:-- stored   n \\x1b[2J\\n[red]x  3 B"
    assert plain("größe") == "größe"


def test_an_event_stream_is_read_as_a_browser_does() -> None:
    stream = ["retry: 2000", "", "event: position", 'data: {"seq":3}', "id: 3-1-ab", "", ": comment", "", "id: 4", ""]
    assert list(happenings(iter(stream))) == [Happened("position", "3-1-ab", {"seq": 3}), Happened("", "4", {})]


def test_a_resync_is_said_in_words() -> None:
    assert "events were missed: too far behind" in event_line(Happened("resync", "1", {"reason": "too_far_behind"}))
