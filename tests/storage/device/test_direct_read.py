"""Reads and writes that tell of their end directly, through both I/O engines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.buffers import aligned_buffer
from storage.device import file_device
from storage.device.direct_read import DirectRead
from storage.device.file_device import FileDevice
from storage.device.uring import RING_ENTRIES
from storage.errors import Busy
from tests.storage.device.test_file_device import Runner, engine, on_device
from tests.support.loop_devices import MIB, zero_file

__all__ = ["engine", "on_device"]

SIZE = 4 * MIB
BLOCKS = SIZE // 4096


def content(block: int) -> bytes:
    return block.to_bytes(8, "little") * 512


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = zero_file(tmp_path / "cache", SIZE)
    path.write_bytes(b"".join(map(content, range(BLOCKS))))
    return path


class Read(DirectRead):
    def __init__(self, offset_bytes: int, length: int = 4096, told: Callable[[Read], None] = lambda _: None) -> None:
        self.offset_bytes = offset_bytes
        self.length = length
        self.view = aligned_buffer(max(length, 1))[:length]
        self.times = 0
        self._told = told

    def ended(self) -> None:
        self.times += 1
        self._told(self)


async def until_idle(device: FileDevice) -> None:
    while device.in_flight:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_b1_more_reads_than_the_ring_takes_keep_every_byte(file: Path, on_device: Runner) -> None:
    """Of several sizes, begun by those who are told of others too, with a batch and single ones between them."""
    chance = random.Random(5)

    async def body(device: FileDevice) -> None:
        reads: list[Read] = []

        def begin(told: Callable[[Read], None]) -> None:
            count = chance.choice([1, 1, 1, 2, 16])
            reads.append(Read(chance.randrange(BLOCKS - 16) * 4096, count * 4096, told))
            device.begin_read(reads[-1])

        for _ in range(2 * RING_ENTRIES):
            begin(lambda _: begin(lambda _: None))
        batch = device.read_many([(0, aligned_buffer(4096)) for _ in range(10)])
        single = device.read(0, aligned_buffer(4096))
        assert not any(read.times for read in reads), "told by begin_read"
        assert device.in_flight == len(device.counters.pending) + 9 == 2 * RING_ENTRIES + 11
        await batch.ended
        await single
        await until_idle(device)
        assert len(reads) == 4 * RING_ENTRIES
        for read in reads:
            first = read.offset_bytes // 4096
            assert read.times == 1
            assert read.error is None
            assert bytes(read.view) == b"".join(map(content, range(first, first + read.length // 4096)))
        counters = device.counters
        assert not counters.pending
        assert counters.read.operations == len(reads) + 11
        assert counters.read.bytes == sum(read.length for read in reads) + 11 * 4096
        assert sum(counters.read.duration_buckets) == counters.read.operations

    on_device(file, body)


def test_failures_are_told_to_those_whose_reads_failed(file: Path, on_device: Runner) -> None:
    """Behind the end, and across it, where the read goes on as far as it can."""

    async def body(device: FileDevice) -> None:
        reads = [Read(offset, 8192) for offset in (0, SIZE, 4096, SIZE - 4096, SIZE - 8192)]
        for read in reads:
            device.begin_read(read)
        await until_idle(device)
        assert [read.error is not None for read in reads] == [False, True, False, True, False]
        assert [read.times for read in reads] == [1] * 5
        assert reads[3].error is not None
        assert reads[3].error.fields["offset_bytes"] == SIZE - 4096
        assert device.counters.read.errors["short"] == 2
        assert device.counters.read.operations == 5

    on_device(file, body)


def test_one_who_raises_keeps_nobody_from_being_told(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

        def broken(_: Read) -> None:
            raise KeyError("a mistake of the one who is told")

        reads = [Read(0, 4096, broken) if at % 3 == 0 else Read(SIZE if at % 3 == 1 else 0) for at in range(30)]
        for read in reads:
            device.begin_read(read)
        await until_idle(device)
        assert [read.times for read in reads] == [1] * 30
        assert len(errors) == 10

    on_device(file, body)


def test_who_reads_much_is_told_in_several_passes_of_the_loop(
    file: Path, on_device: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them the loop has its turn: what is asked for meanwhile is on its way to the device."""
    monkeypatch.setattr(file_device, "READ_AT_ONCE_BYTES", 2 * 4096)

    async def body(device: FileDevice) -> None:
        told: list[int] = []
        passes = 0

        def turn() -> None:
            nonlocal passes
            passes += 1
            if device.in_flight:
                asyncio.get_running_loop().call_soon(turn)

        for _ in range(RING_ENTRIES):
            device.begin_read(Read(0, 4096, lambda _: told.append(passes)))
        turn()
        await until_idle(device)
        assert len(told) == RING_ENTRIES
        # What is left of earlier passes, and what the ring has just brought.
        assert max(map(told.count, told)) <= 2 * 2

    on_device(file, body)


def test_l1_direct_reads_count_as_others_do(file: Path, on_device: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_device, "IN_FLIGHT_MAX", 2)

    async def body(device: FileDevice) -> None:
        reads = [Read(0), Read(0)]
        for read in reads:
            device.begin_read(read)
        with pytest.raises(Busy):
            device.begin_read(Read(0))
        assert device.counters.oldest_pending_seconds() > 0
        await until_idle(device)
        assert [read.times for read in reads] == [1, 1]

    on_device(file, body)


def test_calls_that_can_only_be_mistakes(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        for offset, length in ((1, 4096), (-4096, 4096), (0, 100), (0, 0)):
            with pytest.raises(ValueError, match="not in whole blocks"):
                device.begin_read(Read(offset, length))
        assert device.in_flight == 0
        await device.stop()
        with pytest.raises(RuntimeError, match="not attached"):
            device.begin_read(Read(0))

    on_device(file, body)


def test_stop_waits_until_all_are_told(file: Path, on_device: Runner) -> None:
    """Also of reads that failed, which are told a pass of the loop later."""

    async def body(device: FileDevice) -> None:
        reads = [Read(SIZE if at % 2 else 0) for at in range(2 * RING_ENTRIES)]
        for read in reads:
            device.begin_read(read)
        await device.stop()
        assert [read.times for read in reads] == [1] * len(reads)

    on_device(file, body)
