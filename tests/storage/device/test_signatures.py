"""D5: nothing foreign goes unnoticed. Real tools make the content.

Debian packages: e2fsprogs xfsprogs btrfs-progs lvm2 fdisk cryptsetup-bin.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.device import signatures
from storage.device.opening import open_device
from storage.device.signatures import foreign_signature
from storage.errors import DeviceMissing, ForeignContent
from tests.support.loop_devices import MIB, loop_device, run

SIZE = 320 * MIB  # mkfs.xfs wants 300 MiB, mkfs.btrfs 109; sparse


def _luks(path: str) -> None:
    quick = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")
    run("cryptsetup", "luksFormat", "--batch-mode", *quick, "--key-file", "-", path, stdin="secret")


MAKERS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "ext4": ("mkfs.ext4", lambda path: run("mkfs.ext4", "-q", "-F", "-L", "mine", path), "ext4 file system"),
    "xfs": ("mkfs.xfs", lambda path: run("mkfs.xfs", "-q", "-f", path), "xfs file system"),
    "btrfs": ("mkfs.btrfs", lambda path: run("mkfs.btrfs", "-q", "-f", path), "btrfs file system"),
    "swap": ("mkswap", lambda path: run("mkswap", path), "swap"),
    "gpt": ("sfdisk", lambda path: run("sfdisk", "-q", path, stdin="label: gpt\nsize=8MiB\n"), "gpt partition table"),
    "mbr": ("sfdisk", lambda path: run("sfdisk", "-q", path, stdin="label: dos\nsize=8MiB\n"), "dos partition table"),
    "luks": ("cryptsetup", _luks, "crypto_LUKS encrypted volume"),
    "lvm": ("pvcreate", lambda path: run("pvcreate", "-qq", "-y", path), "LVM2_member volume"),
}


@contextmanager
def empty(tmp_path: Path, kind: str) -> Iterator[str]:
    """An empty file, or a loop device over one ("512", "4096")."""
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, SIZE)
    if kind == "file":
        yield str(image)
    else:
        with loop_device(image, int(kind)) as loop:
            yield loop


CASES = [(content, kind) for content in MAKERS for kind in ("file", "512", "4096")]
CASES.remove(("lvm", "file"))  # the tool takes only block devices


@pytest.mark.parametrize(("content", "kind"), CASES)
def test_d5_foreign_content_is_named(tmp_path: Path, content: str, kind: str) -> None:
    tool, make, words = MAKERS[content]
    assert shutil.which(tool), f"{tool} is needed: see the package list above"
    with empty(tmp_path, kind) as path:
        assert foreign_signature(path) is None
        make(path)
        found = foreign_signature(path)
        assert found is not None
        assert found.startswith(words)


def test_d5_the_label_is_shown(tmp_path: Path) -> None:
    with empty(tmp_path, "file") as path:
        MAKERS["ext4"][1](path)
        assert foreign_signature(path) == "ext4 file system labelled 'mine'"


def test_d5_several_signatures_are_foreign_too(tmp_path: Path) -> None:
    """Swap's signature lies at the end of the first page, ext4's superblock at 1024: neither tool sees the other's."""
    with empty(tmp_path, "file") as path:
        MAKERS["ext4"][1](path)
        with open(path, "r+b") as image:
            image.seek(4096 - 10)
            image.write(b"SWAPSPACE2")
        assert foreign_signature(path) is not None


def test_d5_damaged_superblock_is_foreign_too(tmp_path: Path) -> None:
    with empty(tmp_path, "file") as path:
        MAKERS["xfs"][1](path)
        with open(path, "r+b") as image:
            image.seek(108)  # the label: only the checksum is wrong then
            image.write(b"\xff")
        assert foreign_signature(path) is not None


def test_d5_gpt_without_its_first_sector(tmp_path: Path) -> None:
    with empty(tmp_path, "file") as path:
        MAKERS["gpt"][1](path)
        with open(path, "r+b") as image:
            image.write(bytes(512))
        assert foreign_signature(path) == "gpt partition table"


def test_d5_content_without_signature(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"")
    assert foreign_signature(str(image)) is None
    image.write_bytes(b"not empty, but nobody's format" * 1000)
    assert foreign_signature(str(image)) is None


def test_d5_without_libblkid_nothing_is_identified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_LIBRARY", "libblkid-that-is-not-there.so")
    with empty(tmp_path, "file") as path, pytest.raises(ForeignContent, match="--force"):
        foreign_signature(path)


def test_d5_unreadable_device_is_not_identified(tmp_path: Path) -> None:
    with empty(tmp_path, "512") as loop:
        os.truncate(tmp_path / "image", 0)
        with pytest.raises(ForeignContent, match="can't be identified"):
            foreign_signature(loop)


def test_d5_what_was_written_directly_is_seen(tmp_path: Path) -> None:
    """The page cache of the device must not hide what came around it."""
    with empty(tmp_path, "512") as loop:
        assert foreign_signature(loop) is None
        MAKERS["ext4"][1](str(tmp_path / "image"))
        run("sync", str(tmp_path / "image"))
        assert foreign_signature(loop) is not None


def test_looking_leaves_the_device_alone(tmp_path: Path) -> None:
    with empty(tmp_path, "file") as path, open_device(path, write=True):
        before = os.stat(path)
        foreign_signature(path)
        assert (os.stat(path).st_mtime_ns, os.stat(path).st_blocks) == (before.st_mtime_ns, before.st_blocks)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(DeviceMissing):
        foreign_signature(str(tmp_path / "none"))
