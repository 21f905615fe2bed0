"""D5: a device with content is not blank, also where no signature tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.device import blank
from storage.device.blank import EDGE_BYTES, SAMPLE_BYTES, SAMPLES, blank_verdict
from storage.errors import DeviceMissing, ForeignContent
from tests.support.loop_devices import MIB, loop_device, zero_file


def write_at(path: Path | str, offset: int, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data, offset)
    os.fsync(fd)
    os.close(fd)


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 5 * MIB])
def test_d5_files_of_zeros_are_blank(tmp_path: Path, size_bytes: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(size_bytes))
    verdict = blank_verdict(str(file))
    assert verdict.blank
    assert verdict.complete
    assert verdict.content_at == -1
    assert verdict.examined_bytes == size_bytes


def test_d5_preallocated_file_is_blank_without_reading(tmp_path: Path) -> None:
    verdict = blank_verdict(str(zero_file(tmp_path / "file", 64 * MIB)))
    assert verdict.blank
    assert verdict.complete
    assert verdict.examined_bytes < MIB


@pytest.mark.parametrize("offset", [0, 1, 4096, 3 * MIB + 17, 5 * MIB - 1])
def test_d5_one_byte_is_content(tmp_path: Path, offset: int) -> None:
    file = zero_file(tmp_path / "file", 5 * MIB)
    write_at(file, offset, b"x")
    verdict = blank_verdict(str(file))
    assert not verdict.blank
    assert verdict.content_at == offset


def test_d5_content_behind_holes(tmp_path: Path) -> None:
    """A sparse file larger than any bound: only what is in it is read."""
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 1 << 40)
    assert blank_verdict(str(file)).blank
    write_at(file, (1 << 39) + 12345, b"x")
    verdict = blank_verdict(str(file))
    assert not verdict.blank
    assert verdict.content_at == (1 << 39) + 12345


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_d5_small_block_device_is_read_whole(tmp_path: Path, sector_bytes: int) -> None:
    with loop_device(zero_file(tmp_path / "file", 32 * MIB), sector_bytes) as loop:
        verdict = blank_verdict(loop)
        assert verdict.blank
        assert verdict.complete
        assert verdict.examined_bytes == 32 * MIB
        write_at(loop, 20 * MIB + 5, b"x")
        assert blank_verdict(loop).content_at == 20 * MIB + 5


def test_d5_large_block_device_is_sampled(tmp_path: Path) -> None:
    size = 8 << 30
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, size)
    with loop_device(image) as loop:
        verdict = blank_verdict(loop)
        assert verdict.blank
        assert not verdict.complete
        assert verdict.examined_bytes == 2 * EDGE_BYTES + SAMPLES * SAMPLE_BYTES
        for at in (EDGE_BYTES - 1, size - EDGE_BYTES, size - 1, size // 2):
            write_at(loop, at, b"x")
            assert blank_verdict(loop).content_at == at
            write_at(loop, at, b"\0")
        # A run as long as the spacing of the samples is always met.
        write_at(loop, size // 2 + SAMPLE_BYTES, b"x" * (size // SAMPLES))
        assert not blank_verdict(loop).blank


def test_d5_large_file_is_sampled_where_it_has_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blank, "WHOLE_FILE_BYTES", 4 * MIB)
    monkeypatch.setattr(blank, "EDGE_BYTES", MIB)
    file = tmp_path / "file"
    file.write_bytes(bytes(16 * MIB))
    os.truncate(file, 1 << 40)  # the data is a tiny part of the file
    verdict = blank_verdict(str(file))
    assert verdict.blank
    assert not verdict.complete
    write_at(file, 8 * MIB, b"x" * SAMPLE_BYTES)
    assert not blank_verdict(str(file)).blank


def test_d5_file_with_very_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blank, "EXTENTS_MAX", 2)
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 8 * MIB)
    for number in range(4):
        write_at(file, number * 2 * MIB, bytes(4096))
    assert blank_verdict(str(file)).blank
    write_at(file, 6 * MIB, b"x")
    assert blank_verdict(str(file)).content_at == 6 * MIB


def test_d5_unreadable_is_not_blank(tmp_path: Path) -> None:
    image = zero_file(tmp_path / "image", 8 * MIB)
    with loop_device(image) as loop:
        os.truncate(image, 4 * MIB)
        with pytest.raises(ForeignContent, match="isn't known to be blank"):
            blank_verdict(loop)


def test_other_kinds_of_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none", tmp_path, tmp_path / "fifo"):
        with pytest.raises(DeviceMissing):
            blank_verdict(str(path))
