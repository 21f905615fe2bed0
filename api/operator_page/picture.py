"""From the engine's status to what the page shows: sorted, shortened, measured for bars and charts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_from_bytes

from api.operator_page import wording
from api.operator_page.history import SAMPLE_SECONDS, SAMPLES_MAX, Sample
from api.operator_page.quantities import latency_text, plural_text, rate_text, share_text
from storage.events import Event
from storage.status import CopyStatus, EngineState, EngineStatus, HoldStatus, NamespaceStatus, Reason, SlotCounts

NAMESPACES_SHOWN = 12
HOLDS_SHOWN = 8
KEY_SHOWN_CHARS = 120
CHART_WIDTH, CHART_HEIGHT = 300, 60
SPAN_MIN_SECONDS, SPAN_MAX_SECONDS = 120.0, SAMPLE_SECONDS * SAMPLES_MAX
"""What the charts' width stands for: as much as there is, within these."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a bar, in percent of its length."""

    kind: str
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class ReasonView:
    text: wording.ReasonText
    details: list[str]


@dataclass(frozen=True, slots=True)
class CopyView:
    copy: CopyStatus
    tone: wording.Tone
    verdict: str
    newest: bool


@dataclass(frozen=True, slots=True)
class EventView:
    """One change of an entry; ``key`` is percent-encoded, and empty where it is not known."""

    at: float
    kind: str
    namespace: str
    key: str
    why: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Chart:
    """``value`` is what is the case now, ``readings`` one value per curve, ``course`` in words what the curves show.

    ``lines`` are the curves as polylines.
    """

    name: str
    title: str
    value: str
    unit: str
    readings: list[tuple[str, str]]
    course: str
    lines: list[list[str]] = field(default_factory=list)


def bar(parts: Sequence[tuple[str, float]], total: float) -> list[Segment]:
    """Pieces side by side. What is there at all is never thinner than can be seen."""
    segments, start = [], 0.0
    for kind, amount in parts:
        if amount > 0 and total > 0:
            length = min(max(100 * amount / total, 0.6), 100 - start)
            segments.append(Segment(kind, round(start, 2), round(length, 2)))
            start += length
    return segments


def slot_bar(slots: SlotCounts) -> list[Segment]:
    moving = slots.limbo + slots.in_flight
    return bar(
        [("live", slots.live), ("moving", moving), ("quarantined", slots.quarantined), ("retired", slots.retired)],
        slots.total,
    )


def reason_views(status: EngineStatus) -> list[ReasonView]:
    return [ReasonView(wording.REASON_TEXTS[reason], _details(reason, status)) for reason in status.reasons]


def _details(reason: Reason, status: EngineStatus) -> list[str]:
    if reason is Reason.PARTIAL_RECOVERY:
        found = [plural_text(status.skipped_entries, "entry skipped", "entries skipped")]
        if status.recovery.unknown_loss:
            found.append("and a loss of unknown extent: part of the journal can't be read")
        return found
    if reason is Reason.CORRUPTION:
        return [plural_text(status.capacity.slots.quarantined, "slot quarantined", "slots quarantined")]
    if reason is Reason.DEVICE_ERRORS and status.self_test.failure:
        return [status.self_test.failure]
    return []


def copy_views(status: EngineStatus) -> list[CopyView]:
    """Newest first; ``valid`` in other words, a defect as it is called elsewhere."""
    views: list[CopyView] = []
    for copy in sorted(status.recovery.copies, key=lambda copy: copy.seq, reverse=True):
        valid = copy.verdict == "valid"
        newest = valid and not any(view.newest for view in views)
        tone = wording.Tone.GOOD if valid else wording.Tone.IDLE if copy.verdict == "absent" else wording.Tone.BAD
        verdict = "not written yet" if copy.verdict == "absent" else copy.verdict
        views.append(CopyView(copy, tone, verdict, newest))
    return views


def adopt_command(status: EngineStatus) -> str | None:
    """The command that starts from the next older copy; None where there is none."""
    older = [view.copy.seq for view in copy_views(status) if view.copy.verdict == "valid" and not view.newest]
    return f"rawblockd repair {shlex.quote(status.device.path)} --adopt {older[0]}" if older else None


def largest_namespaces(status: EngineStatus) -> list[tuple[str, NamespaceStatus]]:
    """Those that use most, largest first."""
    ordered = sorted(status.namespaces.items(), key=lambda item: (-item[1].used_bytes, item[0]))
    return ordered[:NAMESPACES_SHOWN]


