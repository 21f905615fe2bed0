"""Tables and plot of ``bench.hit_ratio``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Row:
    """Pairs are of clock and s3fifo. Ratios are shares of requests."""

    trace: str
    requests: int
    footprint: int
    share: float
    entries: tuple[float, float]
    lru: tuple[float, float]
    engine: tuple[float, float]
    reference: tuple[float, float]


@dataclass(frozen=True, slots=True)
class MixedRow:
    """Pairs are of requests and bytes."""

    trace: str
    policy: str
    slot_bytes: float
    engine: tuple[float, float]
    reference: tuple[float, float]
    lru: tuple[float, float]


def write_page(page: Path, rows: Sequence[Row], mixed: Sequence[MixedRow]) -> None:
    """Put the tables between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` of the page."""
    text = page.read_text()
    for name, lines in (("hit ratios", _table(rows)), ("sizes", _mixed_table(mixed)), ("verdict", _verdict(rows))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, rest = text.split(begin)
        text = head + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    page.write_text(text)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}"


def _points(engine: float, reference: float) -> str:
    return f"{100 * (engine - reference):+.2f}"


def _table(rows: Iterable[Row]) -> list[str]:
    lines = [
        "| trace | requests | keys | entries held | LRU | clock | reference | apart | s3fifo | reference | apart |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [row.trace, f"{row.requests:,}", f"{row.footprint:,}", f"{row.entries[1]:,.0f}", _percent(row.lru[1])]
        for engine, reference in zip(row.engine, row.reference, strict=True):
            cells += [_percent(engine), _percent(reference), _points(engine, reference)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _mixed_table(rows: Iterable[MixedRow]) -> list[str]:
    lines = [
        "| trace | policy | bytes of slots held | requests hit | reference | LRU | bytes hit | reference | LRU |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [row.trace, row.policy, f"{row.slot_bytes / (1 << 20):,.0f} MiB"]
        for which in (0, 1):
            cells += [_percent(row.engine[which]), _percent(row.reference[which]), _percent(row.lru[which])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _verdict(rows: Sequence[Row]) -> list[str]:
    apart = max(abs(e - r) for row in rows for e, r in zip(row.engine, row.reference, strict=True))
    default = EngineOptions().eviction.value
    position = ("clock", "s3fifo").index(default)
    better = sum(row.engine[position] > row.lru[position] for row in rows)
    mean = [100 * sum(row.engine[which] for row in rows) / len(rows) for which in (0, 1)]
    mean_lru = 100 * sum(row.lru[1] for row in rows) / len(rows)
    return [
        f"No run is further than {100 * apart:.2f} percentage points from its reference.",
        f"The default, `{default}`, has more hits than LRU in {better} of {len(rows)} runs.",
        f"In the mean of the runs `clock` hits {mean[0]:.2f} %, `s3fifo` {mean[1]:.2f} %, LRU {mean_lru:.2f} %.",
    ]


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 360, 50, 50, 40
COLOURS = {"LRU": "#9aa5b1", "clock": "#4c78a8", "s3fifo": "#f58518"}


def write_plot(path: Path, rows: Sequence[Row]) -> None:
    """Bars of LRU, clock and s3fifo for each trace; a line across a bar is its reference."""
    path.parent.mkdir(parents=True, exist_ok=True)
    room = HEIGHT - BOTTOM - TOP
    group = (WIDTH - LEFT - 10) / len(rows)
    bar = group / 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="12">',
        "<title>Hit ratios of LRU, clock and s3fifo</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for percent in range(0, 101, 20):
        y = HEIGHT - BOTTOM - room * percent / 100
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" stroke="#e3e7eb"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#333333">{percent} %</text>')
    for number, row in enumerate(rows):
        left = LEFT + number * group + bar / 2
        ratios = {"LRU": row.lru[1], "clock": row.engine[0], "s3fifo": row.engine[1]}
        references = {"clock": row.reference[0], "s3fifo": row.reference[1]}
        for position, (name, ratio) in enumerate(ratios.items()):
            x, y = left + position * bar, HEIGHT - BOTTOM - room * ratio
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" height="{room * ratio:.1f}" '
                f'fill="{COLOURS[name]}"/>'
            )
            parts.append(
                f'<text x="{x + bar / 2 - 1:.1f}" y="{y - 4:.1f}" text-anchor="middle" font-size="9" '
                f'fill="#333333">{100 * ratio:.1f}</text>'
            )
            if name in references:
                at = HEIGHT - BOTTOM - room * references[name]
                parts.append(
                    f'<line x1="{x - 2:.1f}" y1="{at:.1f}" x2="{x + bar:.1f}" y2="{at:.1f}" stroke="#111111"/>'
                )
        middle = left + 1.5 * bar
        parts.append(
            f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#333333">{row.trace}</text>'
        )
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + number * 90
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="22" fill="#333333">{name}</text>')
    parts.append(f'<line x1="{LEFT + 270}" y1="18" x2="{LEFT + 290}" y2="18" stroke="#111111"/>')
    parts.append(f'<text x="{LEFT + 296}" y="22" fill="#333333">libCacheSim, the same policy</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))
