"""The pages about access say what is there."""

from __future__ import annotations

import re
from pathlib import Path

from api.access.permissions import PERMISSIONS
from api.access.token_file import parse_tokens
from rawblockd.settings import Settings

ROOT = Path(__file__).parents[2]
THREATS = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
ACCESS = (ROOT / "docs" / "access.md").read_text(encoding="utf-8")


def test_every_defence_names_tests_that_exist() -> None:
    defined: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined.update(re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")))
    named = set(re.findall(r"`(test_\w+)`", THREATS))
    assert named - defined == set()
    table = THREATS.partition("## What is defended")[2].partition("\n\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    assert [row for row in rows if "`test_" not in row and "the suites" not in row] == []


def test_every_route_is_in_the_table_of_roles() -> None:
    """By its path or by its method of values: the page groups what takes the same."""
    for template, method in PERMISSIONS:
        if template.startswith("/v1/kv/"):
            _, _, verb = template.rpartition(":")
            word = f"`:{verb}`" if ":" in template else {"GET": "`GET`, `HEAD` of values"}.get(method, f"`{method}`")
            assert word in ACCESS, (template, method)
        else:
            stem = template.partition("{name}")[0].partition("{operation}")[0]
            word = template if stem == template else f"{stem}…"
            written = {"/v1/recovery/acknowledge": "/v1/recovery", "/v1/recovery/retry": "/v1/recovery"}.get(
                template, word
            )
            assert re.search(rf"(`|[A-Z] ){re.escape(written)}`", ACCESS), template


def test_settings_and_token_lines_in_the_text_are_real() -> None:
    table = ACCESS.partition("## Where the daemon listens")[2].partition("\n\n- ")[0]
    named = {
        word
        for line in table.splitlines()
        for word in re.findall(r"`([a-z_]+)`", line.split("|")[1] if "|" in line else "")
    }
    assert named
    assert named - set(Settings.model_fields) == set()
    block = re.search(r"```toml\n(.*?)```", ACCESS, re.DOTALL)
    assert block is not None
    lines = block[1].replace("…64 hexadecimal digits…", "0" * 64).replace("…", "1" * 64)
    assert parse_tokens(lines.encode()).count == 2
