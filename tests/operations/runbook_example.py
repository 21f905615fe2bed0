"""The worked example of ``docs/runbook.md``: the commands in it, what they print, and how both are compared.

An example stands in blocks of ``console``: a line with ``$`` is a command (one with ``>`` goes on with it, and a
backslash at the end too), what follows is its output. What differs from run to run (times, identities, random bytes)
is compared by its shape. ``python -m tests.operations.runbook_example`` follows the example and writes the outputs
anew where they differ.
"""

from __future__ import annotations

import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.operations.prometheus import free_port
from tests.operations.shell import Shell
from tests.support.daemon_process import clean_environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "runbook.md"
EXAMPLE = re.compile(r"(?<=<!-- example -->\n).*?(?=<!-- end -->)", re.DOTALL)
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*(?:\n> .*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
DOCUMENTED_PORT = "8790"

VOLATILE = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z\b"), "<time>"),
    (re.compile(r"\b1[789]\d{8}(\.\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "<bytes>"),
    (re.compile(r"(\w+_seconds[ =]+)[\d.]+"), r"\1<seconds>"),
)


@dataclass(frozen=True)
class Step:
    """A command of the example, what it printed when the page was written, and the heading it stands under."""

    heading: str
    command: str
    output: str


def example(page: str) -> str:
    found = EXAMPLE.search(page)
    assert found is not None, "the page has no example"
    return found[0]


def steps(page: str) -> Iterator[Step]:
    heading = ""
    for part in re.split(r"^(?=### )", example(page), flags=re.MULTILINE):
        if part.startswith("### "):
            heading = part.splitlines()[0].removeprefix("### ")
        for block in BLOCK.findall(part):
            found = COMMAND.findall(block)
            assert "".join(f"$ {command}\n{output}" for command, output in found) == block, block
            for command, output in found:
                yield Step(heading, command, output)


def comparable(output: str) -> str:
    """An output without what differs from run to run."""
    for pattern, name in VOLATILE:
        output = pattern.sub(name, output)
    return output


def environment(programs: Path, port: int, **extra: str) -> dict[str, str]:
    """Where ``rawblockd`` is found in ``programs``, and serves and is asked at ``port``."""
    found = clean_environment(RAWBLOCKD_PORT=str(port), RAWBLOCKD_URL=f"http://localhost:{port}", **extra)
    return found | {"PATH": f"{programs}:{found['PATH']}", "LC_ALL": "C.UTF-8", "no_proxy": "*"}


def run_step(shell: Shell, step: Step, port: int) -> str:
    """What the step's command prints now, of a daemon that serves at ``port`` instead."""
    command = re.sub(r"^> ", "", step.command, flags=re.MULTILINE)
    return shell.run(command.replace(DOCUMENTED_PORT, str(port))).replace(str(port), DOCUMENTED_PORT)


def rewritten(page: str, printed: list[tuple[Step, str]]) -> str:
    """The page with the outputs that differ in more than what is volatile."""
    position = EXAMPLE.search(page)
    assert position is not None
    offset = position.start()
    for step, output in printed:
        written = f"$ {step.command}\n{step.output}"
        offset = page.index(written, offset)
        if comparable(output) != comparable(step.output):
            page = f"{page[:offset]}$ {step.command}\n{output}{page[offset + len(written) :]}"
            written = f"$ {step.command}\n{output}"
        offset += len(written)
    return page


def main() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        programs, folder = Path(name) / "bin", Path(name) / "work"
        programs.mkdir()
        folder.mkdir()
        program = programs / "rawblockd"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m rawblockd "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        page = PAGE.read_text(encoding="utf-8")
        with Shell(folder, environment(programs, port)) as shell:
            printed = [(step, run_step(shell, step, port)) for step in steps(page)]
        PAGE.write_text(rewritten(page, printed), encoding="utf-8")


if __name__ == "__main__":
    main()
