"""The generated pages are what the code says, and the error table keeps its promises."""

from __future__ import annotations

import re

import pytest

from rawblockd.documents import FOLDER, PAGES
from rawblockd.error_tree import error_classes
from rawblockd.settings import Settings
from storage.errors import RawblockdError


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_as_generated(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_every_setting_is_on_the_page() -> None:
    page = PAGES["settings.md"]()
    for name in Settings.model_fields:
        assert f"| `{name}` |" in page


def test_every_error_says_something_of_its_own() -> None:
    seen: dict[str, type[RawblockdError]] = {}
    for _, kind in error_classes():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code), kind
        assert "sentence" in vars(kind), kind
        assert kind.sentence not in seen, (kind, seen[kind.sentence])
        seen[kind.sentence] = kind
        assert 400 <= kind.http_status < 600
        assert 1 <= kind.exit_code < 126, kind


def test_one_code_has_one_status() -> None:
    """A client that acts by the code must not meet it with two statuses."""
    status_of: dict[str, int] = {}
    for _, kind in error_classes():
        assert status_of.setdefault(kind.code, kind.http_status) == kind.http_status, kind
