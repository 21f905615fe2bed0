"""The arena of I/O memory: bounded (L1), fair, never given to two at once (B1, B2)."""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections.abc import Iterator

import pytest

from storage import buffers
from storage.buffers import HUGE_PAGE_BYTES, PAGE_BYTES, Buffer, BufferArena, aligned_buffer
from storage.errors import Busy

KIB = 1024
MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[BufferArena]:
    arena = BufferArena(4 * MIB)
    yield arena
    arena.close()


def take(arena: BufferArena, size_bytes: int) -> Buffer:
    buffer = arena.try_acquire(size_bytes)
    assert buffer is not None
    return buffer


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_sizes_are_rounded_to_powers_of_two(arena: BufferArena) -> None:
    for asked, given in ((1, 4 * KIB), (4096, 4 * KIB), (4097, 8 * KIB), (65 * KIB, 128 * KIB), (2 * MIB, 2 * MIB)):
        buffer = take(arena, asked)
        assert buffer.size_bytes == len(buffer.view) == given
        assert address(buffer.view) % PAGE_BYTES == 0
        assert not buffer.view.readonly
        assert arena.used_bytes == given
        buffer.release()
        assert arena.used_bytes == 0


@pytest.mark.parametrize("size_bytes", [0, -1, 2 * MIB + 1])
async def test_impossible_sizes_are_mistakes(arena: BufferArena, size_bytes: int) -> None:
    with pytest.raises(ValueError, match="are possible"):
        arena.try_acquire(size_bytes)
    with pytest.raises(ValueError, match="are possible"):
        await arena.acquire(size_bytes, 1.0)
    with pytest.raises(ValueError, match="bytes"):
        BufferArena(0)
    with pytest.raises(ValueError, match="bytes"):
        aligned_buffer(0)


def test_no_piece_crosses_a_huge_page(arena: BufferArena) -> None:
    pieces = [take(arena, 512 * KIB) for _ in range(8)]
    for piece in pieces:
        start = address(piece.view)
        assert start // HUGE_PAGE_BYTES == (start + piece.size_bytes - 1) // HUGE_PAGE_BYTES
    assert arena.try_acquire(1) is None


def test_l1_the_arena_is_the_bound() -> None:
    arena = BufferArena(3 * MIB)
    assert arena.total_bytes == 4 * MIB
    pieces = [take(arena, 4 * KIB) for _ in range(1024)]
    assert arena.used_bytes == arena.total_bytes
    assert arena.try_acquire(4 * KIB) is None
    random.Random(1).shuffle(pieces)
    for piece in pieces:
        piece.release()
    # Every neighbour joined again.
    whole = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    assert arena.try_acquire(1) is None
    for piece in whole:
        piece.release()
    arena.close()


