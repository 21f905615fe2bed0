"""A handler's coroutine, stepped by the connection itself.

A task would be started by one pass of the loop and woken by another. Here the first step runs where the request was
read, and what the network brings steps on at once: a small put whose body came with its head reaches the device's queue
within the callback that read it.

It is no task: ``asyncio.timeout``, ``asyncio.TaskGroup`` and ``asyncio.current_task`` don't work in handlers. Futures
and tasks may be awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final

_PAUSE: Final = object()


@coroutine
def pause() -> Generator[object, None, None]:
    """Awaited in a handler: wait until ``Handling.resume``."""
    yield _PAUSE


class Handling:
    """``ended`` is told how: None, or what the coroutine raised. ``first_step`` starts it."""

    __slots__ = ("_cancelled", "_coroutine", "_ended", "_loop", "_waits_for", "is_over")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, None],
        ended: Callable[[Handling, BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._ended = ended
        self._waits_for: asyncio.Future[Any] | None = None
        self._cancelled = False
        self.is_over = False

    def first_step(self) -> None:
        self._step()

    def resume(self) -> None:
        """Go on behind ``pause``."""
        self._step()

    def cancel(self) -> None:
        """Let CancelledError be raised where the handler waits."""
        if self._waits_for is None:
            self._cancelled = True
            self._loop.call_soon(self._step_if_cancelled)
        elif not self._waits_for.cancel():
            # A buffer may still be in use by the device: the future is done when it isn't, and not before.
            self._cancelled = True

    def _step_if_cancelled(self) -> None:
        """Unless another step has raised it meanwhile: the handler may be waiting in its cleaning up."""
        if self._cancelled:
            self._step()

    def _step(self, _done: asyncio.Future[Any] | None = None) -> None:
        if self.is_over:
            return
        self._waits_for = None
        try:
            if self._cancelled:
                self._cancelled = False
                found = self._coroutine.throw(asyncio.CancelledError())
            else:
                found = self._coroutine.send(None)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # as a task: whatever a handler raises is its outcome, told to ``ended``
            self._end(error)
            if not isinstance(error, (Exception, asyncio.CancelledError)):
                raise  # the loop's own end: KeyboardInterrupt, SystemExit
        else:
            if found is _PAUSE:
                return
            if found is None:  # asyncio.sleep(0)
                self._loop.call_soon(self._step)
                return
            found._asyncio_future_blocking = False
            self._waits_for = found
            found.add_done_callback(self._step)

    def _end(self, error: BaseException | None) -> None:
        self.is_over = True
        self._ended(self, error)
