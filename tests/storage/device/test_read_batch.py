"""Many reads as one, through both I/O engines: every byte, every failure, every count."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.buffers import BufferArena, aligned_buffer
from storage.device import file_device, operations
from storage.device.file_device import FileDevice
from storage.device.opening import open_device
from storage.device.uring import AT_ONCE_COUNT, RING_ENTRIES
from storage.errors import Busy
from tests.storage.device.test_file_device import Runner, attached, engine, filled, on_device
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


@pytest.fixture
def arena() -> Iterator[BufferArena]:
    arena = BufferArena(8 * MIB)
    yield arena
    arena.close()


def test_b1_several_batches_at_once_keep_every_byte(file: Path, on_device: Runner) -> None:
    """More reads than the ring takes, of several sizes, with single ones between them."""
    chance = random.Random(3)

    async def body(device: FileDevice) -> None:
        batches = []
        for _ in range(4):
            blocks = [(chance.randrange(BLOCKS - 4), chance.choice([1, 1, 2, 4])) for _ in range(RING_ENTRIES)]
            reads = [(first * 4096, aligned_buffer(count * 4096)) for first, count in blocks]
            batches.append((blocks, reads, device.read_many(reads)))
            device.read(0, aligned_buffer(4096))
        assert device.in_flight == 4 * RING_ENTRIES + 4
        for blocks, reads, batch in batches:
            await batch.ended
            assert not batch.failures
            for (first, count), (_, view) in zip(blocks, reads, strict=True):
                assert bytes(view) == b"".join(map(content, range(first, first + count)))
        while device.in_flight:
            await asyncio.sleep(0)
        counters = device.counters
        assert not counters.pending
        total_bytes = sum(len(view) for _, reads, _ in batches for _, view in reads) + 4 * 4096
        assert (counters.read.operations, counters.read.bytes) == (4 * RING_ENTRIES + 4, total_bytes)
        assert sum(counters.read.duration_buckets) == counters.read.operations

    on_device(file, body)


def test_failures_are_those_of_their_reads(file: Path, on_device: Runner) -> None:
    """Behind the end, and across it: what has gone half-way goes on alone, and fails alone."""

    async def body(device: FileDevice) -> None:
        offsets = [0, SIZE, 4096, SIZE - 4096, SIZE - 8192]
        reads = [(offset, aligned_buffer(8192)) for offset in offsets]
        batch = device.read_many(reads)
        await batch.ended
        assert sorted(batch.failures) == [1, 3]
        assert batch.failures[3].fields["offset_bytes"] == SIZE - 4096
        for at in (0, 2, 4):
            block = offsets[at] // 4096
            assert bytes(reads[at][1]) == content(block) + content(block + 1)
        assert device.counters.read.errors["short"] == 2
        assert device.counters.read.operations == 5

    on_device(file, body)


def test_a_batch_of_nothing_has_ended(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        batch = device.read_many([])
        assert batch.ended.done()
        assert not device.counters.pending

    on_device(file, body)


def test_l1_a_batch_counts_by_its_reads(file: Path, on_device: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_device, "IN_FLIGHT_MAX", 8)

    async def body(device: FileDevice) -> None:
        first = device.read_many([(0, aligned_buffer(4096)) for _ in range(5)])
        with pytest.raises(Busy):
            device.read_many([(0, aligned_buffer(4096)) for _ in range(4)])
        assert device.in_flight == 5
        await first.ended
        await device.read_many([(0, aligned_buffer(4096)) for _ in range(8)]).ended

    on_device(file, body)


def test_calls_that_can_only_be_mistakes(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        good = (0, aligned_buffer(4096))
        for offset, length in ((1, 4096), (-4096, 4096), (0, 100), (0, 0)):
            with pytest.raises(ValueError, match="not in whole blocks"):
                device.read_many([good, (offset, aligned_buffer(4096)[:length])])
        assert device.in_flight == 0
        await device.stop()
        with pytest.raises(RuntimeError, match="not attached"):
            device.read_many([good])

    on_device(file, body)


def test_b1_buffers_of_a_batch_stay_out_of_the_pool_until_it_has_ended(
    file: Path, on_device: Runner, arena: BufferArena
) -> None:
    async def body(device: FileDevice) -> None:
        buffer = await arena.acquire(64 * 4096, 1.0)
        batch = device.read_many([(at * 4096, buffer.view[at * 4096 : (at + 1) * 4096]) for at in range(64)])
        buffer.hold_for(batch.ended)
        assert not batch.ended.cancel()
        buffer.release()
        assert arena.used_bytes == 64 * 4096
        await batch.ended
        await asyncio.sleep(0)
        assert arena.used_bytes == 0

    on_device(file, body)


def test_stop_waits_for_a_batch(file: Path, on_device: Runner) -> None:
    async def body(device: FileDevice) -> None:
        batch = device.read_many([(0, aligned_buffer(4096)) for _ in range(2 * RING_ENTRIES)])
        await device.stop()
        assert batch.ended.done()

    on_device(file, body)


def test_a_bug_in_a_thread_ends_all_its_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    async def main() -> None:
        async with attached(file, "threads") as device:
            monkeypatch.setattr(operations, "_system_call", _broken)
            batch = device.read_many([(0, aligned_buffer(4096)) for _ in range(4)])
            await batch.ended
            assert [error.errno for _, error in sorted(batch.failures.items())] == 4 * [errno.EFAULT]

    asyncio.run(main())


def _broken(*_: object) -> int:
    raise ZeroDivisionError


def test_large_operations_do_not_wait_for_the_end_of_the_pass(file: Path) -> None:
    """One system call takes them and all that was prepared before; small ones alone wait for each other."""

    async def main() -> None:
        with open_device(file, write=True, io_engine="uring") as device:
            device.start(asyncio.get_running_loop())
            ring = device._engine
            small = device.read(0, aligned_buffer(4096))
            assert ring._unsubmitted == 1  # type: ignore[union-attr]
            large = device.write(0, filled(MIB, 1))
            assert ring._unsubmitted == 0  # type: ignore[union-attr]
            await asyncio.gather(small, large)
            await device.stop()

    asyncio.run(main())


def test_many_small_operations_do_not_wait_for_the_end_of_the_pass_either(file: Path) -> None:
    """The device begins with the first of them while the next are made."""

    async def main() -> None:
        with open_device(file, write=True, io_engine="uring") as device:
            device.start(asyncio.get_running_loop())
            ring = device._engine
            waiting = []
            reads = []
            for _ in range(2 * AT_ONCE_COUNT + 1):
                reads.append(device.read(0, aligned_buffer(4096)))
                waiting.append(ring._unsubmitted)  # type: ignore[union-attr]
            assert waiting == [*range(1, AT_ONCE_COUNT), 0] * 2 + [1]
            await asyncio.gather(*reads)
            await device.stop()

    asyncio.run(main())
