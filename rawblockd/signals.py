"""Signals: the first SIGTERM or SIGINT asks for a stop, a second one leaves at once, SIGHUP reloads."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import NoReturn

import structlog

log = structlog.stdlib.get_logger("rawblockd.signals")


class StopRequest:
    """What the signals asked for. The handlers run on the loop, between callbacks."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def install(self, loop: asyncio.AbstractEventLoop, on_reload: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, on_reload)

    def _on_stop(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            log.warning("second signal: leaving at once", signal=number.name)
            leave_at_once(128 + number)
        log.info("stop requested", signal=number.name)
        self.asked.set()


def leave_at_once(exit_code: int) -> NoReturn:
    """End without waiting for threads, clean-up or the device. Safe: what was acknowledged is on the device."""
    os._exit(exit_code)
