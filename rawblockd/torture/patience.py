"""Signals that wait: a process is started and known to whoever must end it, or not started at all."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ending_later() -> Iterator[None]:
    """SIGINT and SIGTERM that come meanwhile are delivered at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run on the main thread only
        return
    came: list[int] = []

    def remember(number: int, _frame: Any) -> None:
        came.append(number)

    before = {number: signal.signal(number, remember) for number in ENDING}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
        for number in came:
            os.kill(os.getpid(), number)
