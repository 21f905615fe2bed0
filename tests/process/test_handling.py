"""A handler's steps: what it may wait for, how it ends, how it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rawblockd.handling import Handling, pause


class Handled:
    """A handling that was started, and how it ended: nothing, or with whatever it raised."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.ends: list[BaseException | None] = []
        self.handling = Handling(asyncio.get_running_loop(), coroutine, lambda _, error: self.ends.append(error))
        self.handling.first_step()


class Stubborn(asyncio.Future[int]):
    """As the I/O of a device: cancelling it ends nothing."""

    def cancel(self, msg: object = None) -> bool:
        return False


async def test_what_waits_for_nothing_ends_within_its_first_step() -> None:
    async def handler() -> None:
        pass

    assert Handled(handler()).ends == [None]


async def test_it_waits_for_futures_tasks_and_turns_of_the_loop() -> None:
    future = asyncio.get_running_loop().create_future()
    seen: list[object] = []

    async def handler() -> None:
        await asyncio.sleep(0)
        seen.append(await future)
        seen.append(await asyncio.create_task(asyncio.sleep(0, "task")))

    handled = Handled(handler())
    await asyncio.sleep(0)
    future.set_result("future")
    while not handled.ends:
        await asyncio.sleep(0)
    assert (seen, handled.ends) == (["future", "task"], [None])


async def test_a_pause_ends_at_once_when_it_is_resumed() -> None:
    steps: list[int] = []

    async def handler() -> None:
        for step in range(3):
            steps.append(step)
            await pause()

    handled = Handled(handler())
    for expected in ([0], [0, 1], [0, 1, 2]):
        assert (steps, handled.ends) == (expected, [])
        handled.handling.resume()
    assert handled.ends == [None]


async def test_what_it_raises_is_told() -> None:
    async def handler() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    handled = Handled(handler())
    await asyncio.sleep(0)
    assert [type(error) for error in handled.ends] == [KeyError]


async def test_cancelled_it_ends_where_it_waits_and_cleans_up() -> None:
    def future() -> Awaitable[None]:
        return asyncio.get_running_loop().create_future()

    def turn() -> Awaitable[None]:
        return asyncio.sleep(0)

    waits: list[Callable[[], Awaitable[None]]] = [pause, future, turn]
    for wait in waits:
        cleaned: list[bool] = []

        async def handler() -> None:
            try:
                await wait()  # noqa: B023
            finally:
                cleaned.append(True)  # noqa: B023

        handled = Handled(handler())
        handled.handling.cancel()
        while not handled.ends:
            await asyncio.sleep(0)
        assert (cleaned, [type(error) for error in handled.ends]) == ([True], [asyncio.CancelledError])


async def test_cancelled_and_stepped_it_is_left_to_its_cleaning_up() -> None:
    def turn() -> Awaitable[None]:
        return asyncio.sleep(0)

    waits: list[Callable[[], Awaitable[None]]] = [pause, turn]
    for wait in waits:

        async def handler() -> None:
            try:
                await wait()  # noqa: B023
            finally:
                await pause()

        handled = Handled(handler())
        handled.handling.cancel()
        if wait is pause:
            handled.handling.resume()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not handled.ends
        handled.handling.resume()
        assert isinstance(handled.ends[0], asyncio.CancelledError)


async def test_b1_cancelled_it_waits_for_the_io_that_still_uses_its_buffer() -> None:
    io = Stubborn()
    released: list[bool] = []

    async def handler() -> None:
        try:
            await io
        finally:
            released.append(io.done())

    handled = Handled(handler())
    handled.handling.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not handled.ends
    io.set_result(0)
    while not handled.ends:
        await asyncio.sleep(0)
    assert released == [True]
    assert isinstance(handled.ends[0], asyncio.CancelledError)
