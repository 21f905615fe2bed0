"""An event loop whose clock jumps to the next timer: hours of timeouts pass in milliseconds, and a hang is an error."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class Stuck(AssertionError):
    """Nothing is ready, no timer runs, and yet somebody waits: it would be for ever."""


class _JumpingSelector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise Stuck("somebody waits for what never comes")
        self.loop.seconds += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.seconds = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self.complaints: list[str] = []
        """What tasks that nobody waits for ended with."""
        self.set_exception_handler(lambda _loop, context: self.complaints.append(repr(context)))

    def time(self) -> float:
        return self.seconds


async def _inline(function: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    return function(*arguments, **named)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. What would go to a thread runs in line, or the clock would jump past it."""
    with mock.patch("asyncio.to_thread", _inline), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(main)
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        assert not loop.complaints, loop.complaints
        return result
