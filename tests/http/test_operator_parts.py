"""What the operator page is made of: history, log, words and numbers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from api.counters import DURATION_BOUNDS_SECONDS, HttpCounters
from api.operations import Operation, Operations
from api.operator_log import LOG_MAX, OperatorLog
from api.operator_page import wording
from api.operator_page.history import SAMPLES_MAX, History, quantile
from api.operator_page.observer import Observer
from api.operator_page.picture import CHART_WIDTH, bar, charts
from api.operator_page.quantities import (
    age_text,
    count_text,
    duration_text,
    latency_text,
    plural_text,
    rate_text,
    share_text,
    size_text,
)
from api.value_paths import TEMPLATE
from storage.recovery.report import SkipReason
from storage.status import EngineState, Reason
from tests.browser.faces import StandingEngine, face_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "operator-page.md"


@pytest.fixture
def counters() -> HttpCounters:
    made = HttpCounters()
    made.declare(TEMPLATE, ["GET", "PUT"])
    made.declare("/v1/kv/{namespace}:mget", ["POST"])
    made.declare("/v1/status", ["GET"])
    return made


def test_a_sample_is_what_happened_since_the_one_before(counters: HttpCounters) -> None:
    lookups = {"hit": 0, "miss": 0}
    history = History(lookups, counters)
    history.take(100.0)
    assert not history.samples
    for _ in range(8):
        counters.record(TEMPLATE, "GET", 200, 0.000_2)
    counters.record("/v1/kv/{namespace}:mget", "POST", 200, 0.1)
    counters.record(TEMPLATE, "PUT", 201, 0.1)
    counters.record("/v1/status", "GET", 200, 0.1)
    lookups |= {"hit": 6, "miss": 2}
    history.take(102.0)
    (sample,) = history.samples
    assert (sample.reads_per_second, sample.writes_per_second, sample.hit_ratio) == (4.5, 0.5, 0.75)
    assert sample.get_p99_seconds is not None
    assert 0.000_1 < sample.get_p99_seconds <= 0.000_25
    history.take(104.0)
    quiet = history.samples[-1]
    assert (quiet.reads_per_second, quiet.hit_ratio, quiet.get_p50_seconds) == (0.0, None, None)


def test_l1_the_history_is_bounded(counters: HttpCounters) -> None:
    history = History({"hit": 0}, counters)
    for second in range(3 * SAMPLES_MAX):
        history.take(float(second))
    view = history.view()
    assert len(view.at) == SAMPLES_MAX
    assert view.at[-1] == 3 * SAMPLES_MAX - 1


def test_a_clock_that_is_set_back_measures_nothing(counters: HttpCounters) -> None:
    history = History({"hit": 0}, counters)
    history.take(100.0)
    history.take(50.0)
    assert not history.samples
    history.take(52.0)
    assert [sample.at for sample in history.samples] == [52.0]


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([0, 4, 0], 0.5, 1.5),
        ([1, 1, 0], 0.5, 1.0),
        ([0, 0, 9], 0.99, 2.0),
        ([98, 1, 1], 0.99, 2.0),
    ],
)
def test_quantiles_lie_within_their_bucket(counts: list[int], part: float, expected: float | None) -> None:
    assert quantile([1.0, 2.0], counts, part) == expected


def test_quantiles_of_every_bucket_ascend() -> None:
    counts = [1] * (len(DURATION_BOUNDS_SECONDS) + 1)
    found = [quantile(DURATION_BOUNDS_SECONDS, counts, part / 100) or 0.0 for part in range(1, 101)]
    assert found == sorted(found)


def test_l1_the_log_is_bounded_and_knows_its_lines() -> None:
    log = OperatorLog(lambda: 1.0)
    for number in range(LOG_MAX + 5):
        log.add(f"line {number}")
    assert [line.text for line in log.newest(2)] == [f"line {LOG_MAX + 4}", f"line {LOG_MAX + 3}"]
    assert len(log.newest(1000)) == LOG_MAX
    assert log.line(5) is None
    found = log.line(6)
    assert found is not None
    assert found.text == "line 5"


def test_the_log_has_a_line_for_each_change_of_the_state(counters: HttpCounters) -> None:
    engine = StandingEngine(EngineState.RECOVERING)
    observer = Observer(face_of(engine), counters, lambda: 1.0)
    observer.look()
    observer.look()
    engine.state, engine.reasons = EngineState.DEGRADED, [Reason.PARTIAL_RECOVERY, Reason.CHECKPOINT_OVERDUE]
    observer.look()
    engine.reasons.pop()
    observer.look()
    assert [line.text for line in observer.log.newest(10)] == [
        "State: degraded (partial recovery)",
        "State: degraded (partial recovery, checkpoint overdue)",
        "State: recovering",
    ]


def test_what_is_refused_is_a_line_of_the_log(counters: HttpCounters) -> None:
    log = OperatorLog(lambda: 1.0)
    operations = Operations(face_of(StandingEngine(EngineState.RECOVERING)), log)
    for operation in Operation:
        line = asyncio.run(operations.outcome(operation))
        assert line.failed
        assert line.text.startswith(f"{operation.value.capitalize()} refused: ")


def test_every_state_reason_and_skip_has_its_words() -> None:
    assert set(wording.STATE_TEXTS) == set(EngineState)
    assert set(wording.REASON_TEXTS) == set(Reason)
    assert set(wording.SKIP_TEXTS) == {reason.value for reason in SkipReason}
    for text in wording.REASON_TEXTS.values():
        assert text.what.endswith(".")
        assert text.todo.endswith(".")


def test_the_pictures_of_the_documentation_are_there() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
    assert pictures
    for picture in pictures:
        assert (DOCUMENT.parent / picture).read_bytes().startswith(b"\x89PNG"), picture


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size_text(0), "0 B"),
        (size_text(1023), "1023 B"),
        (size_text(1024), "1 KiB"),
        (size_text(1.25 * 2**30), "1.2 GiB"),
        (size_text(2**20 - 1), "1 MiB"),
        (size_text(150 * 2**20), "150 MiB"),
        (size_text(2**60), "1024 PiB"),
        (count_text(1234567), "1,234,567"),
        (rate_text(None), "–"),
        (rate_text(0), "0"),
        (rate_text(1.24), "1.2"),
        (rate_text(12345.6), "12,346"),
        (share_text(None), "–"),
        (share_text(0), "0 %"),
        (share_text(0.0004), "< 0.1 %"),
        (share_text(0.123), "12 %"),
        (share_text(0.9999), "> 99.9 %"),
        (share_text(0.995), "99.5 %"),
        (share_text(1), "100 %"),
        (latency_text(0.000_21), "210 µs"),
        (latency_text(0.001_3), "1.3 ms"),
        (latency_text(2.1), "2.1 s"),
        (duration_text(0.0361), "36 ms"),
        (duration_text(0.9996), "1 s"),
        (duration_text(192), "3 min 12 s"),
        (duration_text(3600), "1 h"),
        (duration_text(5 * 86400 + 3 * 3600 + 59), "5 d 3 h"),
        (age_text(0.4), "just now"),
        (age_text(119), "1 min ago"),
        (age_text(7200), "2 h ago"),
        (plural_text(1, "entry", "entries"), "1 entry"),
        (plural_text(2000, "entry", "entries"), "2,000 entries"),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text.replace("\u00a0", " ") == expected


def test_bars_show_what_is_little_and_stay_within_their_length() -> None:
    segments = bar([("live", 1), ("quarantined", 0), ("moving", 1_000_000)], 1_000_000)
    assert [segment.kind for segment in segments] == ["live", "moving"]
    assert segments[0].length == 0.6
    assert sum(segment.length for segment in segments) == 100
    assert bar([("live", 1)], 0) == []


def test_curves_are_broken_where_nothing_was_measured(counters: HttpCounters) -> None:
    lookups = {"hit": 0}
    history = History(lookups, counters)
    for second in range(0, 40, 2):
        lookups["hit"] += second not in (20, 22)
        history.take(float(second))
    hits = charts(history.samples, 40.0)[1]
    assert hits.lines
    assert [len(line.split()) for line in hits.lines[0]] == [9, 8]
    xs = [float(point.split(",")[0]) for line in hits.lines[0] for point in line.split()]
    assert xs == sorted(xs)
    assert 0 <= min(xs) <= max(xs) <= CHART_WIDTH
