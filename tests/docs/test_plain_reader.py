"""A reader that knows only ``docs/format.md`` finds on the golden images what is on them."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

import pytest

from tests.golden.plain_reader import PlainReader

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["v1-fresh", "v1-mixed"])
def test_the_page_suffices_to_read_a_device(name: str) -> None:
    reader = PlainReader(lzma.decompress((GOLDEN / f"{name}.xz").read_bytes()))
    listed = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["entries"]
    expected = {
        (entry["namespace"], bytes.fromhex(entry["key"])): (
            entry["write_id"],
            entry["payload_sha256"],
            entry["expires_at"],
        )
        for entry in listed
    }
    found = {
        place: (write_id, hashlib.sha256(payload).hexdigest(), expires_at)
        for place, (write_id, payload, expires_at) in reader.entries.items()
    }
    assert found == expected


def test_the_reader_shares_no_code_with_the_program() -> None:
    source = (GOLDEN / "plain_reader.py").read_text(encoding="utf-8")
    for package in ("storage", "rawblockd", "api", "metrics"):
        assert f"import {package}" not in source
        assert f"from {package}" not in source
