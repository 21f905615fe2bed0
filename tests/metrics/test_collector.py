"""The metrics page, parsed back: names, types, label values and numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from api.counters import HttpCounters
from metrics.collector import MetricsPage
from metrics.sources import MetricsSources
from storage.counters import EngineCounters
from storage.device.counters import ERROR_NAMES, IoCounters, OpKind
from storage.events import EventFeed
from storage.recovery.report import RepairSource, SkipReason
from storage.status import (
    AutoCheckpoint,
    BufferStatus,
    CapacityStatus,
    CheckpointStatus,
    DeviceStatus,
    EngineState,
    EngineStatus,
    HoldStatus,
    JournalStatus,
    NamespaceStatus,
    Reason,
    RecoveryStatus,
    ScrubStatus,
    SelfTestStatus,
    SlotCounts,
)

CONTRACT = set(
    """
partial_recovery skipped_entries recovered_entries repaired_entries lost_unflushed_entries recovery_duration_seconds
auto_checkpoint_paused checkpoints_total checkpoint_duration_seconds last_checkpoint_timestamp_seconds dirty_pages
journal_used_ratio slots entries payload_bytes device_size_bytes lookups_total puts_total evictions_total
corruptions_total io_operations_total io_bytes_total io_errors_total io_duration_seconds http_requests_total
http_request_duration_seconds engine_state build_info
""".split()  # noqa: SIM905
)
"""What operators' rules and dashboards rely on."""


class Engine:
    """An engine that shows one constructed picture, and counts how often it is asked for it."""

    def __init__(self) -> None:
        self.counters = EngineCounters()
        self.events = EventFeed(1 << 16)
        self.pictures = 0
        self.picture = self._constructed()

    def status(self) -> EngineStatus:
        self.pictures += 1
        return self.picture

    def _constructed(self) -> EngineStatus:
        return EngineStatus(
            state=EngineState.DEGRADED,
            reasons=[Reason.PARTIAL_RECOVERY],
            partial_recovery=True,
            skipped_entries=3,
            skipped_by_reason={"unreadable": 3, "invalid_row": 0},
            auto_checkpoint=AutoCheckpoint(enabled=True, paused_reason="partial_recovery"),
            recovery=RecoveryStatus(
                recovered_entries=97,
                repaired_entries=2,
                repaired_by_source={"older_copy": 2, "record_header": 0},
                lost_unflushed=1,
                duration_seconds=0.25,
            ),
            checkpoint=CheckpointStatus(dirty_pages=7, written_at=1_700_000_000.5, bytes=8192),
            journal=JournalStatus(used_ratio=0.125, seq=2**53 - 1),
            capacity=CapacityStatus(
                slots=SlotCounts(free=10, live=97, quarantined=3, retired=1, limbo=2, in_flight=4, total=117),
                payload_bytes=1000,
                used_bytes=4096 * 97,
            ),
            classes=[],
            namespaces={"default": NamespaceStatus(97, 1, 1)},
            holds=[
                HoldStatus("lease", "a reader", "default", 2, 8192, 10.0),
                HoldStatus("snapshot", "a saver", "default", 90, 4096 * 90, 60.0, 4096),
                HoldStatus("snapshot", "another", "default", 80, 4096 * 80, 60.0, 8192),
            ],
            device=DeviceStatus(path='/dev/"odd"\n', size_bytes=1 << 30, direct_io=True, io_engine="uring"),
            buffers=BufferStatus(total_bytes=1 << 20, used_bytes=4096, waiting=1),
            scrub=ScrubStatus(0.5, 2, 10.0, 4096, {"record": 1}),
            self_test=SelfTestStatus(3, 1),
            version="1.2.3",
            uptime_seconds=1.0,
        )


class Page:
    def __init__(self) -> None:
        self.engine = Engine()
        self.io = IoCounters()
        self.http = HttpCounters()
        self.metrics = MetricsPage(MetricsSources(self.engine, self.io, self.http))

    def families(self) -> dict[str, Metric]:
        body, content_type = self.metrics.render(None)
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
        return {family.name: family for family in text_string_to_metric_families(body.decode())}

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in self.families().values()
            for sample in family.samples
        }