def test_b1_pieces_never_overlap(arena: BufferArena) -> None:
    """A random life of the arena against a map of who owns which page."""
    chance = random.Random(2)
    base = min(address(take(arena, 2 * MIB).view), address(take(arena, 2 * MIB).view))
    arena = BufferArena(4 * MIB)
    owners: dict[int, int] = {}
    alive: list[tuple[Buffer, list[int]]] = []
    used = 0
    for turn in range(20_000):
        if alive and chance.random() < 0.5:
            buffer, pages = alive.pop(chance.randrange(len(alive)))
            used -= buffer.size_bytes
            buffer.release()
            for page in pages:
                del owners[page]
        else:
            found = arena.try_acquire(chance.choice([4, 4, 4, 12, 64, 300, 1024, 2048]) * KIB)
            if found is not None:
                start = (address(found.view) - base) // PAGE_BYTES
                pages = list(range(start, start + found.size_bytes // PAGE_BYTES))
                for page in pages:
                    assert page not in owners
                    owners[page] = turn
                alive.append((found, pages))
                used += found.size_bytes
        assert arena.used_bytes == used
    for buffer, _ in alive:
        buffer.release()
    assert arena.used_bytes == 0
    take(arena, 2 * MIB)
    take(arena, 2 * MIB)


async def test_release_is_idempotent_and_takes_the_view_away(arena: BufferArena) -> None:
    buffer = take(arena, 4 * KIB)
    buffer.release()
    buffer.release()
    assert arena.used_bytes == 0
    assert len(buffer.view) == 0
    with pytest.raises(ValueError, match="released"):
        buffer.hold_for(asyncio.get_running_loop().create_future())


async def test_b1_held_piece_stays_out_until_every_io_is_done(arena: BufferArena) -> None:
    loop = asyncio.get_running_loop()
    first, second, over = loop.create_future(), loop.create_future(), loop.create_future()
    over.set_result(None)
    buffer = take(arena, 4 * KIB)
    for io in (first, second, over):
        buffer.hold_for(io)
    buffer.release()
    assert arena.used_bytes == 4 * KIB
    first.set_result(None)
    await asyncio.sleep(0)
    assert arena.used_bytes == 4 * KIB
    second.set_exception(OSError("failed"))
    await asyncio.sleep(0)
    assert arena.used_bytes == 0
    assert second.exception() is not None


async def test_held_piece_that_is_released_later(arena: BufferArena) -> None:
    io = asyncio.get_running_loop().create_future()
    buffer = take(arena, 4 * KIB)
    buffer.hold_for(io)
    io.set_result(None)
    await asyncio.sleep(0)
    assert arena.used_bytes == 4 * KIB
    buffer.release()
    assert arena.used_bytes == 0


async def line(arena: BufferArena, sizes: list[int]) -> list[asyncio.Task[Buffer]]:
    """Tasks that wait in this order."""
    tasks = []
    for size in sizes:
        tasks.append(asyncio.create_task(arena.acquire(size, 30.0)))
        await asyncio.sleep(0)
    return tasks


async def test_first_come_first_served(arena: BufferArena) -> None:
    full = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    tasks = await line(arena, [2 * MIB, 4 * KIB, 4 * KIB, 2 * MIB])
    assert arena.waiting == 4
    full[0].release()
    await asyncio.sleep(0)
    # The small ones behind the first would fit nowhere now, and nobody jumps the line.
    assert [task.done() for task in tasks] == [True, False, False, False]
    assert arena.try_acquire(4 * KIB) is None
    full[1].release()
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, True, False]
    assert arena.try_acquire(4 * KIB) is None
    for task in tasks[:3]:
        (await task).release()
    (await tasks[3]).release()
    assert (arena.used_bytes, arena.waiting) == (0, 0)


async def test_busy_after_the_time_limit(arena: BufferArena) -> None:
    full = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    with pytest.raises(Busy):
        await arena.acquire(4 * KIB, 0.0)
    assert arena.waiting == 0
    full[0].release()
    (await arena.acquire(4 * KIB, 0.0)).release()


async def test_who_gives_up_lets_the_next_one_pass(arena: BufferArena) -> None:
    full = [take(arena, 2 * MIB), take(arena, MIB)]
    large = asyncio.create_task(arena.acquire(2 * MIB, 0.0))
    await asyncio.sleep(0)
    (small,) = await line(arena, [4 * KIB])
    with pytest.raises(Busy):
        await large
    (await small).release()
    (large, small) = await line(arena, [2 * MIB, 4 * KIB])
    large.cancel()
    await asyncio.sleep(0)
    (await small).release()
    assert arena.waiting == 0
    for piece in full:
        piece.release()
    assert arena.used_bytes == 0


async def test_cancelled_in_the_moment_of_the_handover(arena: BufferArena) -> None:
    full = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    (task,) = await line(arena, [2 * MIB])
    full[0].release()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    full[1].release()
    assert arena.used_bytes == 0


async def test_cancelled_in_the_moment_of_the_time_limit(arena: BufferArena) -> None:
    full = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    (task,) = await line(arena, [4 * KIB])
    arena._time_out(arena._waiters[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert arena.waiting == 0
    for piece in full:
        piece.release()
    assert arena.used_bytes == 0


async def test_l1_the_line_is_bounded(arena: BufferArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "WAITERS_MAX", 2)
    full = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    tasks = await line(arena, [4 * KIB, 4 * KIB])
    with pytest.raises(Busy):
        await arena.acquire(4 * KIB, 30.0)
    full[0].release()
    for task in tasks:
        (await task).release()


async def test_random_load_keeps_every_promise(arena: BufferArena) -> None:
    chance = random.Random(3)

    async def client(number: int) -> None:
        for _ in range(50):
            buffer = await arena.acquire(chance.choice([4, 64, 512, 2048]) * KIB, 60.0)
            mark = number.to_bytes(2, "little") * (buffer.size_bytes // 2)
            try:
                buffer.view[:] = mark
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                assert bytes(buffer.view) == mark
            finally:
                buffer.release()

    tasks = [asyncio.create_task(client(number)) for number in range(40)]
    for _ in range(20):
        await asyncio.sleep(0)
        tasks[chance.randrange(len(tasks))].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    assert (arena.used_bytes, arena.waiting) == (0, 0)


async def test_close_ends_waiting_and_outlives_views(arena: BufferArena) -> None:
    full = [take(arena, 2 * MIB), take(arena, 2 * MIB)]
    (task,) = await line(arena, [4 * KIB])
    view = full[0].view
    view[:4] = b"sent"
    arena.close()
    arena.close()
    with pytest.raises(Busy):
        await task
    full[0].release()
    full[1].release()
    assert bytes(view[:4]) == b"sent"
    assert arena.try_acquire(4 * KIB) is None


def test_huge_pages_are_told_truly(arena: BufferArena) -> None:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as text:
            possible = "[never]" not in text.read()
    except OSError:
        possible = False
    assert 0 <= arena.huge_bytes <= arena.total_bytes
    if possible:
        # The kernel may lack free huge pages; on an idle machine it has two.
        assert arena.huge_bytes % HUGE_PAGE_BYTES == 0
    else:
        assert arena.huge_bytes == 0


def test_aligned_buffer() -> None:
    buffer = aligned_buffer(5000)
    assert len(buffer) == 5000
    assert buffer == bytes(5000)
    assert address(buffer) % PAGE_BYTES == 0


def test_a_closed_arena_has_no_huge_pages() -> None:
    arena = BufferArena(HUGE_PAGE_BYTES)
    arena.close()
    assert arena.huge_bytes == 0
