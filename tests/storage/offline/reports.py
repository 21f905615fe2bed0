"""What tests ask of the check and of the dump."""

from __future__ import annotations

from typing import Any

from storage.offline import CheckReport, check, dump
from tests.storage.offline.devices import NOW, DeviceFile


def checked(device: DeviceFile, payloads: bool = False) -> CheckReport:
    """The report; the device must be as before."""
    before = device.sum()
    report = check(str(device), payloads, clock=lambda: NOW)
    assert device.sum() == before, "a check only reads"
    return report


def found(report: CheckReport) -> dict[str, int]:
    return {kind: count for kind, count in report.damage.items() if count}


def notes(report: CheckReport) -> dict[str, int]:
    return {kind: count for kind, count in report.notes.items() if count}


def entries(device: DeviceFile) -> list[dict[str, Any]]:
    return [entry for entry in dump(str(device), clock=lambda: NOW) if entry["entry"] == "live"]


def slot_offset(device: DeviceFile, entry: dict[str, Any]) -> int:
    return device.geometry.slot_offset(entry["slab"], entry["slot"], entry["slot_class"])


def page_of(device: DeviceFile, entry: dict[str, Any]) -> tuple[int, int]:
    """Page of an entry's row, and the line in it."""
    page, position = divmod(entry["slot"], device.geometry.rows_per_page)
    return entry["slab"] * device.geometry.pages_per_slab + page, position + 1


def entry_of(device: DeviceFile, key: str) -> dict[str, Any]:
    (entry,) = (entry for entry in entries(device) if entry["key"] == key)
    return entry
