"""Compile the programs in C that stand beside this file."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
TIMEOUT_SECONDS = 120


def compiled(name: str, folder: Path) -> Path:
    """The program made of ``name``.c, in ``folder``; made anew if the source is newer.

    Raises ``subprocess.CalledProcessError`` if the compiler refuses.
    """
    source, program = SOURCES / f"{name}.c", folder / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", *FLAGS, "-o", str(program), str(source)], check=True, timeout=TIMEOUT_SECONDS)
    return program
