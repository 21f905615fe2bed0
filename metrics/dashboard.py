"""The Grafana dashboard ``metrics/dashboard.json``, made of the panels of ``panels`` (``make docs`` writes it).

Places on the grid, ids and the many defaults of Grafana's JSON are filled in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metrics.panels import ROWS, Panel

DASHBOARD = Path(__file__).parent / "dashboard.json"
SCHEMA_VERSION = 39
"""Of Grafana 10 and 11; newer ones migrate it when they load it."""
GRID_WIDTH = 24

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

CALM, ALARM = "green", "red"


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports or provisions it."""
    return {
        "uid": "rawblockd",
        "title": "rawblockd",
        "description": "A persistent key-value cache on a raw block device.",
        "tags": ["rawblockd"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "id": None,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def dashboard_json() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def queries() -> Iterator[tuple[str, str]]:
    """(title of the panel, query) of every query."""
    for panels in ROWS.values():
        for panel in panels:
            for query in panel.queries.values():
                yield panel.title, query


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source", "hide": 0}
    yield {
        "name": "instance",
        "type": "query",
        "label": "Instance",
        "datasource": DATASOURCE,
        "query": {"query": "label_values(rawblockd_build_info, instance)", "refId": "instance"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Rows from top to bottom, in each its panels from left to right."""
    number = y = 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1},
            "panels": [],
        }
        y += 1
        x = line_height = 0
        for panel in panels:
            if x + panel.width > GRID_WIDTH:
                x, y, line_height = 0, y + line_height, 0
            number += 1
            yield _panel(panel, number, x, y)
            x += panel.width
            line_height = max(line_height, panel.height)
        y += line_height


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query,
            "legendFormat": legend,
            "editorMode": "code",
            "instant": panel.kind == "stat",
            "range": panel.kind != "stat",
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": targets,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": CALM, "value": None}]
    if panel.alarm_at is not None:
        steps.append({"color": ALARM, "value": panel.alarm_at})
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.highest is not None:
        defaults["max"] = panel.highest
    if panel.names:
        words = {value: {"text": word, "index": index} for index, (value, word) in enumerate(panel.names.items())}
        defaults["mappings"] = [{"type": "value", "options": words}]
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.alarm_at is not None else "off"},
        }
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        shows_name = "{{instance}}" not in panel.queries
        return {
            "colorMode": "background" if panel.alarm_at is not None else "none",
            "graphMode": "none",
            "textMode": "name" if shows_name else "value",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
