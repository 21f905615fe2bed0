"""Opening: O_DIRECT or a reason, the engine that works, refusals by their names."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.buffers import aligned_buffer
from storage.device import probe, uring
from storage.device.opening import open_device
from storage.errors import DeviceInUse, DeviceMissing, DeviceRefused, DirectIoRefused, SettingsInvalid, WriteFailed
from tests.support.loop_devices import MIB, loop_device, unused_loop_device, zero_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return zero_file(tmp_path / "file", 8 * MIB)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_open_file(file: Path) -> None:
    before = open_fds()
    with open_device(file, write=True) as device:
        assert device.direct_io
        assert device.writable
        assert device.path == str(file)
        assert device.size_bytes == 8 * MIB
        assert device.io_engine in ("uring", "threads")
        assert device.facts.is_block_device is False
    assert open_fds() == before


def test_read_only_open_can_not_write(file: Path) -> None:
    with open_device(file, write=False, exclusive=False) as device:
        with pytest.raises(WriteFailed) as failure:
            device.write_now(0, aligned_buffer(4096))
        assert failure.value.errno == errno.EBADF
        assert device.counters.write.errors["EBADF"] == 1


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def no_direct(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", no_direct)


def refuse_direct_io(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system takes the flag and refuses the first read."""
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)


def say_direct_is_not_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statx says that I/O with the flag goes through the page cache."""
    monkeypatch.setattr(probe, "direct_io_alignment", lambda _fd: (0, 0))


@pytest.mark.parametrize("how", [refuse_direct, refuse_direct_io, say_direct_is_not_possible])
def test_direct_io_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[pytest.MonkeyPatch], None]
) -> None:
    before = open_fds()
    how(monkeypatch)
    with pytest.raises(DirectIoRefused):
        open_device(file, write=True)
    assert open_fds() == before
    with open_device(file, write=True, allow_buffered=True) as device:
        assert not device.direct_io
        # Without O_DIRECT memory of any alignment will do.
        data = memoryview(bytearray(b"xy" * 2048))
        device.write_now(4096, data)
        device.flush_now()
        back = memoryview(bytearray(4097))[1:]
        device.read_now(4096, back)
        assert back == data


def test_unreadable_first_block_does_not_refuse_the_device(file: Path) -> None:
    """R7: recovery deals with what can't be read."""
    with loop_device(file) as loop:
        os.truncate(file, 0)
        with open_device(loop, write=True) as device:
            assert device.direct_io


def test_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none", tmp_path, tmp_path / "fifo", tmp_path / "plain" / "below", Path("/dev/null")):
        with pytest.raises(DeviceMissing):
            open_device(path, write=True)


def test_loop_device_without_a_file(file: Path) -> None:
    with unused_loop_device() as loop, open_device(loop, write=True) as device:
        assert device.size_bytes == 0


def test_read_only_block_device_is_refused_for_writing(file: Path) -> None:
    with loop_device(file, read_only=True) as loop:
        with pytest.raises(DeviceRefused):
            open_device(loop, write=True)
        with open_device(loop, write=False, exclusive=False) as device:
            device.read_now(0, aligned_buffer(4096))


