"""``docs/recovery.md`` names every reason and every source, each once, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rawblockd.command_line.repair import NEXT
from storage.offline.repair import RepairVerdict
from storage.recovery.recover import RecoveryLimits
from storage.recovery.report import RepairSource, SkipReason

PAGE = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text(encoding="utf-8")


def table_of(heading: str) -> list[str]:
    """The codes in the first column of the table under a heading."""
    part = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)


@pytest.mark.parametrize(
    ("heading", "kind"), [("Reasons of skipped entries", SkipReason), ("Sources of repaired entries", RepairSource)]
)
def test_every_code_is_explained(heading: str, kind: type[SkipReason] | type[RepairSource]) -> None:
    assert table_of(heading) == [code.value for code in kind]


def test_the_limits_are_those_of_the_code() -> None:
    limits = RecoveryLimits()
    assert f"`max_skipped_ratio` ({limits.max_skipped_ratio})" in PAGE
    assert f"`max_skipped_floor` ({limits.max_skipped_floor})" in PAGE


def test_the_page_names_modules_that_exist() -> None:
    storage = Path(__file__).parents[2] / "storage"
    named = set(re.findall(r"`(recovery/\w+\.py)`", PAGE))
    assert named
    assert [name for name in named if not (storage / name).is_file()] == []


def test_every_verdict_of_repair_says_what_to_do_next() -> None:
    assert list(NEXT) == [verdict.value for verdict in RepairVerdict]
    assert NEXT["clean"] in PAGE
    assert NEXT["partial"] in PAGE
