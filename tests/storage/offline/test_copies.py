"""``copies``: verdicts, extents, and how the copies differ."""

from __future__ import annotations

from typing import Any

import pytest

from storage.offline import copies
from tests.storage.offline.devices import MIDDLE, NEWEST, OLDEST, DeviceFile, Expected
from tests.support.device_holders import held_elsewhere


def told(device: DeviceFile) -> dict[str, Any]:
    before = device.sum()
    facts = copies(str(device))
    assert device.sum() == before
    return facts


def by_copy(facts: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {item["copy"]: item for item in facts}


def test_clean(device: DeviceFile, expected: Expected) -> None:
    facts = told(device)
    assert facts["held"] is False
    found = by_copy(facts["copies"])
    assert [found[copy]["number"] for copy in (NEWEST, MIDDLE, OLDEST)] == [4, 3, 2]
    assert [found[copy]["newest"] for copy in (NEWEST, MIDDLE, OLDEST)] == [True, False, False]
    assert {item["verdict"] for item in facts["copies"]} == {"valid"}
    assert [found[copy]["entries"] for copy in (NEWEST, MIDDLE, OLDEST)] == [41, 43, 43]
    assert found[NEWEST]["seq"] > found[MIDDLE]["seq"] > found[OLDEST]["seq"]
    assert len(expected.entries) == 41 + 10 - 1


def test_the_journal(device: DeviceFile) -> None:
    facts = told(device)
    journal, oldest = facts["journal"], by_copy(facts["copies"])[OLDEST]
    assert journal["verdict"] == "clean"
    assert journal["first_block"] == oldest["journal_block"]
    assert journal["blocks"] == journal["last_block"] - journal["first_block"] + 1
    assert journal["missing_blocks"] == 0
    assert journal["start_count"] == 1


def test_pages_are_compared_with_the_newest_copy(device: DeviceFile) -> None:
    facts = told(device)
    pages = by_copy(facts["pages"])
    assert facts["damaged_pages"] == []
    assert "differing" not in pages[NEWEST]
    for copy in (MIDDLE, OLDEST):
        assert pages[copy]["compared_with"] == NEWEST
        compared = pages[copy]["same"] + pages[copy]["differing"] + pages[copy]["not_comparable"]
        assert compared == pages[NEWEST]["written"]
        # A put since opened a slab for its class: the older copies don't have its pages.
        assert pages[copy]["not_comparable"] == device.geometry.pages_per_slab
    # Since the middle copy three were deleted; before it five were overwritten, each in a new slot.
    assert pages[MIDDLE]["differing_rows"] == 3
    assert pages[OLDEST]["differing_rows"] == 3 + 10


def test_damaged_pages_are_named(device: DeviceFile) -> None:
    device.flip(device.geometry.page_offset(MIDDLE, 0) + 100)
    facts = told(device)
    assert facts["damaged_pages"] == [{"copy": MIDDLE, "page": 0, "reason": "checksum"}]
    pages = by_copy(facts["pages"])
    assert [pages[copy]["damaged"] for copy in (NEWEST, MIDDLE, OLDEST)] == [0, 1, 0]
    assert pages[MIDDLE]["not_comparable"] == device.geometry.pages_per_slab + 1


@pytest.mark.parametrize("copy", [NEWEST, MIDDLE, OLDEST])
def test_a_damaged_copy_has_a_verdict(device: DeviceFile, copy: int) -> None:
    device.flip(device.geometry.directory_offset(copy) + 70)
    facts = told(device)
    assert by_copy(facts["copies"])[copy]["verdict"] == "directory: checksum"
    assert copy not in by_copy(facts["pages"])
    newest = MIDDLE if copy == NEWEST else NEWEST
    assert by_copy(facts["copies"])[newest]["newest"] is True


def test_no_copy_left(device: DeviceFile) -> None:
    for copy in (NEWEST, MIDDLE, OLDEST):
        device.flip(device.geometry.copy_offset(copy) + 70)
    facts = told(device)
    assert {item["verdict"] for item in facts["copies"]} == {"header: checksum"}
    assert "pages" not in facts
    assert facts["journal"]["verdict"] == "clean", "it says itself where it begins"
    assert facts["journal"]["rows"] > 0


def test_a_held_device(device: DeviceFile) -> None:
    with held_elsewhere(device.path):
        assert told(device)["held"] is True
