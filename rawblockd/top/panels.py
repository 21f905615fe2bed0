"""What the screen says, as lines of text; no colour and no width is needed to read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rawblockd.top.measures import OPERATIONS, Latency
from rawblockd.top.texts import NONE, bar, count_text, duration_text, plain, rate_text, ratio_text, size_text, words
from rawblockd.top.watching import Answer, Happened

EVENTS_IN_OVERVIEW = 5
WIDTH_MIN = 40


@dataclass(frozen=True, slots=True)
class View:
    """What is known when the screen is drawn: the last answer with a status, the last answer at all, the events."""

    known: Answer | None
    newest: Answer | None
    events: Sequence[Happened]
    url: str
    paused: bool
    now: float


Panel = Callable[[View, int], list[str]]


def head(view: View, width: int) -> list[str]:
    """Who the daemon is and how it is; the second line says why."""
    if view.newest is None:
        return [f"{plain(view.url)}: asking ...", ""]
    paused = "  PAUSED" if view.paused else ""
    if view.newest.trouble:
        age = f" (what is below is {duration_text(view.now - view.known.at)} old)" if view.known is not None else ""
        return [f"AWAY{paused}: {plain(view.url)}; trying again{age}"[:width], plain(view.newest.trouble)[:width]]
    status = view.newest.status or {}
    up = duration_text(status["uptime_seconds"])
    line = f"{words(status['state']).upper()}{paused}  up {up}  {status['version']}  {status['device']['path']}"
    return [plain(line)[:width], plain(_why(status))[:width]]


def _why(status: dict[str, Any]) -> str:
    if status["state"] in ("starting", "recovering"):
        return f"recovering its index: {ratio_text(status['recovery']['progress_ratio'])}"
    reasons = [words(reason) for reason in status["reasons"]]
    if status["partial_recovery"]:
        reasons.append(f"{status['skipped_entries']} entries skipped: rawblockd recovery show")
    paused = status["auto_checkpoint"]["paused_reason"]
    if paused:
        reasons.append(f"checkpoints paused ({words(paused)})")
    return "; ".join(reasons) or "nothing needs an operator"


def overview(view: View, width: int) -> list[str]:
    if view.known is None or view.known.status is None:
        return []
    status, rates = view.known.status, view.known.rates
    lines = [
        (
            f"requests    gets {rate_text(rates.gets):<9} puts {rate_text(rates.puts):<9} "
            f"deletes {rate_text(rates.deletes):<9} refused {rate_text(rates.refused)}"
        ),
        f"hit ratio   {ratio_text(rates.hit_ratio):<14} evicted {rate_text(rates.evicted)}",
        f"latency     get {_latency(rates.get_latency)}   put {_latency(rates.put_latency)}",
        _capacity_line(status, width),
        *_upkeep(status, width),
        f"device      {_device_line(view.known)}",
        f"holds       {_holds_line(status['holds'])}",
        "",
        "last events",
    ]
    return lines + [f"  {line}" for line in event_lines(view, width - 2)[:EVENTS_IN_OVERVIEW]]


def _latency(latency: Latency) -> str:
    return f"p50 {duration_text(latency.p50)}, p99 {duration_text(latency.p99)}"


def _capacity_line(status: dict[str, Any], width: int) -> str:
    capacity = status["capacity"]
    ratio = capacity["used_bytes"] / capacity["total_bytes"] if capacity["total_bytes"] else 0.0
    text = f"{size_text(capacity['used_bytes'])} of {size_text(capacity['total_bytes'])}"
    entries = f"{count_text(capacity['slots']['live'])} entries"
    return f"capacity    {bar(ratio, _bar_width(width))} {ratio_text(ratio)}  {text}, {entries}"


def _upkeep(status: dict[str, Any], width: int) -> Iterable[str]:
    journal, checkpoint = status["journal"], status["checkpoint"]
    ratio = journal["used_ratio"]
    yield f"journal     {bar(ratio, _bar_width(width))} {ratio_text(ratio)}  seq {journal['seq']}"
    age = duration_text(checkpoint["age_seconds"]) if checkpoint["written_at"] else NONE
    yield f"checkpoint  {age} old, {checkpoint['dirty_pages']} pages changed since, {checkpoint['failed']} failed"
    slots = status["capacity"]["slots"]
    names = ("free", "limbo", "in_flight", "quarantined", "retired")
    yield "slots       " + ", ".join(f"{words(name)} {count_text(slots[name])}" for name in names)


def _bar_width(width: int) -> int:
    return 22 if width >= 78 else 10


def _device_line(answer: Answer) -> str:
    rates = answer.rates
    parts = [f"{op} {rate_text(rates.io_operations.get(op))}" for op in OPERATIONS]
    moved = [rates.io_bytes[op] for op in ("read", "write") if op in rates.io_bytes]
    return ", ".join(parts) + (f"; {size_text(sum(moved))}/s" if moved else "")


def _holds_line(holds: list[dict[str, Any]]) -> str:
    if not holds:
        return "none"
    slots = sum(hold["slots"] for hold in holds)
    return f"{len(holds)}: {count_text(slots)} slots, {size_text(sum(hold['held_bytes'] for hold in holds))}"


def capacity(view: View, _width: int) -> list[str]:
    """Slot classes that have slabs, and namespaces, largest first."""
    if view.known is None or view.known.status is None:
        return []
    status = view.known.status
    lines = [f"{'slot class':>10} {'slabs':>7} {'live':>8} {'free':>8} {'quarantined':>12}  used"]
    for kind in status["classes"]:
        slots = kind["slots"]
        if kind["slabs"]:
            used = slots["live"] / slots["total"] if slots["total"] else 0.0
            lines.append(
                f"{size_text(kind['slot_bytes']):>10} {kind['slabs']:>7} {count_text(slots['live']):>8} "
                f"{count_text(slots['free']):>8} {slots['quarantined']:>12}  {bar(used, 12)} "
                f"{ratio_text(used)}"
            )
    lines += ["", f"{'entries':>10} {'slots':>10} {'values':>10} {'quota':>10}  namespace"]
    for name, usage in sorted(status["namespaces"].items(), key=lambda item: (-item[1]["used_bytes"], item[0])):
        quota = usage.get("quota_bytes")
        lines.append(
            f"{count_text(usage['entries']):>10} {size_text(usage['used_bytes']):>10} "
            f"{size_text(usage['payload_bytes']):>10} {NONE if quota is None else size_text(quota):>10}  {plain(name)}"
        )
    return lines


def device(view: View, _width: int) -> list[str]:
    if view.known is None or view.known.status is None:
        return []
    status, rates = view.known.status, view.known.rates
    about, copies = status["device"], status["recovery"]["copies"]
    lines = [
        (
            f"{plain(about['path'])}, {size_text(about['size_bytes'])}, {about['io_engine']}, "
            f"{'O_DIRECT' if about['direct_io'] else 'buffered'}, uuid {about['uuid']}"
        ),
        "",
        f"{'':>8} {'rate':>10} {'bytes':>12}  latency",
    ]
    for op in OPERATIONS:
        moved = rates.io_bytes.get(op)
        lines.append(
            f"{op:>8} {rate_text(rates.io_operations.get(op)):>10} "
            f"{NONE if moved is None else size_text(moved) + '/s':>12}  {_latency(rates.io_latency.get(op, Latency()))}"
        )
    lines += ["", "checkpoint copies"]
    for copy in copies:
        age = duration_text(max(0.0, view.now - copy["written_at"])) if copy["written_at"] else NONE
        lines.append(f"  {copy['copy']}: {copy['verdict']}, seq {copy['seq']}, {age} old")
    lines += ["", "holds"]
    lines += [
        f"  {hold['kind']} of {plain(hold['holder'])}: {hold['slots']} slots in {plain(hold['namespace'])}, "
        f"ends in {duration_text(hold['expires_in_seconds'])}"
        for hold in status["holds"]
    ] or ["  none"]
    return lines


def events(view: View, width: int) -> list[str]:
    return event_lines(view, width) or ["no events yet"]


def event_lines(view: View, width: int) -> list[str]:
    """Newest first."""
    return [event_line(happened)[: max(WIDTH_MIN, width)] for happened in reversed(view.events)]


def event_line(happened: Happened) -> str:
    data = happened.data
    at = time.strftime("%H:%M:%S", time.localtime(data["time"])) if "time" in data else "--:--:--"
    what = f"{at} {happened.kind:<8} {plain(data.get('namespace', ''))}"
    if happened.kind == "resync":
        return f"{at} events were missed: {words(data.get('reason', ''))}"
    if "key" in data:
        what += f" {plain(data['key'])}"
    elif "etag" in data:
        what += f" {data['etag']}"
    details = [words(data["reason"])] if "reason" in data else []
    details += [size_text(data["size"])] if "size" in data else []
    return f"{what}  {', '.join(details)}".rstrip()


PANELS: dict[str, Panel] = {"Overview": overview, "Capacity": capacity, "Device": device, "Events": events}
