"""The tables of ``docs/performance.md``, between marks; what people write around them stays.

``python -m bench.service.report`` makes tables and plots anew from ``docs/performance.json``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.service import plots, results
from bench.service.targets import TITLES
from bench.service.units import amount, ratio, thousands
from bench.service.work import SIZE_NAMES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
DOCUMENT = ROOT / "docs" / "performance.json"
IMAGES = ROOT / "docs" / "images"

NAMES = {
    "fio": "fio",
    "rawblockd": "rawblockd",
    "rawblockd?none": "rawblockd, `none`",
    "rawblockd?flush": "rawblockd, `flush`",
    "nginx": "nginx",
    "redis": "redis",
    "memcached": "memcached",
    "diskcache": "FastAPI + diskcache",
    "asgi": "bare ASGI, constant",
    "executor": "bare ASGI + executor",
    "engine": "rawblockd's engine",
    "lmcache": "LMCache raw block",
}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, left: int = 1) -> list[str]:
    """Markdown; the first columns stand to the left, figures to the right."""
    heads = list(heads)
    marks = ["---" if number < left else "--:" for number in range(len(heads))]
    return [f"| {' | '.join(cells)} |" for cells in (heads, marks, *map(list, rows))]


def targets(document: dict[str, Any]) -> list[str]:
    rows, previous = [], 0
    for line in document["targets"]:
        title = TITLES[line["row"]] if line["row"] != previous else ""
        number = str(line["row"]) if line["row"] != previous else ""
        previous = line["row"]
        sign = "≤" if line["lower_is_better"] else "≥"
        unit = f" {line['unit']}" if line["unit"] else ""
        after = "" if line["after"] is None else f" ({line['after']:g})"
        figure = ratio(line["median"])
        spread = ""
        if len(line["by_repetition"]) > 1:
            spread = f"{ratio(min(line['by_repetition']))} – {ratio(max(line['by_repetition']))}"
        cells = [
            number,
            title,
            line["what"],
            f"**{figure}**{unit}",
            spread,
            f"{sign} {line['at_least']:g}{after}{unit}",
        ]
        rows.append([*cells, line["verdict"], line["ours"], line["theirs"]])
    heads = ["#", "work", "", "median", "from – to", "at least (after)", "verdict", "rawblockd", "the other"]
    return table(heads, rows, left=3)


def verdict(document: dict[str, Any]) -> list[str]:
    """How many were reached, and each that was not, by name."""
    lines = document["targets"]
    below = [line for line in lines if line["verdict"].startswith("below")]
    rows = {line["row"] for line in lines}
    missing = sorted(set(TITLES) - rows)
    text = [f"{len(lines) - len(below)} of {len(lines)} figures reach their target."]
    for line in below:
        target = f"{line['at_least']:g}"
        figure = f"{ratio(line['median'])} of {target} {line['unit']}".rstrip()
        text.append(f"- **Below**, row {line['row']}, {TITLES[line['row']]}, {line['what']}: {figure}.")
    if missing:
        text.append(f"- Not measured in this run: rows {', '.join(map(str, missing))}.")
    if problems := document["problems"]:
        text += [f"- Failed: {problem}" for problem in problems]
    return text


def conditions(document: dict[str, Any]) -> list[str]:
    machine, how = document["machine"], document["conditions"]
    huge = (
        "with huge-page buffers"
        if how["huge_pages"]
        else "**without** huge-page buffers, so it is slower than it could be"
    )
    text = [
        f"{machine['date']}: {machine['processor']}, {machine['memory']}, {machine['disk']},",
        f"Linux {machine['kernel']}, Python {machine['python']}; {machine['versions']}.",
        f"fio runs {huge}. Network: {how['network']}.",
        f"{how['runs']} repetitions of {how['seconds']:g} s; load average at the start {how['load_average']:.1f}.",
    ]
    if limits := document["generator_limit"]:
        figures = [
            f"{item['operation'].upper()} {SIZE_NAMES[item['size']]} {thousands(item['rate'])}/s" for item in limits
        ]
        text.append(f"The load generator against a server in C that answers from memory: {', '.join(figures)}.")
    return text


def singles(document: dict[str, Any]) -> list[str]:
    """Single values, all contenders, 32 connections."""
    rows = []
    for series in document["series"]:
        if series["values"] > 1 or series["connections"] != 32 or series["operation"] == "mixed":
            continue
        ours = series["contenders"]["rawblockd"]["median"]
        for name, contender in series["contenders"].items():
            middle = contender["median"]
            cpu = f"{middle['cpu_microseconds']:.0f} µs" if middle["cpu_microseconds"] else ""
            rows.append(
                [
                    series["title"] if name == "fio" else "",
                    NAMES[name],
                    amount("rate", middle["rate"]),
                    amount("bytes_per_second", middle["bytes_per_second"]),
                    amount("p50_microseconds", middle["p50_microseconds"]),
                    amount("p99_microseconds", middle["p99_microseconds"]),
                    cpu,
                    "" if name == "rawblockd" else ratio(ours["rate"] / middle["rate"]),
                ]
            )
    return table(["work", "", "requests", "bytes", "p50", "p99", "processor time", "rawblockd by it"], rows, left=2)


def others(document: dict[str, Any]) -> list[str]:
    """Batches, mixed work and other numbers of connections, against fio."""
    rows = []
    for series in document["series"]:
        if series["values"] == 1 and series["connections"] == 32 and series["operation"] != "mixed":
            continue
        contenders = {name: item["median"] for name, item in series["contenders"].items()}
        ours, device = contenders["rawblockd"], contenders["fio"]
        rows.append(
            [
                series["title"],
                str(series["connections"]),
                amount("values_per_second", ours["values_per_second"]),
                amount("bytes_per_second", ours["bytes_per_second"]),
                amount("p50_microseconds", ours["p50_microseconds"]),
                amount("p99_microseconds", ours["p99_microseconds"]),
                amount("values_per_second", device["values_per_second"]),
                ratio(ours["values_per_second"] / device["values_per_second"]),
            ]
        )
    return table(["work", "connections", "values", "bytes", "p50", "p99", "fio", "by fio"], rows)


def full_device(document: dict[str, Any]) -> list[str]:
    rows = []
    for item in document["full_device"]:
        rows.append(
            [
                f"PUT {SIZE_NAMES[item['size']]}",
                amount("rate", item["with_room"]["rate"]),
                amount("rate", item["full"]["rate"]),
                ratio(statistics.median(item["ratios"])),
                amount("p99_microseconds", item["with_room"]["p99_microseconds"]),
                amount("p99_microseconds", item["full"]["p99_microseconds"]),
            ]
        )
    return table(["work", "with room", "full", "by", "p99 with room", "p99 full"], rows)


def restarts(document: dict[str, Any]) -> list[str]:
    rows = []
    for figures in document["restarts"]:
        ready, each, peak = (figures.get(name) for name in ("ready_seconds", "bytes_per_entry", "peak_bytes_per_entry"))
        rows.append(
            [
                f"{int(figures['entries']):,}",
                f"{figures['recovery_seconds']:.2f} s",
                f"{figures['rows_per_second'] / 1e6:.2f} M/s",
                "" if ready is None else f"{ready:.2f} s",
                "" if each is None else f"{each:.0f} B",
                "" if peak is None else f"{peak:.0f} B",
            ]
        )
    heads = ["entries", "recovery", "rows", "process start to ready", "memory per entry", "at its peak"]
    text = table(heads, rows, left=0)
    if found := document["checkpoints"]:
        low, high = min(found["duration_seconds"]), max(found["duration_seconds"])
        share = statistics.median(found["small_share"])
        full, small = (amount("bytes", statistics.median(found[name])) for name in ("full_bytes", "small_bytes"))
        text += [
            "",
            f"A full checkpoint of {found['entries']:,} entries takes {low:.2f} to {high:.2f} s while 32 clients read,",
            f"and writes {full}; with {share:.1%} of the pages changed it writes {small}.",
        ]
    return text


def libraries(document: dict[str, Any]) -> list[str]:
    rows, failures = [], []
    for item in document["in_process"]:
        if item["failure"]:
            failures.append(
                f"- {NAMES.get(item['store'], item['store'])}, {SIZE_NAMES[item['size']]}: {item['failure']}"
            )
            continue
        put, get = statistics.median(item["put"]), statistics.median(item["get"])
        name = NAMES.get(item["store"], item["store"])
        rows.append([SIZE_NAMES[item["size"]], name, amount("rate", put), amount("rate", get)])
    return table(["value", "", "puts", "gets"], rows, left=2) + (["", *failures] if failures else [])


BLOCKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "conditions": conditions,
    "verdict": verdict,
    "targets": targets,
    "single values": singles,
    "batches and more": others,
    "full device": full_device,
    "restarts": restarts,
    "libraries": libraries,
}


def filled(text: str, document: dict[str, Any]) -> str:
    """The page with its tables anew: what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"the page has no place for {name!r}")
        text = head + begin + "\n".join(block(document)) + "\n" + end + rest.partition(end)[2]
    return text


def write_docs(document: dict[str, Any]) -> None:
    """JSON, page and plots."""
    results.write(DOCUMENT, document)
    document = results.read(DOCUMENT)
    PAGE.write_text(filled(PAGE.read_text(), document))
    plots.write_all(IMAGES, document)


def main() -> None:
    write_docs(results.read(DOCUMENT))
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
