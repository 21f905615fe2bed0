"""A live daemon scraped by a real Prometheus: what rules, dashboard and docs name is what it exports."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from metrics.dashboard import queries
from metrics.reference import OPEN_LABELS
from tests.operations.expressions import grouping_labels, metric_names, selectors
from tests.operations.prometheus import Prometheus
from tests.support.daemon_process import DaemonProcess

ROOT = Path(__file__).parents[2]
RULES = ROOT / "metrics" / "alerts.yml"
REFERENCE = ROOT / "docs" / "metrics.md"
ADDED_BY_PROMETHEUS = {"instance", "job"}

EMPTY_WHILE_ALL_IS_WELL = {("code", "5.."): "no request has failed"}
"""(label, pattern) of matchers that find nothing on a healthy daemon, and why."""

MACROS = {"$__rate_interval": "1m", "$__range": "5m", "$instance": ".+"}


class Live:
    """A daemon with some traffic behind it, and the Prometheus that watched."""

    def __init__(self, daemon: DaemonProcess, prometheus: Prometheus) -> None:
        self.daemon = daemon
        self.prometheus = prometheus
        self._round = 0

    def traffic(self) -> None:
        """Something of everything a client and an operator do."""
        self._round += 1
        for method, path, body, expected in (
            ("PUT", f"/v1/kv/demo/{self._round}", b"value", 201),
            ("GET", f"/v1/kv/demo/{self._round}", None, 200),
            ("GET", "/v1/kv/demo/missing", None, 404),
            ("DELETE", f"/v1/kv/demo/{self._round - 1}", None, 204 if self._round > 1 else 404),
            ("POST", "/v1/checkpoint", b"", 200),
        ):
            code, answer = self.daemon.request(method, path, body)
            assert code == expected, (method, path, answer)

    def page(self) -> str:
        code, body = self.daemon.get("/metrics")
        assert code == 200
        return body.decode()

    def samples(self) -> dict[str, list[dict[str, str]]]:
        """Name of each sample → the labels of its series."""
        found: dict[str, list[dict[str, str]]] = {}
        for family in self.families():
            for sample in family.samples:
                found.setdefault(sample.name, []).append(dict(sample.labels))
        return found

    def families(self) -> list[Metric]:
        return list(text_string_to_metric_families(self.page()))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with DaemonProcess(folder / "log", "--device", str(folder / "device"), "--create", "--size", "64MiB") as daemon:
        daemon.wait_ready()
        with Prometheus(folder / "prometheus", daemon.port, RULES.read_text()) as prometheus:
            found = Live(daemon, prometheus)
            prometheus.wait_for("first scrape", lambda: bool(prometheus.query("rawblockd_ready == 1")))

            def counted() -> bool:
                found.traffic()
                counts = ("rawblockd_http_requests_total", "rawblockd_lookups_total", "rawblockd_checkpoints_total")
                return all(prometheus.query(f"sum(rate({count}[1m])) > 0") for count in counts)

            prometheus.wait_for("traffic in the scrapes", counted)
            yield found


def expressions() -> Iterator[tuple[str, str]]:
    """(where, expression) of every rule and every panel."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    yield from queries()


def test_promtool_finds_nothing_to_say_about_the_page(live: Live) -> None:
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=live.page(), capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_each_metric_that_is_named_is_exported(live: Live) -> None:
    exported = {name for family in live.families() for name in (family.name, *(s.name for s in family.samples))}
    texts = {path.relative_to(ROOT): path.read_text() for path in (RULES, *ROOT.glob("docs/*.md"), ROOT / "README.md")}
    for where, text in [*texts.items(), *queries()]:
        missing = metric_names(text) - exported
        assert not missing, f"{where} names {sorted(missing)}, which a live daemon does not export"


def test_each_label_that_is_named_is_exported(live: Live) -> None:
    """Names of labels, and that a matcher finds something: a value that's misspelt makes an alert that never fires."""
    samples = live.samples()
    for where, expression in expressions():
        labels = set(ADDED_BY_PROMETHEUS)
        for name, matchers in selectors(expression):
            own = {label for series in samples[name] for label in series}
            labels |= own
            for matcher in matchers:
                if matcher.label in ADDED_BY_PROMETHEUS:
                    continue
                assert matcher.label in own, f"{where}: {name} has no label {matcher.label}"
                values = {series[matcher.label] for series in samples[name]}
                if (matcher.label, matcher.value) not in EMPTY_WHILE_ALL_IS_WELL:
                    assert any(map(matcher.matches, values)), f"{where}: {matcher} finds none of {sorted(values)}"
        unknown = grouping_labels(expression) - labels
        assert not unknown, f"{where} groups by {sorted(unknown)}, which none of its metrics has"


def test_each_exported_metric_is_documented(live: Live) -> None:
    rows = {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)` \| .*$", REFERENCE.read_text(), re.MULTILINE)}
    for family in live.families():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name in rows, f"{name} is exported and not documented: run `make docs`"
        row = rows[name]
        assert f"| {family.type} |" in row, f"docs/metrics.md has another type for {name}: run `make docs`"
        assert family.documentation in row, f"docs/metrics.md has another text for {name}: run `make docs`"
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label == "le":
                    continue
                assert f"`{label}`: " in row, (
                    f"docs/metrics.md does not know the label {label} of {name}: it must be in the picture that "
                    "rawblockd/metrics_document.py makes the page from"
                )
                assert label in OPEN_LABELS or f"`{value}`" in row, (
                    f'docs/metrics.md does not know {name}{{{label}="{value}"}}: run `make docs`, or name the label in '
                    "OPEN_LABELS of metrics/reference.py"
                )
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in live.families()}
    assert set(rows) == exported, "docs/metrics.md has metrics that are not exported"


def test_each_query_of_the_dashboard_finds_data(live: Live) -> None:
    for title, query in queries():
        for macro, value in MACROS.items():
            query = query.replace(macro, value)
        assert "$" not in query, f"{title}: a macro that this test does not know"
        found = live.prometheus.query(query)
        assert found, f"{title}: nothing found by {query}"
        values = [float(series["value"][1]) for series in found]
        # Before the first full pass of verification there is no age of it.
        assert "last_pass_age" in query or not any(map(math.isnan, values)), f"{title}: {query} is not a number"


def test_prometheus_evaluates_the_rules_and_no_alert_fires(live: Live) -> None:
    def all_evaluated() -> bool:
        return all(rule["lastEvaluation"] > "1970" and rule["health"] != "unknown" for rule in live.prometheus.rules())

    live.prometheus.wait_for("evaluation of all rules", all_evaluated)
    for rule in live.prometheus.rules():
        assert rule["health"] == "ok", rule
    # A busy machine may miss a scrape now and then.
    live.prometheus.wait_for(
        "no alert", lambda: live.prometheus.alerts("firing") | live.prometheus.alerts("pending") == set()
    )
