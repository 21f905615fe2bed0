"""Contenders take turns: first, second, …, first, second, …; never all of one and then all of another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from bench.service.daemon import Daemon
from bench.service.fio import Fio
from bench.service.generator.running import LoadFailed
from bench.service.processes import ServerFailed
from bench.service.series import FIO, OURS, Measured, Series, variation
from bench.service.server import Server
from bench.service.work import Figures, Work

ATTEMPTS = 2
"""A turn that fails is repeated once: a machine hiccup must not end an hour's run, a fault does."""


class Contenders:
    """Servers are started when they are first needed, and stand still while another is measured."""

    def __init__(
        self, fio: Fio, makers: Mapping[str, Callable[[], Server]], keys: Mapping[int, int], stack: ExitStack
    ) -> None:
        self._fio = fio
        self._makers = makers
        self._keys = keys
        self._stack = stack
        self._running: dict[str, Server] = {}

    def server(self, name: str) -> Server:
        """Running. Raises ``ServerFailed``."""
        if name not in self._running:
            server = self._makers[name]()
            self._stack.callback(server.stop)
            self._running[name] = server
        server = self._running[name]
        server.process.go_on()
        return server

    def prepare(self, contender: str, work: Work) -> None:
        """Start and fill it. Raises ``ServerFailed`` and ``LoadFailed``."""
        name, work = variation(contender, work)
        if name == FIO:
            return
        server = self.server(name)
        try:
            server.fill(work.size, self._keys[work.size])
            if work.operation == "mget" and isinstance(server, Daemon):
                server.verify_batch(work, self._keys[work.size])
        finally:
            server.process.rest()

    def turn(self, contender: str, work: Work, seconds: float, seed: int) -> Figures:
        name, work = variation(contender, work)
        if name == FIO:
            return self._fio.measure(work, seconds)
        server = self.server(name)
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return server.measure(work, seconds, seed)
                except LoadFailed as failed:
                    if attempt == ATTEMPTS:
                        raise LoadFailed(f"{contender}, {work.name}: {failed}") from failed
                    say(f"  {contender}: {failed}; once more")
            raise AssertionError("unreachable")
        finally:
            server.process.rest()

    def tidy(self) -> None:
        """After a series: whose files only grow begins anew."""
        for name, server in list(self._running.items()):
            if server.grows:
                server.dispose()
                del self._running[name]


def measure(
    series: Series, contenders: Contenders, runs: int, seconds: float, problem: Callable[[str], None]
) -> Measured:
    """All repetitions of one series.

    A peer that fails leaves the series, and ``problem`` is told. Raises ``ServerFailed``, ``LoadFailed`` and
    ``FioFailed`` if the daemon or fio fails: there is nothing to compare then.
    """
    began = time.monotonic()
    figures: dict[str, list[Figures]] = {contender: [] for contender in series.contenders}

    def attempt(contender: str, step: Callable[[], Figures | None]) -> Figures | None:
        try:
            return step()
        except (ServerFailed, LoadFailed) as failed:
            if contender.partition("?")[0] == OURS:
                raise
            problem(f"{series.name}, {contender}: {failed}")
            del figures[contender]
            return None

    for contender in series.contenders:
        attempt(contender, partial(contenders.prepare, contender, series.work))
    for repetition in range(runs):
        for contender in list(figures):
            turn = partial(contenders.turn, contender, series.work, seconds, repetition + 1)
            if (found := attempt(contender, turn)) is not None:
                figures[contender].append(found)
    if FIO in figures:
        figures[FIO].append(contenders.turn(FIO, series.work, seconds, 0))
    contenders.tidy()
    say(f"{series.name}: {time.monotonic() - began:.0f} s")
    return Measured(series, figures)


def say(text: str) -> None:
    """Progress, for whoever waits."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