@pytest.fixture
def page() -> Page:
    return Page()


def own_names(page: Page) -> Iterator[str]:
    body, _ = page.metrics.render(None)
    for line in body.decode().splitlines():
        if line.startswith("# TYPE rawblockd_"):
            yield line.split()[2].removeprefix("rawblockd_")


def test_every_family_of_the_contract_is_there_under_its_name(page: Page) -> None:
    names = list(own_names(page))
    assert set(names) >= CONTRACT
    assert len(names) == len(set(names))


def test_names_end_as_their_type_and_unit_ask(page: Page) -> None:
    for family in page.families().values():
        if family.name.startswith("rawblockd_"):
            assert (family.type == "counter") == any(
                s.name.endswith("_total") for s in family.samples
            ) or not family.samples
            assert family.documentation.endswith(".")
            assert not any(unit in family.name for unit in ("milliseconds", "_ms", "_kb", "_mib", "percent"))


def test_gauges_show_the_picture(page: Page) -> None:
    samples = page.samples()
    expected = {
        ("partial_recovery", ()): 1,
        ("skipped_entries", ("unreadable",)): 3,
        ("skipped_entries", ("invalid_row",)): 0,
        ("recovered_entries", ()): 97,
        ("repaired_entries", ("older_copy",)): 2,
        ("lost_unflushed_entries", ()): 1,
        ("recovery_duration_seconds", ()): 0.25,
        ("auto_checkpoint_paused", ()): 1,
        ("last_checkpoint_timestamp_seconds", ()): 1_700_000_000.5,
        ("dirty_pages", ()): 7,
        ("journal_used_ratio", ()): 0.125,
        ("journal_seq", ()): 2**53 - 1,
        ("slots", ("quarantined",)): 3,
        ("slots", ("in_flight",)): 4,
        ("entries", ()): 97,
        ("device_size_bytes", ()): 1 << 30,
        ("engine_state", ("degraded",)): 1,
        ("engine_state", ("ready",)): 0,
        ("engine_reason", ("partial_recovery",)): 1,
        ("engine_reason", ("corruption",)): 0,
        ("namespaces", ()): 1,
        ("holds", ("lease",)): 1,
        ("holds", ("snapshot",)): 2,
        ("holds", ("import",)): 0,
        ("held_slots_bytes", ("snapshot",)): 4096 * 170,
        ("held_slots_bytes", ("import",)): 0,
        ("held_freed_bytes", ("snapshot",)): 12288,
        ("ready", ()): 1,
    }
    for (name, labels), value in expected.items():
        assert samples["rawblockd_" + name, labels] == value, name
    assert samples["rawblockd_build_info", ("true", "uring", "1.2.3")] == 1
    assert ("rawblockd_slots", ("total",)) not in samples, "a sum over the label must be the total"


def test_one_scrape_takes_one_picture(page: Page) -> None:
    assert page.engine.pictures == 0
    page.families()
    assert page.engine.pictures == 1


def test_closed_sets_are_present_from_the_start(page: Page) -> None:
    samples = page.samples()
    for family, values in {
        "lookups_total": page.engine.counters.lookups,
        "puts_total": page.engine.counters.puts,
        "put_rejections_total": page.engine.counters.put_rejections,
        "deletes_total": page.engine.counters.deletes,
        "evictions_total": page.engine.counters.evictions,
        "corruptions_total": page.engine.counters.corruptions,
        "checkpoints_total": page.engine.counters.checkpoints,
    }.items():
        assert values
        for value in values:
            assert samples["rawblockd_" + family, (value,)] == 0
    for op in OpKind:
        assert samples["rawblockd_io_operations_total", (op.value,)] == 0
        assert samples["rawblockd_io_duration_seconds_count", (op.value,)] == 0
        for name in ERROR_NAMES:
            assert ("rawblockd_io_errors_total", (name, op.value)) in samples or (
                "rawblockd_io_errors_total",
                (op.value, name),
            ) in samples
    for reason in SkipReason:
        assert ("rawblockd_skipped_entries", (reason.value,)) in samples
    for source in RepairSource:
        assert ("rawblockd_repaired_entries", (source.value,)) in samples
    for state in EngineState:
        assert ("rawblockd_engine_state", (state.value,)) in samples


