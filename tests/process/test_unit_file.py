"""The systemd unit is one that systemd accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parents[2] / "systemd" / "rawblockd.service"


def verified(unit: Path) -> str:
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    return f"{result.returncode} {result.stdout}{result.stderr}".strip()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    # The installed path is not there in a checkout, and systemd insists on an executable.
    assert text.count("ExecStart=/opt/rawblockd/bin/rawblockd serve ") == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/rawblockd/bin/rawblockd", f"{sys.executable} -m rawblockd"))
    assert verified(copy) == "0"


def test_systemd_would_see_a_mistake(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("Type=notify", "Type=notified"))
    assert "notified" in verified(copy)


def test_the_process_side_of_the_unit() -> None:
    lines = UNIT.read_text().splitlines()
    assert "Type=notify" in lines
    assert "NotifyAccess=main" in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)
    assert "ExecReload=/bin/kill -HUP $MAINPID" in lines
