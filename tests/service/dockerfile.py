"""The Dockerfile as instructions, and what its build stage makes, made here: the same commands in another folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = "/opt/rawblockd"
DATA = "/var/lib/rawblockd"
PYTHON = "/usr/bin/python3"
"""Debian's: other users than the one who runs the tests can run it too, as they must."""


@dataclass(frozen=True)
class Instruction:
    name: str
    rest: str

    def words(self) -> list[str]:
        """The exec form's. JSON, or it's the shell form."""
        words = json.loads(self.rest[self.rest.index("[") :])
        assert all(isinstance(word, str) for word in words)
        return list(words)


def instructions(text: str) -> list[Instruction]:
    """All instructions in order, lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, FROM first."""
    found: list[list[Instruction]] = []
    for one in instructions((ROOT / "Dockerfile").read_text()):
        if one.name == "FROM":
            found.append([])
        found[-1].append(one)
    return found


def the_only(stage: list[Instruction], name: str) -> Instruction:
    (only,) = [one for one in stage if one.name == name]
    return only


def environment(stage: list[Instruction]) -> dict[str, str]:
    pairs = [pair.partition("=") for one in stage if one.name == "ENV" for pair in one.rest.split()]
    return {name: value for name, _, value in pairs}


def copy_context(target: Path) -> None:
    """The build context: nothing but what .dockerignore lets through."""
    first, *others = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    for word in others:
        if not word.startswith("!"):
            assert word == "**/__pycache__"
            continue
        source = ROOT / word[1:]
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def build(root: Path) -> Path:
    """Run the build stage below ``root``; the folder that is ``/opt/rawblockd`` in the image."""
    stage, _ = stages()
    work, tools, installed = root / "build", root / "tools", root / "opt"
    work.mkdir()
    tools.mkdir()
    (tools / "python").symlink_to(PYTHON)
    assert [one.rest for one in stage if one.name == "COPY"] == [". ."]
    copy_context(work)
    # A pip of the test run's own settings has the packages at hand that the machine has.
    environ = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for one in stage:
        if one.name == "RUN":
            command = re.sub(r"^(--mount=\S+\s+)+", "", one.rest).replace(INSTALLED, str(installed))
            done = subprocess.run(
                ["sh", "-c", command], cwd=work, env=environ, capture_output=True, text=True, check=False, timeout=300
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return installed