def test_counters_count(page: Page) -> None:
    page.engine.counters.lookups["hit"] += 5
    page.engine.counters.journal_rows += 2
    page.engine.counters.eviction_failures += 3
    for code in ("full", "full", "an error of another day"):
        page.engine.counters.put_refused(code)
    page.io.record(OpKind.READ, 4096, 0.0003)
    page.io.record(OpKind.WRITE, 4096, 0.2, 5)
    page.http.declare("/v1/kv/{namespace}/{key}", ["GET"])
    page.http.record("/v1/kv/{namespace}/{key}", "GET", 206, 0.002)
    samples = page.samples()
    assert samples["rawblockd_lookups_total", ("hit",)] == 5
    assert samples["rawblockd_journal_rows_total", ()] == 2
    assert samples["rawblockd_eviction_failures_total", ()] == 3
    assert samples["rawblockd_puts_total", ("refused",)] == 3
    assert samples["rawblockd_put_rejections_total", ("full",)] == 2
    assert samples["rawblockd_put_rejections_total", ("other",)] == 1
    assert samples["rawblockd_io_bytes_total", ("read",)] == 4096
    assert samples["rawblockd_io_bytes_total", ("write",)] == 0
    families = page.families()
    errors = {
        (sample.labels["op"], sample.labels["errno"]): sample.value
        for sample in families["rawblockd_io_errors"].samples
    }
    assert errors["write", "EIO"] == 1
    assert errors["read", "EIO"] == 0
    (request,) = families["rawblockd_http_requests"].samples
    assert request.labels == {"route": "/v1/kv/{namespace}/{key}", "method": "GET", "code": "206"}
    assert request.value == 1


def test_histograms_are_cumulative_and_end_at_infinity(page: Page) -> None:
    page.engine.counters.checkpoint_duration.observe(0.002)
    page.engine.counters.checkpoint_duration.observe(0.3)
    page.engine.counters.checkpoint_duration.observe(1e6)
    samples = page.families()["rawblockd_checkpoint_duration_seconds"].samples
    buckets = {float(s.labels["le"]): s.value for s in samples if s.name.endswith("_bucket")}
    assert list(buckets) == sorted(buckets)
    assert (buckets[0.001], buckets[0.0025], buckets[0.25], buckets[0.5], buckets[120.0]) == (0, 1, 1, 2, 2)
    assert buckets[float("inf")] == 3
    assert [s.value for s in samples if s.name.endswith("_count")] == [3]
    assert [s.value for s in samples if s.name.endswith("_sum")] == [1e6 + 0.302]


def test_openmetrics_where_the_scraper_asks_for_it(page: Page) -> None:
    body, content_type = page.metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in openmetrics_families(body.decode())}  # type: ignore[no-untyped-call]
    assert "rawblockd_lookups" in names


def test_nothing_that_libraries_register_globally_leaks_in(page: Page) -> None:
    names = set(page.families())
    assert not {name for name in names if not name.startswith(("rawblockd_", "process_"))}
    assert "process_resident_memory_bytes" in names


def test_the_start_is_the_same_in_each_scrape(page: Page) -> None:
    """A restart loop is seen by this number's changes."""
    first, second = (page.samples()["rawblockd_start_time_seconds", ()] for _ in range(2))
    assert first == second
    assert abs(first - time.time()) < 3600


@pytest.mark.parametrize("state", EngineState)
def test_ready_is_what_the_readiness_probe_says(page: Page, state: EngineState) -> None:
    picture = page.engine.status()
    picture.state, picture.reasons = state, []
    page.engine.picture = picture
    expected = state in (EngineState.READY, EngineState.DEGRADED)
    assert page.samples()["rawblockd_ready", ()] == expected
    picture.reasons = [Reason.JOURNAL_UNAVAILABLE]
    assert page.samples()["rawblockd_ready", ()] == (state is EngineState.READY)
