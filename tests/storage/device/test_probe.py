"""What a path is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.device.probe import direct_io_alignment, probe
from storage.errors import DeviceMissing
from tests.support.loop_devices import MIB, loop_device, run, tmpfs, zero_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return zero_file(tmp_path / "file", 8 * MIB)


def test_regular_file(file: Path) -> None:
    facts = probe(str(file))
    assert not facts.is_block_device
    assert facts.size_bytes == 8 * MIB
    assert facts.logical_block_bytes >= 512
    assert 4096 % facts.logical_block_bytes == 0
    assert not facts.read_only


def test_file_alignment_is_what_direct_io_takes(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    memory, offset = direct_io_alignment(fd)
    os.close(fd)
    if offset is None:
        pytest.skip("this kernel does not tell the alignment of O_DIRECT")
    assert probe(str(file)).logical_block_bytes == max(offset, memory or 0, 512)
    assert probe(str(file)).direct_io_possible


def test_file_system_that_does_not_tell(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 8 * MIB) as place:
        facts = probe(str(zero_file(place / "file", 4 * MIB)))
        assert facts.logical_block_bytes in (512, 4096)


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_block_device(file: Path, sector_bytes: int) -> None:
    with loop_device(file, sector_bytes) as loop:
        facts = probe(loop)
        assert facts.is_block_device
        assert facts.size_bytes == 8 * MIB
        assert facts.logical_block_bytes == sector_bytes
        assert facts.physical_block_bytes >= sector_bytes
        assert facts.discard
        assert not facts.read_only
        run("blockdev", "--setro", loop)
        assert probe(loop).read_only
        run("blockdev", "--setrw", loop)


def test_probing_changes_nothing(file: Path) -> None:
    before = os.stat(file)
    probe(str(file))
    after = os.stat(file)
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)


def test_what_is_no_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "around").symlink_to(tmp_path / "around")
    for path in (tmp_path, tmp_path / "none", tmp_path / "fifo", tmp_path / "around", Path("/dev/null")):
        with pytest.raises(DeviceMissing):
            probe(str(path))
