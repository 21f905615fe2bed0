"""The alert rules: what promtool says of them, and that each is tested both ways and explained in the runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rawblockd.command_line import MODULES
from rawblockd.settings import Settings
from storage.counters import PUT_REJECTIONS
from storage.status import Reason
from tests.operations.expressions import selectors

ROOT = Path(__file__).parents[2]
RULES = ROOT / "metrics" / "alerts.yml"
RULE_TESTS = sorted(RULES.parent.glob("alerts_*_test.yml"))
DURABILITY_TESTS = RULES.parent / "alerts_durability_test.yml"
RUNBOOK = ROOT / "docs" / "runbook.md"
NO_SETTINGS = {"memory_full_bytes", "duration_seconds", "too_many_connections"}
"""Names in the runbook that look like settings: fields of the status, codes of errors."""
RUNBOOK_URL = "https://rawblockd.example/docs/runbook.md#"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments: str | Path) -> str:
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    return f"{result.returncode}\n{result.stdout}{result.stderr}"


def anchor(heading: str) -> str:
    """As the usual renderers of Markdown make it."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def sections() -> dict[str, str]:
    """Anchor of each heading of the runbook → the text below it, up to the next heading of that level or above."""
    parts = re.split(r"^(##+) (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {anchor(title): text for title, text in zip(parts[2::3], parts[3::3], strict=True)}


def test_promtool_accepts_the_rules() -> None:
    assert promtool("check", "rules", RULES).startswith("0\n")


def test_the_rules_pass_their_tests() -> None:
    assert len(RULE_TESTS) >= 4
    said = promtool("test", "rules", *RULE_TESTS)
    assert said.startswith("0\n"), said


def test_a_rule_that_is_not_the_one_tested_fails_its_test(tmp_path: Path) -> None:
    """The promtool tests can fail: a rule with another threshold is seen, and so is another text."""
    for name, changed in {
        "threshold": RULES.read_text().replace(
            "rawblockd_journal_used_ratio > 0.97", "rawblockd_journal_used_ratio > 2"
        ),
        "text": RULES.read_text().replace("entries were skipped and are kept", "entries were dropped and are not kept"),
    }.items():
        assert changed != RULES.read_text()
        folder = tmp_path / name
        folder.mkdir()
        (folder / RULES.name).write_text(changed)
        (folder / DURABILITY_TESTS.name).write_text(DURABILITY_TESTS.read_text())
        assert promtool("test", "rules", folder / DURABILITY_TESTS.name).startswith("1\n"), name


def test_each_alert_is_tested_firing_and_not_firing() -> None:
    firing: set[str] = set()
    quiet: set[str] = set()
    for file in RULE_TESTS:
        for group in yaml.safe_load(file.read_text())["tests"]:
            for case in group["alert_rule_test"]:
                (firing if case["exp_alerts"] else quiet).add(case["alertname"])
    names = {rule["alert"] for rule in rules()}
    assert names - firing == set(), "no test in which they fire"
    assert names - quiet == set(), "no test in which they don't fire"
    assert firing | quiet == names, "tests of alerts that are no more"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Rawblockd[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("page", "ticket")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    assert notes["runbook_url"] == RUNBOOK_URL + anchor(rule["alert"])
    text = sections()[anchor(rule["alert"])]
    for part in ("**Means.**", "**Look at.**", "**Do.**"):
        assert part in text, f"the runbook's section {rule['alert']} has no {part}"
    assert "`" in text.partition("**Look at.**")[2], "no command to look with"
    assert text.startswith(f"\n\n**Means.** ({rule['labels']['severity']}) ")


def test_the_runbook_speaks_of_no_alert_that_is_not_there() -> None:
    named = set(re.findall(r"\bRawblockd[A-Z]\w+", RUNBOOK.read_text()))
    assert named == {rule["alert"] for rule in rules()}


def test_the_runbook_knows_each_reason_to_be_degraded_or_read_only() -> None:
    text = sections()["rawblockddegraded"] + sections()["rawblockdreadonly"]
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_the_runbook_knows_each_reason_for_which_puts_are_refused() -> None:
    """Those of which the alert tells; the others are the client's, or what was asked for."""
    (rule,) = [rule for rule in rules() if rule["alert"] == "RawblockdPutsRejected"]
    ((_, matchers), *_) = selectors(rule["expr"])
    told = [reason for reason in PUT_REJECTIONS if all(matcher.matches(reason) for matcher in matchers)]
    assert "full" in told
    assert "key_invalid" not in told
    assert [reason for reason in told if f"`{reason}`" not in sections()["rawblockdputsrejected"]] == []


def test_the_runbook_names_commands_and_settings_that_there_are() -> None:
    text = RUNBOOK.read_text()
    commands = set(re.findall(r"`(?:[^`\n]*; )?rawblockd ([a-z]+)", text))
    assert {"status", "recovery", "repair", "copies"} <= commands
    assert commands <= set(MODULES)
    # Metrics are looked for in a live scrape.
    settings = re.findall(r"`(?!rawblockd_)([a-z_]+_(?:bytes|bytes_per_second|seconds|connections|durability))`", text)
    assert {"buffer_bytes", "wait_timeout_seconds", "max_connections"} <= set(settings)
    fields = set(Settings.model_fields)
    assert [name for name in settings if name not in fields and name not in NO_SETTINGS] == []


def test_partial_recovery_wakes_somebody_at_once() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "RawblockdPartialRecovery"]
    assert rule["labels"]["severity"] == "page"
    assert "for" not in rule
