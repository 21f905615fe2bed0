"""Plots as SVG, readable on light and on dark pages: each brings its own ground and follows the reader's scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH = 860
STYLE = """
.ground { fill: #ffffff } .text { fill: #24292f } .faint { fill: #57606a } .grid { stroke: #d8dee4 }
.mark { stroke: #24292f; stroke-width: 2 } .after { stroke: #24292f; stroke-width: 2; stroke-dasharray: 2 3 }
.good { fill: #2da44e } .bad { fill: #d1570a } .a { fill: #0969da } .b { fill: #bf8700 } .c { fill: #8250df }
.d { fill: #6e7781 } .e { fill: #1b7c83 } .f { fill: #bf3989 } .g { fill: #953800 } .h { fill: #4d7c0f }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117 } .text { fill: #e6edf3 } .faint { fill: #9da7b3 } .grid { stroke: #30363d }
  .mark, .after { stroke: #e6edf3 } .good { fill: #3fb950 } .bad { fill: #f0883e } .a { fill: #58a6ff }
  .b { fill: #d29922 } .c { fill: #bc8cff } .d { fill: #8b949e } .e { fill: #39c5cf } .f { fill: #f778ba }
  .g { fill: #ffa657 } .h { fill: #a3e635 }
}
"""
COLOURS = {
    "rawblockd": "a",
    "fio": "d",
    "nginx": "e",
    "redis": "f",
    "memcached": "c",
    "diskcache": "b",
    "asgi": "g",
    "rawblockd?none": "h",
}
LABELS = {"diskcache": "FastAPI + diskcache", "asgi": "bare ASGI, constant", "rawblockd?none": "rawblockd, none"}


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    figure: float
    shown: str
    colour: str


def write_all(folder: Path, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "performance-targets.svg").write_text(targets_plot(document))
    for operation in ("get", "put"):
        (folder / f"performance-{operation}.svg").write_text(contenders_plot(document, operation))


def targets_plot(document: dict[str, Any]) -> str:
    """How far each figure of the table is: 1 is the target, a dotted line what comes after it."""
    lines = document["targets"]
    left, top, step = 330, 56, 24
    height = top + step * len(lines) + 40
    room = WIDTH - left - 70
    most = 2.5
    parts = [
        _text(
            16,
            26,
            "Figures by their targets: 1 is reached, more is better; dotted is what we are after",
            "text",
            size=15,
        )
    ]
    for tick in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        x = left + room * tick / most
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{height - 30}"/>')
        parts.append(_text(x, height - 14, f"{tick:g}", "faint", anchor="middle"))
    for number, line in enumerate(lines):
        y = top + step * number
        reached = _reached(line)
        colour = "good" if reached >= 1 else "bad"
        width = room * min(reached, most) / most
        parts.append(
            _text(left - 10, y + 12, f"{line['row']}  {_plain(line['what'])}  {_against(line)}", "text", anchor="end")
        )
        parts.append(f'<rect class="{colour}" x="{left}" y="{y}" width="{width:.1f}" height="16" rx="2"/>')
        parts.append(_text(left + width + 6, y + 12, f"{reached:.2f}", "text"))
        if line["after"] is not None:
            x = left + room * min(_after(line), most) / most
            parts.append(f'<line class="after" x1="{x:.1f}" y1="{y - 2}" x2="{x:.1f}" y2="{y + 18}"/>')
    x = left + room / most
    parts.append(f'<line class="mark" x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{height - 30}"/>')
    return _document("Figures by their targets", height, parts)


def contenders_plot(document: dict[str, Any], operation: str) -> str:
    """Requests per second of all contenders by size of the value, on a logarithmic scale."""
    groups: list[tuple[str, list[Bar]]] = []
    for series in document["series"]:
        if series["operation"] != operation or series["values"] > 1 or series["connections"] != 32:
            continue
        bars = []
        for name, contender in series["contenders"].items():
            if name in COLOURS:
                rate = float(contender["median"]["rate"])
                bars.append(Bar(LABELS.get(name, name), rate, _short(rate), COLOURS[name]))
        groups.append((series["title"], bars))
    return _grouped_bars(f"{operation.upper()}: requests per second, 32 connections, logarithmic", groups)


def _grouped_bars(title: str, groups: Sequence[tuple[str, list[Bar]]]) -> str:
    left, top, room, height = 56, 92, 260, 400
    legend = {bar.label: bar.colour for _, bars in groups for bar in bars}
    parts = [_text(16, 26, title, "text", size=15)]
    x = 16.0
    for label, colour in legend.items():
        parts.append(f'<rect class="{colour}" x="{x:.0f}" y="44" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 17, 54, label, "text"))
        x += 34 + 6.6 * len(label)
    figures = [bar.figure for _, bars in groups for bar in bars if bar.figure > 0]
    if not figures:
        return _document(title, height, [*parts, _text(16, 100, "not measured", "faint")])
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    high = max(high, low + 1)
    for power in range(low, high + 1):
        y = top + room - room * (power - low) / (high - low)
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, _short(10.0**power), "faint", anchor="end"))
    slots = sum(len(bars) + 1 for _, bars in groups)
    width = (WIDTH - left - 10) / slots
    x = left + width / 2
    for name, bars in groups:
        middle = x + width * len(bars) / 2
        for bar in bars:
            tall = room * (math.log10(max(bar.figure, 10.0**low)) - low) / (high - low)
            y = top + room - tall
            shape = f'x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{tall:.1f}"'
            parts.append(f'<rect class="{bar.colour}" {shape} rx="1"/>')
            parts.append(_text(x + width / 2 - 1, y - 4, bar.shown, "text", anchor="middle", size=10))
            x += width
        parts.append(_text(middle, top + room + 22, name, "text", anchor="middle"))
        x += width
    return _document(title, height, parts)


def _reached(line: dict[str, Any]) -> float:
    share = float(line["median"]) / float(line["at_least"])
    return 1 / share if line["lower_is_better"] and share else share


def _after(line: dict[str, Any]) -> float:
    share = float(line["after"]) / float(line["at_least"])
    return 1 / share if line["lower_is_better"] else share


AGAINST = {
    1: "by fio",
    2: "by fio",
    3: "by bare ASGI",
    4: "by FastAPI + diskcache",
    5: "by fio",
    6: "by nginx",
    7: "by nginx",
    8: "by redis",
    9: "start",
    10: "memory",
    11: "p99 at checkpoint",
    12: "checkpoint bytes",
    13: "journal by none",
    14: "p50 by executor",
}


def _against(line: dict[str, Any]) -> str:
    return AGAINST[line["row"]]


def _plain(text: str) -> str:
    return text.replace("`", "")


def _short(figure: float) -> str:
    for size, name in ((1e6, "M"), (1e3, "k")):
        if figure >= size:
            return f"{figure / size:.3g}{name}"
    return f"{figure:.3g}"


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start", size: int = 12) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escaped}</text>'


def _document(title: str, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>", ""])
