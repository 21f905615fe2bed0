"""D6: one process per device, through whatever path."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from storage.device.blank import blank_verdict
from storage.device.locking import is_held
from storage.device.opening import open_device
from storage.device.probe import probe
from storage.device.signatures import foreign_signature
from storage.errors import DeviceInUse, DeviceMissing
from tests.support.device_holders import held_elsewhere, opening_elsewhere
from tests.support.loop_devices import MIB, loop_device, mounted, run, tmpfs, zero_file

SIZE = 16 * MIB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return zero_file(tmp_path / "cache", SIZE)


def refused(path: Path | str) -> None:
    with pytest.raises(DeviceInUse):
        open_device(path, write=True)


def test_d6_file_second_process_is_refused(file: Path) -> None:
    with held_elsewhere(file):
        refused(file)
        assert is_held(str(file))
    assert not is_held(str(file))
    with open_device(file, write=True):
        assert opening_elsewhere(file) == "device_in_use"
    assert opening_elsewhere(file) == "held"


def test_d6_the_same_process_is_refused_too(file: Path) -> None:
    with open_device(file, write=True):
        refused(file)


def test_d6_hard_link_and_symlink(file: Path) -> None:
    hard, soft = file.with_name("hard"), file.with_name("soft")
    hard.hardlink_to(file)
    soft.symlink_to(file)
    for held in (file, hard, soft):
        with held_elsewhere(held):
            for other in (file, hard, soft):
                refused(other)
                assert is_held(str(other))


def test_d6_bind_mount(tmp_path: Path) -> None:
    inside = tmp_path / "real"
    inside.mkdir()
    file = zero_file(inside / "cache", SIZE)
    with mounted(str(inside), tmp_path / "bound", "--bind") as bound:
        with held_elsewhere(file):
            refused(bound / "cache")
        with held_elsewhere(bound / "cache"):
            refused(file)
            assert is_held(str(file))


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_d6_loop_device_second_process_is_refused(file: Path, sector_bytes: int) -> None:
    with loop_device(file, sector_bytes) as loop:
        assert not is_held(loop)
        with held_elsewhere(loop):
            refused(loop)
            assert is_held(loop)
        assert not is_held(loop)


def test_d6_second_node_of_a_block_device(file: Path, tmp_path: Path) -> None:
    with loop_device(file) as loop:
        node = tmp_path / "node"
        os.mknod(node, 0o600 | 0o060000, os.stat(loop).st_rdev)
        with held_elsewhere(loop):
            refused(node)
            assert is_held(str(node))
        with held_elsewhere(node):
            refused(loop)


def test_d6_loop_over_a_held_file(file: Path) -> None:
    with held_elsewhere(file), loop_device(file) as loop:
        refused(loop)
        assert is_held(loop)


def test_d6_file_under_a_held_loop(file: Path) -> None:
    hard = file.with_name("hard")
    hard.hardlink_to(file)
    with loop_device(file) as loop, held_elsewhere(loop):
        refused(file)
        refused(hard)
        assert is_held(str(file))
        assert is_held(str(hard))


def test_d6_two_loops_over_one_file(file: Path) -> None:
    with loop_device(file) as first, loop_device(file) as second, held_elsewhere(first):
        refused(second)
        assert is_held(second)


def test_d6_nested_loops(file: Path) -> None:
    with loop_device(file) as lower, loop_device(lower) as upper:
        for held, others in ((file, (lower, upper)), (lower, (file, upper)), (upper, (file, lower))):
            with held_elsewhere(held):
                for other in others:
                    refused(other)
                    assert is_held(str(other))
        assert opening_elsewhere(upper) == "held"


def test_d6_loop_whose_file_was_unlinked(file: Path) -> None:
    hard = file.with_name("hard")
    hard.hardlink_to(file)
    with loop_device(file) as loop:
        file.unlink()
        assert opening_elsewhere(loop) == "held"
        # The loop device no longer knows a path to its file; the inode is still the same.
        with held_elsewhere(hard):
            refused(loop)
            assert is_held(loop)
        with held_elsewhere(loop):
            refused(hard)
            assert is_held(str(hard))


def test_d6_loop_whose_path_leads_to_another_file(file: Path) -> None:
    with loop_device(file) as loop:
        file.rename(file.with_name("moved"))
        zero_file(file, SIZE)
        with held_elsewhere(file):
            assert opening_elsewhere(loop) == "held"


@contextmanager
def partitioned(file: Path) -> Iterator[str]:
    """A loop device with two partitions, told to the kernel directly: it may be built without partition tables."""
    with loop_device(file) as loop:
        for number in (1, 2):
            run("addpart", loop, str(number), str(8192 * number), "8192")
        try:
            yield loop
        finally:
            for number in (1, 2):
                run("delpart", loop, str(number))


def test_d6_partition_and_disk(file: Path) -> None:
    with partitioned(file) as loop:
        with held_elsewhere(f"{loop}p1"):
            refused(loop)
            refused(f"{loop}p1")
            refused(file)
            # The backing file's lock covers all of it.
            refused(f"{loop}p2")
        with held_elsewhere(loop):
            refused(f"{loop}p1")
            assert is_held(loop)
            assert is_held(f"{loop}p1")
        with held_elsewhere(file):
            refused(f"{loop}p1")
            assert is_held(f"{loop}p1")


def test_d6_mounted_device(file: Path, tmp_path: Path) -> None:
    run("mkfs.ext4", "-q", str(file))
    with loop_device(file) as loop, mounted(loop, tmp_path / "mnt"):
        refused(loop)
        refused(file)
        assert is_held(loop)
        assert is_held(str(file))


def test_d6_held_device_can_not_be_mounted(file: Path, tmp_path: Path) -> None:
    run("mkfs.ext4", "-q", str(file))
    (tmp_path / "mnt").mkdir()
    with loop_device(file) as loop:
        for held in (file, loop):
            with held_elsewhere(held):
                done = subprocess.run(["mount", loop, str(tmp_path / "mnt")], capture_output=True, check=False)
                assert done.returncode != 0


def test_d6_active_swap_is_refused(file: Path) -> None:
    with loop_device(file) as loop:
        run("mkswap", loop)
        done = subprocess.run(["swapon", loop], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"this machine takes no swap: {done.stderr.strip()}")
        try:
            refused(loop)
            assert is_held(loop)
        finally:
            run("swapoff", loop)


def look_at(path: str) -> None:
    """Everything that offline tools do to a device, in this process."""
    probe(path)
    foreign_signature(path)
    blank_verdict(path)
    is_held(path)
    open_device(path, write=False, exclusive=False).close()
    with pytest.raises(DeviceInUse):
        open_device(path, write=True)


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_d6_still_held_after_tools_touched_the_device(file: Path, kind: str) -> None:
    with ExitStack() as stack:
        path = str(file) if kind == "file" else stack.enter_context(loop_device(file))
        with open_device(path, write=True):
            look_at(path)
            assert opening_elsewhere(path) == "device_in_use"
            assert is_held(path)
        with held_elsewhere(path):
            look_at(path)
            assert opening_elsewhere(path) == "device_in_use"
            assert is_held(path)


def test_d6_asking_takes_no_lock(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking in the very moment of a start must not make the start fail: so it never locks or claims anything."""
    taken: list[object] = []
    real_open = os.open

    def watching_open(path: str, flags: int, *rest: int) -> int:
        assert not flags & os.O_EXCL
        return real_open(path, flags, *rest)

    monkeypatch.setattr(fcntl, "flock", lambda *call: taken.append(call))
    monkeypatch.setattr(os, "open", watching_open)
    with loop_device(file) as loop:
        assert not is_held(str(file))
        assert not is_held(loop)
        monkeypatch.undo()
        with held_elsewhere(loop):
            monkeypatch.setattr(fcntl, "flock", lambda *call: taken.append(call))
            assert is_held(str(file))
            assert is_held(loop)
    assert not taken


