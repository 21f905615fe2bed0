"""A newcomer's path on an empty machine, with the tools that will be used: install, unit file, daemon, Prometheus, an
alert about a damaged device, the runbook step by step, no alert any more.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.operations.prometheus import Prometheus, free_port, without_patience
from tests.operations.runbook_example import PAGE, comparable, environment, run_step, steps
from tests.operations.shell import Shell

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "rawblockd.service"
INSTALLED = "/opt/rawblockd/bin/rawblockd"
"""Where the unit expects the program."""

SLOW = {"RawblockdSlowDevice", "RawblockdSlowRequests"}
"""What a busy machine sets off; how fast it is isn't the question here."""
SLOW = {"RawblockdSlowDevice", "RawblockdSlowRequests"}
"""What a busy machine sets off; how fast it is isn't the question here."""

PARTIAL = {"RawblockdPartialRecovery", "RawblockdAutoCheckpointPaused", "RawblockdDegraded"}
"""What a partial recovery sets off, and nothing else."""

pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def install(folder: Path) -> Path:
    """Build the wheel and install it with what it needs into an empty environment; the folder of its programs."""
    wheels, home = folder / "wheels", folder / "rawblockd"
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("rawblockd-*.whl")
    venv.create(home)
    lock = str(ROOT / "requirements.lock")
    run(*pip, "--python", str(home / "bin/python"), "install", "--no-compile", "--constraint", lock, str(wheel))
    return home / "bin"


def run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"


def verify_unit(folder: Path, programs: Path) -> None:
    text = UNIT.read_text()
    assert INSTALLED in text
    unit = folder / UNIT.name
    unit.write_text(text.replace(INSTALLED, str(programs / "rawblockd")))
    run("systemd-analyze", "verify", "--man=no", str(unit))


def rules_of(programs: Path) -> str:
    """The rules that came with the installed package, without their patience."""
    (file,) = programs.parent.glob("lib/python*/site-packages/metrics/alerts.yml")
    return without_patience(file.read_text())


def expected_alerts(heading: str) -> set[str]:
    """What fires when an operator comes to this section of the example."""
    return EXPECTED_BEFORE[heading.partition(".")[0]]


EXPECTED_BEFORE: dict[str, set[str]] = {
    "1": {"RawblockdDown"},
    "2": set(),
    "3": {"RawblockdDown"},
    "4": PARTIAL,
    "5": PARTIAL,
    "6": set(),
}


@pytest.mark.timeout(300)
def test_from_an_empty_machine_to_an_alert_and_back(tmp_path: Path) -> None:
    programs = install(tmp_path)
    verify_unit(tmp_path, programs)
    port = free_port()
    work = tmp_path / "work"
    work.mkdir()
    # Verification in the background may or may not come by the damaged pages before they are written anew.
    variables = environment(programs, port, RAWBLOCKD_SCRUB_BYTES_PER_SECOND="0")
    sections = itertools.groupby(steps(PAGE.read_text(encoding="utf-8")), key=lambda step: step.heading)
    passed = []
    with Prometheus(tmp_path / "prometheus", port, rules_of(programs)) as prometheus, Shell(work, variables) as shell:
        for heading, section in sections:
            expected = expected_alerts(heading)
            prometheus.wait_for(f"{expected} ahead of {heading!r}", lambda: prometheus.alerts() - SLOW == expected)  # noqa: B023
            for step in section:
                printed = run_step(shell, step, port)
                assert comparable(printed) == comparable(step.output), (
                    f"{step.command!r} under {heading!r} prints something else than docs/runbook.md says. Right as it "
                    f"is? Then run: make docs\n--- the page\n{step.output}--- now\n{printed}"
                )
            passed.append(heading)
    assert [expected_alerts(heading) for heading in passed] == list(EXPECTED_BEFORE.values())