def largest_holds(status: EngineStatus) -> list[HoldStatus]:
    """Those that hold most, largest first."""
    return sorted(status.holds, key=lambda hold: -hold.held_bytes)[:HOLDS_SHOWN]


def may_be_settled(status: EngineStatus) -> bool:
    """Whether there is something to retry or to acknowledge."""
    return status.partial_recovery or status.capacity.slots.quarantined > 0


def evidence_mark(status: EngineStatus) -> str:
    """What a confirmation was asked for: with another one than now, more would be given up than was shown."""
    quarantined = status.capacity.slots.quarantined
    return f"{status.skipped_entries}.{quarantined}.{int(status.recovery.unknown_loss)}"


def is_beginning(state: EngineState) -> bool:
    """Before the recovery has ended most of the status is not known."""
    return state in (EngineState.STARTING, EngineState.RECOVERING)


def event_views(events: Sequence[Event]) -> list[EventView]:
    """Newest first; a long key is cut."""
    views = []
    for event in reversed(events):
        key = quote_from_bytes(event.key[:KEY_SHOWN_CHARS])
        if len(event.key) > KEY_SHOWN_CHARS or len(key) > KEY_SHOWN_CHARS:
            key = key[:KEY_SHOWN_CHARS] + "…"
        views.append(
            EventView(event.time, event.kind, event.namespace, key, event.reason.replace("_", " "), event.size_bytes)
        )
    return views


# -- charts -----------------------------------------------------------------------------------------------------------


def charts(samples: Sequence[Sample], now: float, *, curves: bool = True) -> list[Chart]:
    """Each says in words what its curve shows; the curves themselves only if they are asked for."""
    last = samples[-1] if samples and now - samples[-1].at < 5 * SAMPLE_SECONDS else None
    total = None if last is None else last.reads_per_second + last.writes_per_second
    reads, writes = (None, None) if last is None else (last.reads_per_second, last.writes_per_second)
    highest = max((s.reads_per_second + s.writes_per_second for s in samples), default=0.0)
    ratios = [s.hit_ratio for s in samples if s.hit_ratio is not None]
    slowest = [s.get_p99_seconds for s in samples if s.get_p99_seconds is not None]
    median, tail = (None, None) if last is None else (last.get_p50_seconds, last.get_p99_seconds)
    hit_ratio = None if last is None else last.hit_ratio
    drawn = samples if curves else []
    return [
        Chart(
            "requests",
            "Requests",
            rate_text(total),
            "a second",
            [("reads", rate_text(reads)), ("writes", rate_text(writes))],
            f"at most {rate_text(highest)} a second" if samples else "nothing measured yet",
            lines([lambda s: s.reads_per_second, lambda s: s.writes_per_second], drawn, now),
        ),
        Chart(
            "hits",
            "Hit ratio",
            share_text(hit_ratio),
            "of lookups",
            [],
            f"between {share_text(min(ratios))} and {share_text(max(ratios))}" if ratios else "no lookups yet",
            lines([lambda s: s.hit_ratio], drawn, now, top=1.0),
        ),
        Chart(
            "latency",
            "GET latency",
            latency_text(tail),
            "99th percentile",
            [("median", latency_text(median)), ("p99", latency_text(tail))],
            f"at most {latency_text(max(slowest))}" if slowest else "no reads yet",
            lines([lambda s: s.get_p50_seconds, lambda s: s.get_p99_seconds], drawn, now),
        ),
    ]


Reading = Callable[[Sample], float | None]


def lines(
    readings: Sequence[Reading], samples: Sequence[Sample], now: float, top: float | None = None
) -> list[list[str]]:
    """For each reading the points of its polylines, in a box of ``CHART_WIDTH`` x ``CHART_HEIGHT``.

    All readings share the scale; a line is broken where nothing was measured.
    """
    values = [value for reading in readings for sample in samples if (value := reading(sample)) is not None]
    highest = top or max(values, default=0.0) or 1.0
    first = samples[0].at if samples else now
    span = min(max(now - first, SPAN_MIN_SECONDS), SPAN_MAX_SECONDS)
    return [_broken_line(reading, samples, now, span, highest) for reading in readings]


def _broken_line(reading: Reading, samples: Sequence[Sample], now: float, span: float, highest: float) -> list[str]:
    pieces: list[list[str]] = [[]]
    for sample in samples:
        value = reading(sample)
        x = CHART_WIDTH * (1 - (now - sample.at) / span)
        if value is None or x < 0:
            pieces.append([])
        else:
            y = (CHART_HEIGHT - 2) * (1 - value / highest) + 1
            pieces[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(piece) for piece in pieces if len(piece) > 1]