def test_program_being_run_is_in_use(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(path: str, flags: int, *rest: int) -> int:
        raise OSError(errno.ETXTBSY, "Text file busy")

    monkeypatch.setattr(os, "open", busy)
    with pytest.raises(DeviceInUse):
        open_device(file, write=True)


def test_path_replaced_meanwhile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = zero_file(file.with_name("other"), MIB)
    real = os.open

    def late_open(path: str, flags: int, *rest: int) -> int:
        os.replace(other, file)
        monkeypatch.undo()
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", late_open)
    with pytest.raises(DeviceInUse, match="replaced"):
        open_device(file, write=True)


def test_unknown_engine(file: Path) -> None:
    with pytest.raises(SettingsInvalid):
        open_device(file, write=True, io_engine="aio")


def no_package() -> object:
    raise ImportError("No module named 'uring_api'")


def denied_ring(*_: object, **__: object) -> object:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def no_native_part(*_: object, **__: object) -> object:
    raise RuntimeError("uring-api native extension is unavailable")


class WrongRing:
    """A ring that answers a read with other bytes, or not at all."""

    def __init__(self, *_: object, **__: object) -> None:
        self.answer: list[SimpleNamespace] = []

    def prepare_read(self, _fd: int, buffer: memoryview, _offset: int, _data: object) -> None:
        buffer[0] ^= 0xFF
        self.answer = [SimpleNamespace(res=len(buffer))]

    def submit(self) -> int:
        return 1

    def wait(self, _seconds: float) -> list[SimpleNamespace]:
        return self.answer

    def close(self) -> None:
        pass


class SilentRing(WrongRing):
    def wait(self, _seconds: float) -> list[SimpleNamespace]:
        return []


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (no_package, "not usable"),
        (lambda: SimpleNamespace(Ring=denied_ring), "refuses it: Operation not permitted"),
        (lambda: SimpleNamespace(Ring=no_native_part), "not usable"),
        (lambda: SimpleNamespace(Ring=WrongRing), "other bytes"),
        (lambda: SimpleNamespace(Ring=SilentRing), "did not end"),
    ],
)
def test_auto_takes_threads_where_the_ring_does_not_work(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: Callable[[], object],
    reason: str,
) -> None:
    monkeypatch.setattr(uring, "_uring_module", module)
    monkeypatch.setattr(uring, "_abandoned", [])
    with caplog.at_level(logging.INFO), open_device(file, write=True) as device:
        assert device.io_engine == "threads"
    assert reason in caplog.text
    with pytest.raises(DeviceRefused, match="io_uring was asked for"):
        open_device(file, write=True, io_engine="uring")


SECCOMP_PROGRAM = """
import ctypes, struct, sys
from storage.device.opening import open_device
def denying(number, error):
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(raw)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP, filter
denying(425, int(sys.argv[2]))  # io_uring_setup, on every architecture
with open_device(sys.argv[1], write=True) as device:
    print(device.io_engine)
"""


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_auto_takes_threads_where_the_kernel_denies_a_ring(file: Path, error: int) -> None:
    """As a container's system call filter, an old kernel, or a memory limit do it."""
    done = subprocess.run(
        [sys.executable, "-c", SECCOMP_PROGRAM, str(file), str(error)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "threads\n", "")


def test_ring_denied_at_the_start_falls_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with open_device(file, write=True, io_engine="uring") as device:
            monkeypatch.setattr(uring, "_uring_module", lambda: SimpleNamespace(Ring=denied_ring))
            device.start(asyncio.get_running_loop())
            assert device.io_engine == "threads"
            await device.read(0, aligned_buffer(4096))
            await device.stop()

    asyncio.run(main())


def test_ring_that_takes_nothing_for_a_while(file: Path) -> None:
    """The kernel may be short of requests: what was prepared is offered again, in order, once."""

    async def main() -> None:
        with open_device(file, write=True, io_engine="uring") as device:
            device.start(asyncio.get_running_loop())
            engine = device._engine
            assert isinstance(engine, uring.UringEngine)
            ring, refusals = engine._ring, [errno.EAGAIN, errno.EBUSY, errno.EINTR]

            class ShortRing:
                def __getattr__(self, name: str) -> object:
                    return getattr(ring, name)

                def submit(self) -> int:
                    if refusals:
                        raise OSError(refusals.pop(), "later")
                    taken: int = ring.submit()
                    return taken

            engine._ring = ShortRing()
            await asyncio.gather(*[device.read(0, aligned_buffer(4096)) for _ in range(300)])
            assert not refusals
            assert device.counters.read.operations == 300
            await device.stop()

    asyncio.run(main())


def test_self_test_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open_device(tmp_path / "empty", write=True) as device:
        assert device.size_bytes == 0
