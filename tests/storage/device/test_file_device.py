"""Reading and writing through both I/O engines, under both event loops."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvloop

from storage.buffers import BufferArena, aligned_buffer
from storage.device import file_device, operations
from storage.device.counters import OpKind
from storage.device.file_device import FileDevice
from storage.device.interface import BlockDevice
from storage.device.opening import open_device
from storage.device.operations import AGAIN, RETRIES_MAX, Operation
from storage.device.uring import RING_ENTRIES
from storage.errors import Busy, FlushFailed, ReadFailed, WriteFailed
from tests.support.loop_devices import MIB, loop_device, tmpfs, zero_file

SIZE = 8 * MIB
Body = Callable[[FileDevice], Coroutine[None, None, None]]
Runner = Callable[[Path | str, Body], None]


@pytest.fixture(params=["uring", "threads"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["asyncio", "uvloop"])
def on_device(request: pytest.FixtureRequest, engine: str) -> Runner:
    """Run a coroutine with the device attached to a fresh loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(path: Path | str, body: Body) -> None:
        async def main() -> None:
            async with attached(path, engine) as device:
                await body(device)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


@asynccontextmanager
async def attached(path: Path | str, engine: str) -> AsyncIterator[FileDevice]:
    with open_device(path, write=True, io_engine=engine) as device:
        device.start(asyncio.get_running_loop())
        assert device.io_engine == engine
        try:
            yield device
        finally:
            await device.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return zero_file(tmp_path / "cache", SIZE)


@pytest.fixture
def arena() -> Iterator[BufferArena]:
    arena = BufferArena(8 * MIB)
    yield arena
    arena.close()


def filled(size_bytes: int, seed: int) -> memoryview:
    buffer = aligned_buffer(size_bytes)
    buffer[:] = random.Random(seed).randbytes(size_bytes)
    return buffer


def typed_as_the_engine_sees_it(device: FileDevice) -> BlockDevice:
    """Type checkers prove here that FileDevice is a BlockDevice."""
    return device


def test_b1_many_concurrent_operations_keep_every_byte(file: Path, on_device: Runner, arena: BufferArena) -> None:
    """More at once than the ring takes; every block is written and read again in random order and sizes."""
    blocks = SIZE // 4096
    order = random.Random(7)
    runs: list[tuple[int, int]] = []
    at = 0
    while at < blocks:
        length = min(order.choice([1, 1, 1, 2, 4, 16]), blocks - at)
        runs.append((at, length))
        at += length
    assert len(runs) > 2 * RING_ENTRIES

    def content(block: int) -> bytes:
        return block.to_bytes(8, "little") * 512

    async def body(device: FileDevice) -> None:
        written = [aligned_buffer(length * 4096) for _, length in runs]
        for (start, length), buffer in zip(runs, written, strict=True):
            buffer[:] = b"".join(content(start + i) for i in range(length))
        jobs = list(zip(runs, written, strict=True))
        order.shuffle(jobs)
        await asyncio.gather(*[device.write(start * 4096, buffer) for (start, _), buffer in jobs])
        await device.flush()

        async def reader(number: int) -> None:
            mine = random.Random(number)
            buffer = await arena.acquire(64 * 4096, 30.0)
            for _ in range(20):
                length = mine.choice([1, 3, 64])
                start = mine.randrange(blocks - length)
                view = buffer.view[: length * 4096]
                await device.read(start * 4096, view)
                assert view == b"".join(content(start + i) for i in range(length))
            buffer.release()

        await asyncio.gather(*[reader(number) for number in range(64)])
        assert device.in_flight == 0
        assert arena.used_bytes == 0
        assert device.counters.read.operations == 64 * 20
        assert device.counters.write.operations == len(runs)
        assert device.counters.write.bytes == SIZE
        assert device.counters.flush.operations == 1
        assert sum(device.counters.read.duration_buckets) == 64 * 20
        assert device.counters.read.failed == device.counters.write.failed == 0

    on_device(file, body)
    assert file.read_bytes() == b"".join(content(block) for block in range(blocks))


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_loop_device(file: Path, on_device: Runner, sector_bytes: int) -> None:
    data, back = filled(MIB, 1), aligned_buffer(MIB)

    async def body(device: FileDevice) -> None:
        assert device.block_bytes == sector_bytes
        assert device.size_bytes == SIZE
        assert device.direct_io
        await device.write(MIB, data)
        await device.flush()
        await device.read(MIB, back)
        last = aligned_buffer(sector_bytes)
        await device.read(SIZE - sector_bytes, last)
        assert last == bytes(sector_bytes)

    with loop_device(file, sector_bytes) as loop:
        on_device(loop, body)
    assert back == data
    assert file.read_bytes()[MIB : 2 * MIB] == data


