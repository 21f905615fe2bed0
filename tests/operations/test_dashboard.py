"""The dashboard's JSON, as Grafana reads it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from metrics.dashboard import DASHBOARD, GRID_WIDTH, dashboard_json, queries


def document() -> dict[str, Any]:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_the_file_is_as_generated() -> None:
    assert DASHBOARD.read_text(encoding="utf-8") == dashboard_json(), "run: make docs"


def lost(wanted: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Places of a document that another one does not have, or has otherwise."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for name, value in wanted.items():
            if value is not None:
                yield from lost(value, kept.get(name), f"{place}/{name}")
    elif isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        for index, (one, other) in enumerate(zip(wanted, kept, strict=True)):
            yield from lost(one, other, f"{place}/{index}")
    elif wanted != kept:
        yield place


def as_grafana_keeps_it(found: dict[str, Any]) -> Any:
    """Through Grafana's own model of dashboards, panels and Prometheus queries, made from its schemas, and back."""
    plugins.register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(found).to_json(), default=lambda part: part.to_json()))


def test_grafana_knows_every_field() -> None:
    found = document()
    assert list(lost(found, as_grafana_keeps_it(found))) == []
    # And one that it doesn't know would be seen.
    number, panel = next((n, p) for n, p in enumerate(found["panels"]) if p["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["custom"]["fillOpacityy"] = 1
    assert list(lost(found, as_grafana_keeps_it(found))) == [
        f"/panels/{number}/fieldConfig/defaults/custom/fillOpacityy"
    ]


def test_what_grafana_needs_to_provision_it() -> None:
    found = document()
    assert found["uid"] == "rawblockd"
    assert found["title"] == "rawblockd"
    assert isinstance(found["schemaVersion"], int)
    assert found["id"] is None, "an id of one Grafana would overwrite another dashboard elsewhere"
    variables = {variable["name"]: variable for variable in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["instance"]["query"]["query"] == "label_values(rawblockd_build_info, instance)"
    assert (variables["instance"]["multi"], variables["instance"]["includeAll"]) == (True, True)


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = document()["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_WIDTH, panel["title"]
        own = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not own & cells, f"{panel['title']} lies on another panel"
        cells |= own


def test_the_rows_an_operator_looks_for() -> None:
    rows = [panel["title"] for panel in document()["panels"] if panel["type"] == "row"]
    assert rows == ["Now", "Golden signals", "Capacity", "Durability and recovery", "Device", "Event stream"]


def test_each_query_follows_the_variables() -> None:
    panels = [panel for panel in document()["panels"] if panel["type"] != "row"]
    targets = [target for panel in panels for target in panel["targets"]]
    assert len(targets) == len(list(queries())) > 50
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert [target["refId"] for target in panel["targets"]] == sorted({t["refId"] for t in panel["targets"]})
    for target in targets:
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert '{instance=~"$instance"' in target["expr"]
        assert "rate(" not in target["expr"] or "[$__rate_interval]" in target["expr"], target["expr"]
