"""``serve --create`` and ``format``: what is made, what is served, what is refused and left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rawblockd.device_preparation import prepare_device
from rawblockd.settings import Settings
from rawblockd.settings_sources import load_settings
from storage.errors import DeviceInUse, DeviceMissing, ForeignContent, GeometryInvalid, SettingsInvalid
from storage.format.superblock import FORMATTING_MAGIC
from tests.support.commands import run_command

SIZE_BYTES = 64 << 20
SUPERBLOCK_BYTES = 4096


def creating(path: Path, size: str = "64MiB") -> Settings:
    return load_settings({"device": str(path), "create": True, "size": size})


def prepare_and_close(settings: Settings) -> None:
    prepare_device(settings).close()


def superblock(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SUPERBLOCK_BYTES)


def test_a_missing_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "device"
    prepare_and_close(creating(path))
    assert os.stat(path).st_size == SIZE_BYTES
    made = superblock(path)
    prepare_and_close(creating(path))
    assert superblock(path) == made
    prepare_and_close(creating(path, "128MiB"))
    assert superblock(path) == made, "the size of a file that is there is its own"


@pytest.mark.parametrize("head", [FORMATTING_MAGIC, b""])
def test_a_making_that_was_cut_off_is_ended(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "device"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(SIZE_BYTES)
    prepare_and_close(creating(path))
    assert superblock(path) != head.ljust(SUPERBLOCK_BYTES, b"\0")


@pytest.mark.parametrize("at_bytes", [0, SUPERBLOCK_BYTES, SIZE_BYTES // 2, SIZE_BYTES - 8])
def test_other_content_is_refused_and_left_alone(at_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "device"
    with path.open("wb") as file:
        file.truncate(SIZE_BYTES)
        file.seek(at_bytes)
        file.write(b"precious")
    before = path.read_bytes()
    with pytest.raises(ForeignContent):
        prepare_device(creating(path))
    assert path.read_bytes() == before


def test_nothing_is_left_of_a_size_that_makes_no_device(tmp_path: Path) -> None:
    path = tmp_path / "device"
    with pytest.raises(GeometryInvalid):
        prepare_device(creating(path, "1MiB"))
    assert not path.exists()


def test_without_create_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DeviceMissing):
        prepare_device(load_settings({"device": str(tmp_path / "none")}))
    with pytest.raises(DeviceMissing):
        prepare_device(creating(tmp_path / "folder" / "none"))


def test_a_held_device_is_refused(tmp_path: Path) -> None:
    settings = creating(tmp_path / "device")
    held = prepare_device(settings)
    with pytest.raises(DeviceInUse):
        prepare_device(settings)
    held.close()
    prepare_and_close(settings)


def test_device_is_needed() -> None:
    with pytest.raises(SettingsInvalid, match="device is not set"):
        prepare_device(load_settings({}))


def test_format_tells_what_the_operator_should_know(tmp_path: Path) -> None:
    path = tmp_path / "device"
    result = run_command("format", str(path), "--size", "64MiB", "--copies", "2", "--smallest-slot", "16KiB", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    assert (facts["size_bytes"], facts["copies"], facts["smallest_slot_bytes"]) == (SIZE_BYTES, 2, 16384)
    assert {"uuid", "max_entries", "reserved_bytes", "memory_full_bytes", "max_value_bytes"} <= set(facts)
    again = run_command("format", str(path))
    assert again.returncode == 13
    assert "--force" in again.stderr
    forced = run_command("format", str(path), "--force")
    assert forced.returncode == 0
    assert "size_bytes           67108864 (64.0 MiB)" in forced.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "word"),
    [
        (["--size", "64MB"], 2, "--size"),
        (["--size", "64MiB", "--copies", "9"], 2, "--copies"),
        (["--size", "64MiB", "--slab-bytes", "x"], 2, "--slab-bytes"),
        (["--size", "1MiB"], 17, "size"),
        ([], 10, "size"),
    ],
)
def test_format_refuses(arguments: list[str], exit_code: int, word: str, tmp_path: Path) -> None:
    path = tmp_path / "device"
    result = run_command("format", str(path), *arguments)
    assert result.returncode == exit_code
    assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert not path.exists()
