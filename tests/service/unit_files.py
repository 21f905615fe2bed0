"""The units of ``systemd/`` as their settings, and systemd's own opinion of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "systemd"
SERVICES = ("rawblockd.service", "rawblockd@.service")
SOCKETS = ("rawblockd.socket", "rawblockd@.socket")
PROGRAM = "/opt/rawblockd/bin/rawblockd"


def settings(unit: str) -> list[tuple[str, str]]:
    """(name, value) of every line of a unit, in order; comments left out."""
    lines = [line.strip() for line in (FOLDER / unit).read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#;["]
    return [(name, value) for name, _, value in pairs]


def values(unit: str, name: str) -> list[str]:
    return [value for key, value in settings(unit) if key == name]


def value(unit: str, name: str) -> str:
    (only,) = values(unit, name)
    return only


def installed(folder: Path, **replaced: str) -> Path:
    """All units copied to a folder, with a program that exists; ``replaced`` changes text in the services."""
    for unit in (*SERVICES, *SOCKETS):
        text = (FOLDER / unit).read_text()
        if unit in SERVICES:
            assert text.count(f"ExecStart={PROGRAM} serve ") == 1
            # The installed program is not there in a checkout, and systemd insists on an executable.
            text = text.replace(PROGRAM, str(shutil.which("true")))
            for old, new in replaced.items():
                assert old in text
                text = text.replace(old, new)
        (folder / unit).write_text(text)
    return folder


def analyze(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and everything that ``systemd-analyze`` said."""
    command = ["systemd-analyze", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode, f"{result.stdout}{result.stderr}".strip()
