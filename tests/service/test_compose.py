"""compose.yaml: valid, complete, and not open to anybody; what it gives to Prometheus and Grafana is what they read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rawblockd.settings import ENVIRONMENT_PREFIX, Settings
from rawblockd.settings_sources import load_settings
from tests.service.dockerfile import DATA, ROOT, environment, stages

COMPOSE = ROOT / "compose.yaml"
RULES, DASHBOARD = "./metrics/alerts.yml", "./metrics/dashboard.json"


def document(path: Path = COMPOSE) -> Any:
    return yaml.safe_load(path.read_text())


def service(name: str) -> dict[str, Any]:
    found = document()["services"][name]
    assert isinstance(found, dict)
    return found


def mounts(name: str) -> dict[str, str]:
    """Source → place in the container."""
    return dict(volume.split(":")[:2] for volume in service(name)["volumes"])


def schema_says(path: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [str(tool), "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_compose_specification_accepts_it() -> None:
    result = schema_says(COMPOSE)
    assert result.returncode == 0, result.stdout


def test_the_schema_would_see_a_mistake(tmp_path: Path) -> None:
    worse = tmp_path / "compose.yaml"
    worse.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_graceful_period"))
    result = schema_says(worse)
    assert result.returncode != 0
    assert "stop_graceful_period" in result.stdout


def test_every_mounted_file_and_volume_exists() -> None:
    for name in document()["services"]:
        for source in mounts(name):
            if source.startswith("."):
                assert (ROOT / source).is_file(), source
            else:
                assert source in document()["volumes"], source


def test_rules_and_dashboard_are_ours() -> None:
    rules = mounts("prometheus")[RULES]
    assert document(ROOT / "compose" / "prometheus.yml")["rule_files"] == [rules]
    folder = document(ROOT / "compose" / "grafana" / "dashboards.yml")["providers"][0]["options"]["path"]
    dashboard = mounts("grafana")[DASHBOARD]
    assert str(Path(dashboard).parent) == folder
    assert service("grafana")["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    assert json.loads((ROOT / DASHBOARD).read_text())["panels"]
    places = mounts("grafana").values()
    assert "/etc/grafana/provisioning/datasources/rawblockd.yml" in places
    assert "/etc/grafana/provisioning/dashboards/rawblockd.yml" in places


def test_they_find_each_other() -> None:
    (scrape,) = document(ROOT / "compose" / "prometheus.yml")["scrape_configs"]
    ((target,),) = [one["targets"] for one in scrape["static_configs"]]
    assert target == f"rawblockd:{Settings.model_fields['port'].default}"
    assert "rawblockd" in service("rawblockd")["environment"]["RAWBLOCKD_ALLOWED_HOSTS"].split(",")
    assert f'job="{scrape["job_name"]}"' in (ROOT / RULES).read_text(), "the rules ask for the job by its name"
    (source,) = document(ROOT / "compose" / "grafana" / "datasources.yml")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    text = (ROOT / "compose" / "prometheus.yml").read_text()
    config.write_text(text.replace(mounts("prometheus")[RULES], str(ROOT / RULES)))
    result = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ports_are_published_on_loopback_alone() -> None:
    published = [port for name in document()["services"] for port in service(name)["ports"]]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published), "there are no tokens"


@pytest.mark.parametrize("name", ["rawblockd", "prometheus", "grafana"])
def test_no_container_may_more_than_it_needs(name: str) -> None:
    one = service(name)
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in one
    assert one.get("user", "") != "root"


def test_the_daemon_accepts_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the image and compose set together is what ``serve`` reads: names, values, and access said explicitly."""
    one = service("rawblockd")
    _, stage = stages()
    together = environment(stage) | one["environment"]
    for name, value in together.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.setenv(name, value)
    settings = load_settings({})
    assert settings.host == "0.0.0.0"
    assert settings.allow_open_access
    assert settings.token_file is None
    assert settings.create
    assert str(settings.device).startswith(mounts("rawblockd")["data"])
    assert mounts("rawblockd")["data"] == DATA
    grace, unit = one["stop_grace_period"][:-1], one["stop_grace_period"][-1]
    assert unit == "m"
    assert int(grace) * 60 > settings.drain_timeout_seconds