def test_blocking_calls(file: Path, engine: str) -> None:
    data, back = filled(MIB, 2), aligned_buffer(MIB)
    with open_device(file, write=True, io_engine=engine) as device:
        device.write_now(4096, data)
        device.flush_now()
        device.read_now(4096, back)
        assert back == data
        counters = device.counters
        assert (counters.read.operations, counters.read.bytes) == (1, MIB)
        assert (counters.write.operations, counters.write.bytes) == (1, MIB)
        assert (counters.flush.operations, counters.flush.bytes) == (1, 0)


def test_a_transfer_cut_short_goes_on(file: Path, on_device: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    data, back = filled(MIB, 3), aligned_buffer(MIB)
    whole_rest = Operation.rest
    asked: list[int] = []

    def rest(self: Operation) -> memoryview:
        # The kernel is asked for less than is left: the same as if it gave less than it was asked for.
        asked.append(self.position())
        return whole_rest(self)[: 128 * 1024]

    monkeypatch.setattr(Operation, "rest", rest)

    async def body(device: FileDevice) -> None:
        await device.write(0, data)
        await device.read(0, back)
        device.read_now(0, aligned_buffer(MIB))

    on_device(file, body)
    assert back == data
    assert asked == 3 * [n * 128 * 1024 for n in range(8)]


def test_continuation_keeps_to_whole_blocks() -> None:
    operation = Operation(OpKind.READ, 8192, memoryview(bytearray(16384)), 4096)
    assert operation.advance(5000) == AGAIN
    assert (operation.position(), len(operation.rest())) == (8192 + 4096, 12288)
    assert operation.advance(4095) == -1
    assert operation.advance(12288) == 0


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EINTR])
def test_interrupted_calls_are_asked_again_within_bounds(number: int) -> None:
    operation = Operation(OpKind.WRITE, 0, memoryview(bytearray(4096)), 4096)
    for _ in range(RETRIES_MAX):
        assert operation.advance(-number) == AGAIN
    assert operation.advance(-number) == number


