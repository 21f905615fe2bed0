"""The check: verdict and counts are exact for damage in each structure, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.format.page import PAGE
from storage.format.row import ROW
from storage.offline import check
from storage.offline import findings as findings_module
from tests.storage.offline.devices import (
    MIDDLE,
    NEWEST,
    NOW,
    OLDEST,
    DeviceFile,
    Expected,
    cut_checkpoint_short,
    header_field,
)
from tests.storage.offline.reports import checked, entries, entry_of, found, notes, page_of, slot_offset

# -- clean ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payloads", [False, True])
def test_clean(device: DeviceFile, expected: Expected, payloads: bool) -> None:
    report = checked(device, payloads)
    assert (report.verdict, report.damaged, report.refusal) == ("clean", False, "")
    assert found(report) == notes(report) == {}
    assert report.findings == []
    assert report.entries == len(expected.entries)
    assert report.recovery["recovered"] == len(expected.entries)
    assert report.recovery["journal"] == "clean"
    assert report.payloads_checked is payloads
    assert report.held is False


def test_every_kind_is_counted_also_what_was_not_found(device: DeviceFile) -> None:
    report = checked(device)
    assert set(report.damage) == {kind.value for kind in findings_module.Damage}
    assert set(report.notes) == {kind.value for kind in findings_module.Note}


def test_expired_entries_are_a_note(device: DeviceFile) -> None:
    report = check(str(device), clock=lambda: NOW + 3600)
    assert (report.verdict, notes(report)) == ("clean", {"expired": 1})


def test_progress_only_grows_and_ends(device: DeviceFile) -> None:
    told: list[tuple[float, str]] = []
    check(str(device), True, lambda ratio, step: told.append((ratio, step)))
    ratios = [ratio for ratio, _ in told]
    assert ratios == sorted(ratios)
    assert told[-1] == (1.0, "done")
    assert {"superblocks", "copies", "pages", "journal", "recovery", "records"} <= {step for _, step in told}


# -- superblocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_superblock_is_repairable(device: DeviceFile, place: int) -> None:
    device.flip(device.geometry.superblock_offsets[place] + 100)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"superblock": 1})
    assert report.findings[0].where == ("first superblock", "last superblock")[place]
    assert report.findings[0].why == "checksum"


# -- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [NEWEST, MIDDLE, OLDEST])
@pytest.mark.parametrize("part", ["header", "directory", "catalogue"])
def test_a_damaged_copy_is_repairable(device: DeviceFile, part: str, copy: int) -> None:
    geometry = device.geometry
    offsets = {
        "header": geometry.copy_offset(copy),
        "directory": geometry.directory_offset(copy),
        "catalogue": geometry.catalogue_offset(copy),
    }
    device.flip(offsets[part] + 70)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {f"copy_{part}": 1})
    assert [(f.where, f.why) for f in report.findings] == [(f"copy {copy}", "checksum")]
    assert report.recovery["skipped"] == {}


def test_a_copy_whose_header_was_wiped(device: DeviceFile) -> None:
    device.write(device.geometry.copy_offset(MIDDLE), bytes(4096))
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"copy_header": 1})
    assert report.findings[0].why == "blank"


def test_without_any_copy_the_index_is_rebuilt(device: DeviceFile, expected: Expected) -> None:
    for copy in (NEWEST, MIDDLE, OLDEST):
        device.flip(device.geometry.copy_offset(copy) + 70)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"copy_header": 3})
    assert report.recovery["rebuilt"] is True
    assert report.entries == len(expected.entries)


def test_a_checkpoint_cut_short_is_no_damage(device: DeviceFile, tmp_path: Path, expected: Expected) -> None:
    cut = cut_checkpoint_short(device, tmp_path / "cut")
    report = checked(cut)
    assert (report.verdict, found(report), notes(report)) == ("clean", {}, {"unfinished_checkpoint": 1})
    assert report.entries == len(expected.entries)


def test_a_checkpoint_cut_short_among_its_pages_is_no_damage(device: DeviceFile, tmp_path: Path) -> None:
    geometry = device.geometry
    streams = geometry.directory_offset(OLDEST), (geometry.directory_blocks + geometry.catalogue_blocks) * 4096
    before = device.read(*streams)
    cut = cut_checkpoint_short(device, tmp_path / "cut")
    cut.write(streams[0], before)
    report = checked(cut)
    assert (report.verdict, found(report), notes(report)) == ("clean", {}, {"unfinished_checkpoint": 1})


# -- pages and rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [NEWEST, MIDDLE, OLDEST])
@pytest.mark.parametrize("offset", [0, 9, 40, 64 + 5, 4095])
def test_a_damaged_page_is_repairable(device: DeviceFile, copy: int, offset: int) -> None:
    page, _ = page_of(device, entry_of(device, "early 20"))
    device.flip(device.geometry.page_offset(copy, page) + offset)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"page": 1})
    assert report.findings[0].where == f"copy {copy} page {page}"
    assert report.recovery["skipped"] == {}


def test_a_stale_page_is_found(device: DeviceFile) -> None:
    """A page write that never happened: the page of the checkpoint before stands there, and verifies."""
    page, _ = page_of(device, entry_of(device, "early 20"))
    geometry = device.geometry
    old = bytearray(device.read(geometry.page_offset(MIDDLE, page), 4096))
    whole = device.read(0, geometry.device_bytes)
    device.rewrite_page(NEWEST, page, lambda block: block.__setitem__(slice(64, None), old[64:]))
    stale = device.read(geometry.page_offset(NEWEST, page), 4096)
    device.write(0, whole)
    device.write(geometry.page_offset(NEWEST, page), stale)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"stale_page": 1})


def test_a_page_damaged_in_all_copies_is_settled_by_its_rows(device: DeviceFile) -> None:
    page, _ = page_of(device, entry_of(device, "early 20"))
    for copy in (NEWEST, MIDDLE, OLDEST):
        device.flip(device.geometry.page_offset(copy, page) + 9)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"page": 3})
    assert report.recovery["repaired"]["row"] > 0


def test_an_entry_without_page_and_header_is_lost(device: DeviceFile, expected: Expected) -> None:
    entry = entry_of(device, "early 20")
    page, _ = page_of(device, entry)
    for copy in (NEWEST, MIDDLE, OLDEST):
        device.write(device.geometry.page_offset(copy, page), b"\xaa" * 4096)
    device.flip(slot_offset(device, entry) + 40)
    report = checked(device)
    assert (report.verdict, found(report)) == ("damaged", {"page": 3, "skipped_entry": 1})
    assert report.entries == len(expected.entries) - 1
    assert f"slab {entry['slab']} slot {entry['slot']}" in {finding.where for finding in report.findings}


def test_a_row_that_was_written_wrong(device: DeviceFile) -> None:
    entry = entry_of(device, "early 20")
    page, line = page_of(device, entry)

    def spoil(block: bytearray) -> None:
        block[line * 64 + ROW.offsets["state"]] = 9

    device.rewrite_page(NEWEST, page, spoil)
    report = checked(device)
    assert found(report) == {"invalid_row": 1, "skipped_entry": 1}
    assert report.verdict == "damaged"
    assert report.findings[0].where == f"copy {NEWEST} page {page} slot {entry['slot']}"


def test_a_row_written_wrong_in_an_old_copy_costs_nothing(device: DeviceFile) -> None:
    entry = entry_of(device, "early 20")
    page, line = page_of(device, entry)
    device.rewrite_page(OLDEST, page, lambda block: block.__setitem__(line * 64 + ROW.offsets["slot"], 0xEE))
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"invalid_row": 1})


def test_lines_behind_the_last_slot_are_zero(device: DeviceFile) -> None:
    (large,) = (entry for entry in entries(device) if entry["payload_bytes"] == 256 * 3600)
    page, _ = page_of(device, large)
    device.rewrite_page(OLDEST, page, lambda block: block.__setitem__(4095, 1))
    assert found(checked(device)) == {"invalid_row": 1}


def test_rows_are_not_later_than_their_page(device: DeviceFile) -> None:
    page, _ = page_of(device, entry_of(device, "early 20"))
    at = PAGE.offsets["seq"]
    device.rewrite_page(OLDEST, page, lambda block: block.__setitem__(slice(at, at + 8), b"\5" + bytes(7)))
    report = checked(device)
    assert report.damage["invalid_row"] > 1
    assert sum(found(report).values()) == report.damage["invalid_row"]


# -- journal --------------------------------------------------------------------------------------------------------


def test_a_lost_block_that_only_older_copies_need_is_repairable(device: DeviceFile) -> None:
    number = header_field(device, NEWEST, "journal_block") - 1
    device.flip(device.geometry.journal_block_offset(number) + 200)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"journal_block": 1})
    assert (report.findings[0].where, report.findings[0].why) == (f"journal block {number}", "checksum")


def test_a_lost_block_since_the_newest_copy_is_a_loss_of_unknown_extent(device: DeviceFile) -> None:
    number = header_field(device, NEWEST, "journal_block") + 3
    device.flip(device.geometry.journal_block_offset(number) + 200)
    report = checked(device)
    assert report.verdict == "damaged"
    assert (report.damage["journal_block"], report.damage["unknown_loss"]) == (1, 1)
    assert report.recovery["journal"] == "gap"


def test_the_unflushed_end_may_be_torn(device: DeviceFile) -> None:
    last = header_field(device, NEWEST, "journal_block")
    while device.read(device.geometry.journal_block_offset(last + 1), 8) == b"RAWBLKJR":
        last += 1
    device.flip(device.geometry.journal_block_offset(last) + 200)
    report = checked(device)
    assert (report.verdict, found(report), notes(report)) == ("clean", {}, {"torn_tail": 1})


def test_blocks_behind_a_hole_in_the_unflushed_end_are_told(device: DeviceFile) -> None:
    """Without the block that says how far the journal was flushed, a hole passes for what a power loss took."""
    last = header_field(device, NEWEST, "journal_block")
    while device.read(device.geometry.journal_block_offset(last + 1), 8) == b"RAWBLKJR":
        last += 1
    for number in (last, last - 4):
        device.flip(device.geometry.journal_block_offset(number) + 200)
    report = checked(device)
    assert report.verdict == "clean"
    assert notes(report)["torn_tail"] == 1
    assert notes(report)["dropped_block"] == 3


# -- slabs and records ----------------------------------------------------------------------------------------------


def test_a_damaged_slab_header_is_repairable(device: DeviceFile) -> None:
    entry = entry_of(device, "early 20")
    device.flip(device.geometry.slab_offset(entry["slab"]) + 30)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"slab_header": 1})
    assert report.findings[0].where == f"slab {entry['slab']}"


@pytest.mark.parametrize("key", ["early 20", "middling"])
def test_a_damaged_record_header(device: DeviceFile, key: str) -> None:
    entry = entry_of(device, key)
    device.flip(slot_offset(device, entry) + 100)
    for payloads in (False, True):
        report = checked(device, payloads)
        assert (report.verdict, found(report)) == ("damaged", {"record_header": 1})
        assert report.findings[0].where == f"slab {entry['slab']} slot {entry['slot']}"


@pytest.mark.parametrize("payload_bytes", [30_000, 256 * 3600])
def test_a_damaged_payload_is_found_where_payloads_are_read(device: DeviceFile, payload_bytes: int) -> None:
    (entry,) = (entry for entry in entries(device) if entry["payload_bytes"] == payload_bytes)
    device.flip(slot_offset(device, entry) + entry["header_bytes"] + payload_bytes - 1)
    assert checked(device).verdict == "clean"
    report = checked(device, payloads=True)
    assert (report.verdict, found(report)) == ("damaged", {"record_payload": 1})


def test_a_record_moved_to_another_slot_is_not_that_slots(device: DeviceFile) -> None:
    first, second = entry_of(device, "early 20"), entry_of(device, "early 21")
    device.write(slot_offset(device, second), device.read(slot_offset(device, first), 4096))
    assert found(checked(device)) == {"record_header": 1}
