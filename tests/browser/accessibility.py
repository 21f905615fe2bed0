"""axe-core, run in a page: what would stop or hinder somebody who does not see it, or uses no pointer."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.browser.chromium import Page

LIBRARY = Path(__file__).parent / "vendor" / "axe.min.js"


@lru_cache(maxsize=1)
def _library() -> str:
    return LIBRARY.read_text(encoding="utf-8")


def faults(page: Page, *rules: str) -> list[str]:
    """Violations of any impact, of all rules or of those named: rule, impact, what is concerned."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(_library() + "; null")
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    found = page.evaluate(f"axe.run(document, {json.dumps(options)}).then(r => r.violations)")
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:160]} {node['failureSummary']}"
        for violation in found
        for node in violation["nodes"]
    ]
