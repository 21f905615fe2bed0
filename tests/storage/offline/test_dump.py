"""``dump`` and ``info``: every entry as it was put, whatever of it still verifies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.device.opening import open_device
from storage.engine import Engine
from storage.errors import (
    DeviceMissing,
    ForeignContent,
    FormatUnsupported,
    LayoutMismatch,
    NotFormatted,
    RawblockdError,
)
from storage.format.superblock import FORMATTING_MAGIC
from storage.offline import check, copies, dump, info
from tests.storage.offline.devices import MIDDLE, NEWEST, NOW, OLDEST, OPTIONS, SIZE_BYTES, DeviceFile, Expected
from tests.storage.offline.reports import entry_of, page_of, slot_offset
from tests.support.device_holders import held_elsewhere


def dumped(device: DeviceFile, now: float = NOW) -> list[dict[str, Any]]:
    before = device.sum()
    entries = list(dump(str(device), clock=lambda: now))
    assert device.sum() == before
    return entries


def test_every_entry_as_it_was_put(device: DeviceFile, expected: Expected) -> None:
    entries = dumped(device)
    assert {entry["entry"] for entry in entries} == {"live"}
    found = {(e["namespace"], bytes.fromhex(e["key_hex"])): (e["payload_bytes"], e["expires_at"]) for e in entries}
    assert found == {name: (len(payload), expiry) for name, (payload, expiry) in expected.entries.items()}
    assert len({entry["write_id"] for entry in entries}) == len(entries)
    for entry in entries:
        assert entry["key"] is None or entry["key"].encode().hex() == entry["key_hex"]
        assert (entry["content_type"], entry["metadata"]) == ("text/plain", {"colour": "red"})
        assert entry["stored_at"] == NOW
        assert entry["defect"] is None
        assert entry["slot_bytes"] >= entry["header_bytes"] + entry["payload_bytes"]
    assert [entry["key"] for entry in entries].count(None) == 1, "one key is no text"


def test_expired_entries_are_marked(device: DeviceFile) -> None:
    (expired,) = (entry for entry in dumped(device, NOW + 3600) if entry["entry"] == "expired")
    assert expired["key"] == "expired"


def test_an_entry_without_its_header_keeps_what_the_row_says(device: DeviceFile, expected: Expected) -> None:
    entry = entry_of(device, "early 20")
    device.flip(slot_offset(device, entry) + 40)
    entries = dumped(device)
    assert len(entries) == len(expected.entries)
    (damaged,) = (item for item in entries if item["defect"])
    assert damaged["key"] is None
    for name in ("namespace", "write_id", "digest", "payload_bytes", "slab", "slot", "seq"):
        assert damaged[name] == entry[name]


def lose_an_entry(device: DeviceFile) -> dict[str, Any]:
    """Damage all pages of an entry's row, and its header."""
    entry = entry_of(device, "early 20")
    page, _ = page_of(device, entry)
    for copy in (NEWEST, MIDDLE, OLDEST):
        device.write(device.geometry.page_offset(copy, page), b"\xaa" * 4096)
    device.flip(slot_offset(device, entry) + 40)
    return entry


def test_skipped_entries_are_listed_with_their_raw_row(device: DeviceFile) -> None:
    entry = lose_an_entry(device)
    (skipped,) = (item for item in dumped(device) if item["entry"] == "skipped")
    assert (skipped["slab"], skipped["slot"]) == (entry["slab"], entry["slot"])
    assert len(skipped["raw"]) == 128


def test_quarantined_slots_are_listed_after_a_start(device: DeviceFile) -> None:
    entry = lose_an_entry(device)

    async def start_and_stop() -> None:
        opened = open_device(device.path, write=True, io_engine="threads")
        engine = Engine(opened, OPTIONS, clock=lambda: NOW)
        await engine.start()
        await engine.stop()
        opened.close()

    asyncio.run(start_and_stop())
    entries = dumped(device)
    (quarantined,) = (item for item in entries if item["entry"] == "quarantined")
    assert (quarantined["slab"], quarantined["slot"]) == (entry["slab"], entry["slot"])
    assert quarantined["reason"] == "skipped"
    assert [item["entry"] for item in entries].count("skipped") == 1, "the report survives the restart"
    report = check(str(device), clock=lambda: NOW)
    assert (report.verdict, report.damage["skipped_entry"]) == ("damaged", 1)


def test_a_held_device_is_dumped(device: DeviceFile, expected: Expected) -> None:
    with held_elsewhere(device.path):
        assert len(dumped(device)) == len(expected.entries)
        assert info(str(device))["held"] is True


# -- info -----------------------------------------------------------------------------------------------------------


def test_info(device: DeviceFile) -> None:
    before = device.sum()
    facts = info(str(device))
    assert device.sum() == before
    geometry, superblock = device.geometry, device.superblock
    assert facts["held"] is False
    assert facts["uuid"].replace("-", "") == superblock.uuid.hex()
    assert facts["start_count"] == 1
    assert facts["superblocks"] == {"first": "valid", "last": "valid"}
    assert facts["max_entries"] == geometry.max_entries
    assert facts["reserved_bytes"] == geometry.reserved_bytes
    assert facts["memory_full_bytes"] == geometry.memory_full_bytes
    assert facts["geometry"]["slabs"] == geometry.slabs
    assert 1 << 20 <= facts["max_value_bytes"] < geometry.slab_bytes
    assert superblock.secret.hex() not in str(facts)
    assert str(superblock.secret) not in str(facts)


@pytest.mark.parametrize("place", [0, 1])
def test_info_with_one_superblock(device: DeviceFile, place: int) -> None:
    device.flip(device.geometry.superblock_offsets[place] + 100)
    name = ("first", "last")[place]
    assert info(str(device))["superblocks"] == {"first": "valid", "last": "valid", name: "checksum"}


# -- what holds no cache ----------------------------------------------------------------------------------------------

TOOLS: list[Callable[[str], object]] = [info, copies, lambda path: list(dump(path)), check]


def refusals(path: Path, error: type[RawblockdError]) -> None:
    before = path.read_bytes() if path.exists() else b""
    for tool in TOOLS:
        with pytest.raises(error):
            tool(str(path))
    assert (path.read_bytes() if path.exists() else b"") == before


def test_nothing_there(tmp_path: Path) -> None:
    refusals(tmp_path / "missing", DeviceMissing)


def test_a_blank_device(tmp_path: Path) -> None:
    path = tmp_path / "blank"
    path.write_bytes(bytes(1 << 20))
    refusals(path, NotFormatted)


def test_an_unfinished_format(tmp_path: Path) -> None:
    path = tmp_path / "unfinished"
    path.write_bytes(FORMATTING_MAGIC.ljust(1 << 20, b"\0"))
    refusals(path, NotFormatted)


def test_other_content(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"something else " * 70_000)
    refusals(path, ForeignContent)


def test_both_superblocks_damaged(device: DeviceFile) -> None:
    for offset_bytes in device.geometry.superblock_offsets:
        device.flip(offset_bytes + 100)
    refusals(device.path, LayoutMismatch)


def test_a_device_that_shrank(device: DeviceFile) -> None:
    with device.path.open("r+b") as file:
        file.truncate(SIZE_BYTES - (1 << 20))
    refusals(device.path, LayoutMismatch)


def test_a_newer_format(device: DeviceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.format.superblock.VERSION", 0)
    refusals(device.path, FormatUnsupported)