def test_blocking_call_survives_eagain(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    refusals = iter([BlockingIOError(errno.EAGAIN, "again"), InterruptedError(errno.EINTR, "interrupted")])

    def preadv(*call: object) -> int:
        for refusal in refusals:
            raise refusal
        return real(*call)  # type: ignore[arg-type]

    with open_device(file, write=True) as device:
        monkeypatch.setattr(os, "preadv", preadv)
        device.read_now(0, aligned_buffer(4096))
        assert device.counters.read.failed == 0


def test_read_behind_the_end_is_short(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        with pytest.raises(ReadFailed) as whole:
            await device.read(SIZE, aligned_buffer(4096))
        with pytest.raises(ReadFailed) as part:
            await device.read(SIZE - 4096, aligned_buffer(8192))
        with pytest.raises(ReadFailed) as now:
            device.read_now(SIZE, aligned_buffer(4096))
        assert (whole.value.errno, part.value.errno, now.value.errno) == (0, 0, 0)
        assert part.value.offset_bytes == SIZE - 4096
        assert device.counters.read.errors["short"] == 3
        assert device.counters.read.bytes == 0

    on_device(file, body)


def test_read_error_of_the_device(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        os.truncate(file, SIZE // 2)
        await device.read(0, aligned_buffer(4096))
        with pytest.raises(ReadFailed) as failure:
            await device.read(SIZE // 2, aligned_buffer(8192))
        with pytest.raises(ReadFailed) as now:
            device.read_now(SIZE // 2, aligned_buffer(8192))
        for error in (failure.value, now.value):
            assert error.errno == errno.EIO
            assert error.offset_bytes == SIZE // 2
        assert device.counters.read.errors["EIO"] == 2

    with loop_device(file) as loop:
        on_device(loop, body)


def test_write_error_of_the_device(tmp_path: Path, on_device: Runner) -> None:
    """A loop device over a file on a full file system."""

    async def body(device: FileDevice) -> None:
        places = range(0, SIZE, MIB)
        ends = await asyncio.gather(*[device.write(at, filled(MIB, at)) for at in places], return_exceptions=True)
        failures = [(at, end) for at, end in zip(places, ends, strict=True) if end is not None]
        assert failures
        for at, error in failures:
            assert isinstance(error, WriteFailed)
            assert error.errno in (errno.ENOSPC, errno.EIO)
            assert error.offset_bytes == at
        errors = device.counters.write.errors
        assert errors["ENOSPC"] + errors["EIO"] == len(failures)
        assert device.counters.write.operations == SIZE // MIB

    with tmpfs(tmp_path / "small", 4 * MIB) as place:
        (place / "sparse").touch()
        os.truncate(place / "sparse", SIZE)
        with loop_device(place / "sparse", direct_io=False) as loop:
            on_device(loop, body)


@contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_short_write_then_refusal(file: Path, on_device: Runner) -> None:
    """The kernel writes the part below a limit of the process, then refuses the rest."""

    async def body(device: FileDevice) -> None:
        with files_limited_to(4 * MIB + 16384), pytest.raises(WriteFailed) as failure:
            await device.write(4 * MIB, filled(65536, 5))
        assert failure.value.errno == errno.EFBIG
        assert device.counters.write.errors["other"] == 1

    on_device(file, body)
    assert file.read_bytes()[4 * MIB :][:16384] == filled(65536, 5)[:16384]


def test_flush_error(file: Path, on_device: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fdatasync(_fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    async def body(device: FileDevice) -> None:
        with pytest.raises(FlushFailed) as failure:
            await device.flush()
        with pytest.raises(FlushFailed):
            device.flush_now()
        assert failure.value.errno == errno.EIO
        assert device.counters.flush.errors["EIO"] == 2

    on_device(file, body)


def test_b1_cancelled_waiter_leaves_the_buffer_to_the_kernel(file: Path, on_device: Runner, arena: BufferArena) -> None:
    """A cancelled read still ends; until then neither its task goes on nor is its buffer given to anyone else."""
    data = filled(4096, 6)
    file.write_bytes(bytes(data) + bytes(SIZE - 4096))

    async def body(device: FileDevice) -> None:
        buffer = await arena.acquire(4096, 1.0)
        view = buffer.view

        async def request() -> None:
            try:
                await device.read(0, view)
            finally:
                buffer.release()

        task = asyncio.create_task(request())
        await asyncio.sleep(0)
        assert device.in_flight == 1
        task.cancel()
        await asyncio.sleep(0)
        if device.in_flight:
            assert not task.done()
            assert arena.used_bytes == 4096
        with pytest.raises(asyncio.CancelledError):
            await task
        assert device.in_flight == 0
        assert arena.used_bytes == 0
        assert view == data

    on_device(file, body)


def test_b1_held_buffer_returns_at_the_completion(file: Path, on_device: Runner, arena: BufferArena) -> None:
    """Who waits with a time limit leaves first; the buffer follows when the I/O is over."""

    async def body(device: FileDevice) -> None:
        buffer = await arena.acquire(4096, 1.0)
        io = device.write(0, buffer.view)
        buffer.hold_for(io)
        assert not io.cancel()
        assert not io.cancelled()
        buffer.release()
        assert arena.used_bytes == 4096
        await io
        await asyncio.sleep(0)
        assert arena.used_bytes == 0

    on_device(file, body)


def test_cancelled_waiter_of_a_failing_read(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        async def request() -> None:
            await device.read(SIZE, aligned_buffer(4096))

        task = asyncio.create_task(request())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert device.counters.read.errors["short"] == 1

    on_device(file, body)


def test_stop_waits_for_everything_in_flight(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        buffers = [filled(4096, n) for n in range(3 * RING_ENTRIES)]
        ios = [device.write(n * 4096, buffer) for n, buffer in enumerate(buffers)]
        ios.append(device.flush())
        stopping = asyncio.ensure_future(device.stop())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="not attached"):
            device.read(0, buffers[0])
        await stopping
        assert all(io.done() and io.exception() is None for io in ios)
        await device.stop()
        back = aligned_buffer(4096)
        for n, buffer in enumerate(buffers):
            device.read_now(n * 4096, back)
            assert back == buffer

    on_device(file, body)


def test_detached_device_can_be_attached_again(file: Path, engine: str) -> None:
    with open_device(file, write=True, io_engine=engine) as device:

        async def one_life() -> None:
            device.start(asyncio.get_running_loop())
            with pytest.raises(RuntimeError, match="attached to a loop already"):
                device.start(asyncio.get_running_loop())
            with pytest.raises(RuntimeError, match="stop"):
                device.close()
            await device.read(0, aligned_buffer(4096))
            await device.stop()

        asyncio.run(one_life())
        asyncio.run(one_life())
        assert device.counters.read.operations == 2


def test_calls_that_can_only_be_mistakes(file: Path, engine: str) -> None:
    device = open_device(file, write=True, io_engine=engine)
    block = device.block_bytes
    for offset, length in ((1, block), (0, block - 1), (-block, block), (0, 0)):
        with pytest.raises(ValueError, match="not in whole blocks"):
            device.read_now(offset, memoryview(bytearray(length)))
    with pytest.raises(ValueError, match="the device has"):
        device.write_now(SIZE, aligned_buffer(4096))
    assert file.stat().st_size == SIZE
    with pytest.raises(RuntimeError, match="not attached"):
        device.read(0, aligned_buffer(4096))
    device.close()
    device.close()
    with pytest.raises(RuntimeError, match="closed"):
        device.read_now(0, aligned_buffer(4096))


def test_buffers_of_other_item_types(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        rows = aligned_buffer(8192).cast("Q")
        rows[0] = rows[1023] = 0x0102030405060708
        await device.write(0, rows)
        back = aligned_buffer(8192)
        await device.read(0, back.cast("Q"))
        assert back == rows.cast("B")

    on_device(file, body)


def test_l1_operations_in_flight_are_bounded(file: Path, on_device: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_device, "IN_FLIGHT_MAX", 4)

    async def body(device: FileDevice) -> None:
        ios = [device.read(0, aligned_buffer(4096)) for _ in range(4)]
        with pytest.raises(Busy):
            device.read(0, aligned_buffer(4096))
        await asyncio.gather(*ios)
        await device.read(0, aligned_buffer(4096))

    on_device(file, body)


def test_a_bug_in_a_thread_ends_the_operation(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that dies of a bug must not leave its waiter, or stop(), waiting for ever."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    async def main() -> None:
        async with attached(file, "threads") as device:

            def broken(*_: object) -> int:
                raise ZeroDivisionError

            with monkeypatch.context() as patched:
                patched.setattr(operations, "_system_call", broken)
                with pytest.raises(ReadFailed) as failure:
                    await device.read(0, aligned_buffer(4096))
            assert failure.value.errno == errno.EFAULT
            await device.read(0, aligned_buffer(4096))

    asyncio.run(main())
