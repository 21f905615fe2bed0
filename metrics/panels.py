"""What the Grafana dashboard shows: its panels, row by row.

A panel is a title, what it says in a sentence, a unit of Grafana, and queries with their legends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

THESE = 'instance=~"$instance"'
VALUES = f'{THESE}, route="/v1/kv/{{namespace}}/{{key}}"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    title: str
    text: str
    unit: str
    queries: dict[str, str]
    """Legend → query."""
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    highest: float | None = None
    alarm_at: float | None = None
    """From this value on the panel is red."""
    names: dict[str, str] = field(default_factory=dict)
    """Words for values."""
    stacked: bool = False


def stat(title: str, text: str, unit: str, query: str, legend: str = "{{instance}}", **more: Any) -> Panel:
    return Panel(title, text, unit, {legend: query}, **{"kind": "stat", "width": 4, "height": 4, **more})


def rate(metric: str, labels: str = THESE, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}{RATE}))"


def quantile(share: float, metric: str, labels: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{labels}}}{RATE})))"


ASKED = THESE + ', route!~"/livez|/readyz|/metrics"'
"""Without the probes, which are answered 503 while it recovers."""
ANSWERS = rate("rawblockd_http_requests_total", ASKED)
FAILED_ANSWERS = rate("rawblockd_http_requests_total", ASKED + ', code=~"5..", code!="507"')
HITS = rate("rawblockd_lookups_total", THESE + ', result="hit"')

NOW = [
    stat("State", "The state of each instance.", "none", f"rawblockd_engine_state{{{THESE}}} == 1", "{{state}}"),
    stat(
        "Partial recovery",
        "Whether entries were skipped at the start and nobody has decided about them.",
        "none",
        f"rawblockd_partial_recovery{{{THESE}}}",
        alarm_at=1,
        names={"0": "no", "1": "PARTIAL"},
    ),
    stat(
        "Skipped entries",
        "Unacknowledged entries that recovery could not settle.",
        "short",
        f"sum by (instance) (rawblockd_skipped_entries{{{THESE}}})",
        alarm_at=1,
        width=3,
    ),
    stat(
        "Automatic checkpoints",
        "Paused while a partial recovery waits for a decision.",
        "none",
        f"rawblockd_auto_checkpoint_paused{{{THESE}}}",
        alarm_at=1,
        names={"0": "running", "1": "PAUSED"},
    ),
    stat(
        "Ready",
        "Whether reads and mutations are accepted.",
        "none",
        f"1 - rawblockd_ready{{{THESE}}}",
        alarm_at=1,
        names={"0": "ready", "1": "NOT READY"},
        width=3,
    ),
    stat("Running for", "Time since the start.", "s", f"time() - rawblockd_start_time_seconds{{{THESE}}}", width=3),
    stat("Version", "What runs.", "none", f"rawblockd_build_info{{{THESE}}}", "{{version}} {{io_engine}}", width=3),
]

GOLDEN = [
    Panel("Requests", "By method, values only.", "reqps", {
        "{{method}}": rate("rawblockd_http_request_duration_seconds_count", VALUES, "method"),
    }),
    Panel("Answers that are errors", "The share of 5xx, without probes and 507 (no room).", "percentunit", {
        "{{instance}}": f"({FAILED_ANSWERS} or 0 * {ANSWERS}) / {ANSWERS}",
    }, highest=1),
    Panel("Answers by status", "Without those that succeeded.", "reqps", {
        "{{code}}": rate("rawblockd_http_requests_total", ASKED + ', code!~"2.."', "code"),
    }),
    Panel("Time of GET", "From the head to the end of the answer, the client's pace included.", "s", {
        "p50": quantile(0.5, "rawblockd_http_request_duration_seconds", VALUES + ', method="GET"', "method"),
        "p99": quantile(0.99, "rawblockd_http_request_duration_seconds", VALUES + ', method="GET"', "method"),
    }),
    Panel("Time of PUT", "From the head to the end of the answer, the client's pace included.", "s", {
        "p50": quantile(0.5, "rawblockd_http_request_duration_seconds", VALUES + ', method="PUT"', "method"),
        "p99": quantile(0.99, "rawblockd_http_request_duration_seconds", VALUES + ', method="PUT"', "method"),
    }),
    Panel("Hit ratio", "Share of reads that found their value.", "percentunit", {
        "{{instance}}": f'{HITS} / {rate("rawblockd_lookups_total")}',
    }, highest=1),
    Panel("Reads", "By what they found.", "ops", {"{{result}}": rate("rawblockd_lookups_total", by="result")}),
    Panel("Puts and deletes", "By how they ended.", "ops", {
        "put {{result}}": rate("rawblockd_puts_total", by="result"),
        "delete {{result}}": rate("rawblockd_deletes_total", by="result"),
    }),
    Panel("Refused puts", "By the error's code.", "ops", {
        "{{reason}}": rate("rawblockd_put_rejections_total", by="reason"),
    }),
]  # fmt: skip

CAPACITY = [
    Panel("Bytes", "Values, the slots they lie in, and all the room there is.", "bytes", {
        "payload": f"sum(rawblockd_payload_bytes{{{THESE}}})",
        "used": f"sum(rawblockd_used_bytes{{{THESE}}})",
        "all slabs": f"sum(rawblockd_data_size_bytes{{{THESE}}})",
        "device": f"sum(rawblockd_device_size_bytes{{{THESE}}})",
    }),
    Panel("Slots by state", "A full cache is a good cache: it's full of live slots.", "short", {
        "{{state}}": f"sum by (state) (rawblockd_slots{{{THESE}}})",
    }, stacked=True),
    Panel("Live slots by class", "What the sizes of the values make of the slabs.", "short", {
        "{{slot_bytes}} B": f'sum by (slot_bytes) (rawblockd_class_slots{{{THESE}, state="live"}})',
    }, stacked=True),
    Panel("Entries", "And the most the device has slots for.", "short", {
        "entries": f"sum(rawblockd_entries{{{THESE}}})",
        "at most": f"sum(rawblockd_max_entries{{{THESE}}})",
    }),
    Panel("Removed entries", "By reason, and failures to make room.", "ops", {
        "{{reason}}": rate("rawblockd_evictions_total", by="reason"),
        "eviction failed": rate("rawblockd_eviction_failures_total"),
    }),
    Panel("Buffers", "Memory for values on their way.", "bytes", {
        "used {{instance}}": f"rawblockd_buffer_used_bytes{{{THESE}}}",
        "size {{instance}}": f"rawblockd_buffer_size_bytes{{{THESE}}}",
    }, width=4),
    Panel("Waiting for buffers", "More than moments of it means that the memory is too small or the device too slow.",
        "short", {"{{instance}}": f"rawblockd_buffer_waiting_requests{{{THESE}}}"}, width=4),
    Panel("Free slabs and namespaces", "Slabs no class has taken; namespaces.", "short", {
        "free slabs {{instance}}": f"rawblockd_free_slabs{{{THESE}}}",
        "namespaces {{instance}}": f"rawblockd_namespaces{{{THESE}}}",
    }),
    Panel("Held slots", "By leases, snapshots and imports: not evicted, not used again before those end.", "bytes", {
        "{{kind}}": f"sum by (kind) (rawblockd_held_slots_bytes{{{THESE}}})",
        "kept for snapshots alone": f'sum(rawblockd_held_freed_bytes{{{THESE}, kind="snapshot"}})',
    }),
    Panel("Holds", "Leases, snapshots and imports.", "short", {
        "{{kind}}": f"sum by (kind) (rawblockd_holds{{{THESE}}})",
    }, width=4),
    Panel("Open files", "Of the process; sockets are among them.", "short", {
        "{{instance}}": f"process_open_fds{{{THESE}}} and on (instance) rawblockd_ready",
    }, width=4),
    Panel("Slabs that changed class", "Because the sizes of values have changed.", "ops", {
        "{{instance}}": rate("rawblockd_slabs_taken_total"),
    }, width=4),
    Panel("Memory of the process", "Buffers, index and the program.", "bytes", {
        "{{instance}}": f"process_resident_memory_bytes{{{THESE}}} and on (instance) rawblockd_ready",
    }, width=4),
    Panel("CPU", "Seconds of one core per second.", "percentunit", {
        "{{instance}}": f"rate(process_cpu_seconds_total{{{THESE}}}{RATE}) and on (instance) rawblockd_ready",
    }, width=4),
]  # fmt: skip

DURABILITY = [
    Panel("Skipped entries by reason", "Unacknowledged ones.", "short", {
        "{{reason}}": f"sum by (reason) (rawblockd_skipped_entries{{{THESE}}})",
    }, alarm_at=1),
    Panel("Last recovery", "Entries by what became of them.", "short", {
        "recovered": f"sum(rawblockd_recovered_entries{{{THESE}}})",
        "repaired, {{source}}": f"sum by (source) (rawblockd_repaired_entries{{{THESE}}})",
        "lost behind the last flush": f"sum(rawblockd_lost_unflushed_entries{{{THESE}}})",
        "loss of unknown extent": f"sum(rawblockd_recovery_unknown_loss{{{THESE}}})",
    }),
    Panel("Time of the last recovery", "And how far one under way is.", "s", {
        "{{instance}}": f"rawblockd_recovery_duration_seconds{{{THESE}}}",
    }, width=4),
    Panel("Recovery progress", "1 when done.", "percentunit", {
        "{{instance}}": f"rawblockd_recovery_progress_ratio{{{THESE}}}",
    }, width=4, highest=1),
    Panel("Age of the newest checkpoint", "Grows while nothing changes, and while checkpoints are paused.", "s", {
        "{{instance}}": f"time() - (rawblockd_last_checkpoint_timestamp_seconds{{{THESE}}} > 0)",
    }),
    Panel("Checkpoints", "By how they ended.", "ops", {
        "{{result}}": rate("rawblockd_checkpoints_total", by="result"),
    }),
    Panel("Dirty pages", "Pages to write at the next checkpoint.", "short", {
        "{{instance}}": f"rawblockd_dirty_pages{{{THESE}}}",
    }, width=4),
    Panel("Time of checkpoints", "The 99th percentile.", "s", {
        "p99 {{instance}}": quantile(0.99, "rawblockd_checkpoint_duration_seconds", THESE, "instance"),
    }, width=4),
    Panel("Journal", "In good order at most copies / (copies + 1): 75 % with three.", "percentunit", {
        "{{instance}}": f"rawblockd_journal_used_ratio{{{THESE}}}",
    }, highest=1, alarm_at=0.9),
    Panel("Journal writes", "Rows, blocks, flushes, and groups it could not take.", "ops", {
        "rows": rate("rawblockd_journal_rows_total"),
        "blocks": rate("rawblockd_journal_blocks_total"),
        "flushes": rate("rawblockd_flushes_total"),
        "failures": rate("rawblockd_journal_failures_total"),
    }),
    Panel("Size of checkpoints", "Bytes written for the newest.", "bytes", {
        "{{instance}}": f"rawblockd_last_checkpoint_bytes{{{THESE}}}",
    }, width=4),
    Panel("Reasons", "Why an instance is degraded or only reads.", "none", {
        "{{instance}} {{reason}}": f"rawblockd_engine_reason{{{THESE}}}",
    }, width=4, highest=1),
]  # fmt: skip

DEVICE = [
    Panel("Operations", "Finished ones.", "iops", {"{{op}}": rate("rawblockd_io_operations_total", by="op")}),
    Panel("Throughput", "Of operations that succeeded.", "Bps", {"{{op}}": rate("rawblockd_io_bytes_total", by="op")}),
    Panel("Time of operations", "The 99th percentile, waiting included.", "s", {
        "{{op}}": quantile(0.99, "rawblockd_io_duration_seconds", THESE, "op"),
    }),
    Panel("Errors", "By operation and error of the operating system, over the range shown.", "short", {
        "{{op}} {{errno}}": f"sum by (op, errno) (increase(rawblockd_io_errors_total{{{THESE}}}[$__range]))",
    }, alarm_at=1),
    Panel("Damaged entries", "By where they were found, and slots withheld as evidence.", "short", {
        "found by {{where}}": f"sum by (where) (increase(rawblockd_corruptions_total{{{THESE}}}[$__range]))",
        "{{state}}": f'sum by (state) (rawblockd_slots{{{THESE}, state=~"quarantined|retired"}})',
    }, alarm_at=1),
    Panel("Found by verification", "Damage by kind, over the range shown.", "short", {
        "{{kind}}": f"sum by (kind) (increase(rawblockd_scrub_damaged_total{{{THESE}}}[$__range]))",
    }, alarm_at=1),
    Panel("Verification", "How far the pass is.", "percentunit", {
        "{{instance}}": f"rawblockd_scrub_progress_ratio{{{THESE}}}",
    }, width=4, highest=1),
    Panel("Full passes", "Of background verification.", "short", {
        "passes {{instance}}": f"rawblockd_scrub_passes_total{{{THESE}}}",
    }, width=4),
    Panel("Last full pass", "Its age.", "s", {
        "{{instance}}": f"rawblockd_scrub_last_pass_age_seconds{{{THESE}}}",
    }, width=4),
    Panel("Verified", "Bytes looked at.", "Bps", {"{{instance}}": rate("rawblockd_scrub_bytes_total")}, width=4),
    Panel("Self-tests", "Write a block, read it back, compare; over the range shown.", "short", {
        "{{result}}": f"sum by (result) (increase(rawblockd_self_tests_total{{{THESE}}}[$__range]))",
    }),
]  # fmt: skip

EVENTS = [
    Panel("Events", "Durable changes told, by what happened.", "ops", {
        "{{type}}": rate("rawblockd_events_total", by="type"),
    }),
    Panel("Followers", "Clients that follow the stream.", "short", {
        "{{instance}}": f"rawblockd_event_subscribers{{{THESE}}}",
    }),
    Panel("Told to start over", "Followers that missed events, by why, over the range shown.", "short", {
        "{{reason}}": f"sum by (reason) (increase(rawblockd_event_resyncs_total{{{THESE}}}[$__range]))",
    }),
]  # fmt: skip

ROWS = {
    "Now": NOW,
    "Golden signals": GOLDEN,
    "Capacity": CAPACITY,
    "Durability and recovery": DURABILITY,
    "Device": DEVICE,
    "Event stream": EVENTS,
}
