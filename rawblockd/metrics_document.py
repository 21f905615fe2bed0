"""The page ``docs/metrics.md``, from the collector itself over sources in which nothing has happened yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from api.counters import METHODS, HttpCounters
from metrics.reference import reference
from metrics.sources import MetricsSources
from storage.device.counters import IoCounters
from storage.device.interface import BlockDevice
from storage.engine import Engine
from storage.status import ClassStatus, EngineStatus, NamespaceStatus, SlotCounts

METRICS_HEAD = """\
# Metrics

`GET /metrics` answers Prometheus' text format, or OpenMetrics where `Accept` asks for it. All of one scrape is one
picture of the engine, so its numbers agree. Units are base units: seconds, bytes, ratios from 0 to 1. Label values of a
closed set are there from the start at 0; keys and clients are never in a label. Counters begin at 0 with the process.
A histogram has `_bucket`, `_sum` and `_count`.

Beside this page:

- `metrics/alerts.yml`: alerting rules, each with a section in [runbook.md](runbook.md). They expect the scrape job to
  be called `rawblockd`. `metrics/alerts_*_test.yml` are their tests for `promtool test rules`.
- `metrics/dashboard.json`: a dashboard for Grafana 10 or newer, made from `metrics/dashboard.py`.

The installed package holds them too: `python -c 'import metrics; print(metrics.__path__[0])'` says where.

```yaml
# prometheus.yml
rule_files: [alerts.yml]
scrape_configs:
  - job_name: rawblockd
    scrape_interval: 15s
    static_configs:
      - targets: ["localhost:8790"]
```

What to look at first:

| question | query |
|---|---|
| Was anything lost that nobody has decided about? | `rawblockd_partial_recovery`, `rawblockd_skipped_entries` |
| Does it serve? | `rawblockd_ready`, `rawblockd_engine_state == 1`, `rawblockd_engine_reason == 1` |
| Is it of use? | `rate(rawblockd_lookups_total{result="hit"}[5m])` beside `rate(rawblockd_lookups_total[5m])` |
| Are puts refused, and why? | `rate(rawblockd_put_rejections_total[5m])` |
| How long would a restart take? | `rawblockd_recovery_duration_seconds`, `rawblockd_journal_used_ratio` |
| Is the device well? | `rawblockd_io_errors_total`, `rawblockd_slots{state="quarantined"}` |
"""


@dataclass
class _NoDevice:
    """What a picture says of its device."""

    path: str = ""
    size_bytes: int = 0
    direct_io: bool = True
    block_bytes: int = 4096
    io_engine: str = "uring"


class _StillEngine(Engine):
    """An engine that has not begun, but with one slot class and one namespace: each family has a sample."""

    def status(self) -> EngineStatus:
        status = super().status()
        status.classes = [ClassStatus(4096, 0, SlotCounts())]
        status.namespaces = {"default": NamespaceStatus(0, 0, 0)}
        return status


def metrics_page(generated: str) -> str:
    """``generated`` is the comment that says where the page comes from."""
    http = HttpCounters()
    http.declare("/v1/kv/{namespace}/{key}", METHODS)
    http.record("/v1/kv/{namespace}/{key}", "GET", 200, 0.001)
    engine = _StillEngine(cast(BlockDevice, _NoDevice()))
    return "\n".join([generated, METRICS_HEAD, reference(MetricsSources(engine, IoCounters(), http))])
