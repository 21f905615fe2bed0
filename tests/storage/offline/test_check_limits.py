"""The check where the daemon would not start, beside a daemon, with many findings, and on a device that fails reads."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from storage.device.opening import open_device
from storage.errors import ReadFailed
from storage.format.superblock import encode_superblock
from storage.offline import findings as findings_module
from storage.offline import info
from storage.offline import opening as opening_module
from storage.recovery.recover import RecoveryLimits
from tests.storage.offline.devices import MIDDLE, NEWEST, OLDEST, DeviceFile
from tests.storage.offline.reports import checked, entry_of, found, page_of, slot_offset
from tests.support.device_holders import held_elsewhere


def test_too_much_skipped_is_refused_and_still_looked_through(
    device: DeviceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: the daemon would not start; the check says so, and what there is."""
    entry = entry_of(device, "early 20")
    page, _ = page_of(device, entry)
    for copy in (NEWEST, MIDDLE, OLDEST):
        device.write(device.geometry.page_offset(copy, page), b"\xaa" * 4096)
    device.flip(slot_offset(device, entry) + 40)
    strict = RecoveryLimits(max_skipped_ratio=0.0, max_skipped_floor=0)
    monkeypatch.setattr("storage.offline.state.RecoveryLimits", lambda: strict)
    report = checked(device)
    assert (report.verdict, report.refusal) == ("refused", "too_much_skipped")
    assert found(report) == {"page": 3, "skipped_entry": 1}
    assert report.entries > 0


def test_a_device_this_program_may_only_read_is_refused(device: DeviceFile) -> None:
    superblock = dataclasses.replace(device.superblock, ro_compat=1 << 40)
    for place, offset_bytes in enumerate(device.geometry.superblock_offsets):
        device.write(offset_bytes, encode_superblock(superblock, place))
    report = checked(device)
    assert (report.verdict, report.refusal, found(report)) == ("refused", "format_unsupported", {})
    assert info(str(device))["features"]["writable"] is False


def test_superblocks_that_differ(device: DeviceFile) -> None:
    superblock = dataclasses.replace(device.superblock, created_ms=1)
    device.write(device.geometry.superblock_offsets[1], encode_superblock(superblock, 1))
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"superblock": 1})


def test_a_start_cut_short_between_the_superblocks_is_no_damage(device: DeviceFile) -> None:
    superblock = dataclasses.replace(device.superblock, start_count=2)
    device.write(0, encode_superblock(superblock, 0))
    assert (checked(device).verdict, info(str(device))["start_count"]) == ("clean", 2)


def test_findings_are_listed_up_to_a_bound_and_counted_exactly(
    device: DeviceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_module, "FINDINGS_LISTED_MAX", 2)
    for number in range(20, 25):
        device.flip(slot_offset(device, entry_of(device, f"early {number}")) + 40)
    report = checked(device)
    assert found(report) == {"record_header": 5}
    assert (len(report.findings), report.findings_not_listed) == (2, 3)


def test_a_held_device_is_checked_and_said_to_be_held(device: DeviceFile) -> None:
    with held_elsewhere(device.path):
        report = checked(device)
    assert (report.verdict, report.held) == ("clean", True)


class FailingReads:
    """A device of which some bytes can't be read."""

    def __init__(self, real: Any, start_byte: int, stop_byte: int) -> None:
        self._real = real
        self._range = (start_byte, stop_byte)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def read_now(self, offset_bytes: int, buffer: memoryview) -> None:
        if offset_bytes < self._range[1] and offset_bytes + len(buffer) > self._range[0]:
            raise ReadFailed("medium error", errno=errno.EIO, offset_bytes=offset_bytes)
        self._real.read_now(offset_bytes, buffer)


def fail_reads(monkeypatch: pytest.MonkeyPatch, start_byte: int, size_bytes: int = 4096) -> None:
    real = open_device

    def failing(path: str | Path, **options: Any) -> Any:
        return FailingReads(real(path, **options), start_byte, start_byte + size_bytes)

    monkeypatch.setattr(opening_module, "open_device", failing)


def test_an_unreadable_page(device: DeviceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _ = page_of(device, entry_of(device, "early 20"))
    fail_reads(monkeypatch, device.geometry.page_offset(NEWEST, page))
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"page": 1})
    assert report.findings[0].why == "unreadable"


@pytest.mark.parametrize("key", ["early 20", "middling"])
def test_an_unreadable_record(device: DeviceFile, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_reads(monkeypatch, slot_offset(device, entry_of(device, key)))
    report = checked(device)
    assert (report.verdict, found(report)) == ("damaged", {"unreadable_record": 1})


def test_an_unreadable_superblock(device: DeviceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_reads(monkeypatch, 0)
    report = checked(device)
    assert (report.verdict, found(report)) == ("repairable", {"superblock": 1})
