"""The limit of open files, set in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rawblockd.open_files import RESERVE


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "after", "warned"),
    [
        (256, 4096, 1024, 1024 + RESERVE, False),
        (2048, 4096, 1024, 2048, False),
        (256, 512, 1024, 512, True),
    ],
)
def test_the_limit(soft: int, hard: int, connections: int, after: int, warned: bool) -> None:
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from rawblockd.open_files import allow_open_files\n"
        f"allow_open_files({connections})\n"
        "import sys; sys.stderr.write(str(resource.getrlimit(resource.RLIMIT_NOFILE)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr.endswith(str((after, hard)))
    assert ("fewer open files" in result.stdout) is warned