def test_d6_a_refused_opener_leaves_nothing_locked(file: Path) -> None:
    with loop_device(file) as loop:
        with held_elsewhere(file):
            refused(loop)
        before = set(os.listdir("/proc/self/fd"))
        with held_elsewhere(file):
            refused(loop)
        assert set(os.listdir("/proc/self/fd")) == before
        assert opening_elsewhere(loop) == "held"
        assert opening_elsewhere(file) == "held"


def test_d6_a_killed_holder_leaves_nothing_locked(file: Path) -> None:
    with loop_device(file) as loop:
        for path in (str(file), loop):
            device = open_device(path, write=True)
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), 9)
            os.waitpid(child, 0)
            refused(path)
            device.close()
            assert opening_elsewhere(path) == "held"


def test_d6_udevs_momentary_lock_of_a_node_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    with loop_device(file) as loop:
        node = os.open(loop, os.O_RDONLY)
        real(node, fcntl.LOCK_SH)
        seen = 0

        def flock(fd: int, operation: int) -> None:
            nonlocal seen
            seen += 1
            if seen == 3:
                real(node, fcntl.LOCK_UN)
            real(fd, operation)

        monkeypatch.setattr(fcntl, "flock", flock)
        with open_device(loop, write=True):
            pass
        assert seen > 3
        os.close(node)


def test_d6_read_only_tools_open_a_held_device(file: Path) -> None:
    with held_elsewhere(file), open_device(file, write=False, exclusive=False) as device:
        assert device.size_bytes == SIZE
    with pytest.raises(ValueError, match="only written by the one who holds it"):
        open_device(file, write=True, exclusive=False)


def test_is_held_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeviceMissing):
        is_held(str(tmp_path / "none"))


def test_d6_file_on_tmpfs(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 8 * MIB) as place:
        file = zero_file(place / "cache", 4 * MIB)
        with held_elsewhere(file):
            refused(file)
            assert is_held(str(file))
