"""The series: which contenders take turns at which work."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bench.service.work import Figures, Operation, Work

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"4k": 4 * KIB, "64k": 64 * KIB, "1m": MIB, "4m": 4 * MIB}
KEYS = {4 * KIB: 8192, 64 * KIB: 4096, MIB: 512, 4 * MIB: 128}
KEYS_QUICK = {4 * KIB: 4096, 64 * KIB: 2048, MIB: 256, 4 * MIB: 64}

OURS = "rawblockd"
FIO = "fio"


@dataclass(frozen=True, slots=True)
class Series:
    """``contenders`` are names, ``rawblockd?none`` being the daemon with puts at that level."""

    name: str
    work: Work
    contenders: tuple[str, ...]
    tags: frozenset[str]
    rows: frozenset[int] = frozenset()
    """Rows of the table of targets that are computed from it."""
    extra: tuple[str, ...] = ()
    """Contenders of the full bench only."""

    def with_extra(self) -> Series:
        return replace(self, contenders=self.contenders + self.extra, extra=())


def variation(contender: str, work: Work) -> tuple[str, Work]:
    """Name of the server, and the work as this contender does it."""
    server, _, level = contender.partition("?")
    return server, replace(work, durability=level) if level else work


@dataclass(frozen=True, slots=True)
class Measured:
    """One series, with the figures of each contender by repetition. fio has one more: before and after each turn."""

    series: Series
    figures: dict[str, list[Figures]]

    def device(self, repetition: int, value: str) -> float:
        """What fio did right before and right after the repetition, in the mean."""
        runs = self.figures[FIO][repetition : repetition + 2]
        return sum(float(getattr(run, value)) for run in runs) / len(runs)

    def ratios(self, contender: str, other: str, value: str = "rate") -> list[float]:
        """Of each repetition: ``contender`` by ``other``."""
        found = []
        for repetition, mine in enumerate(self.figures[contender]):
            peer = None if other == FIO else self.figures[other][repetition]
            theirs = self.device(repetition, value) if peer is None else float(getattr(peer, value))
            found.append(float(getattr(mine, value)) / theirs)
        return found


def _single(operation: Operation, size: str, *contenders: str, rows: Iterable[int], extra: tuple[str, ...]) -> Series:
    tags = frozenset({"single", *({"peers"} if extra else ())})
    work = Work(operation, SIZES[size])
    return Series(f"{operation}-{size}", work, (FIO, OURS, *contenders), tags, frozenset(rows), extra)


def all_series() -> list[Series]:
    """In the order in which they run."""
    memory = ("redis", "memcached")
    series = [
        _single("get", "4k", "asgi", "nginx", "diskcache", rows=(3, 4, 6), extra=memory),
        _single("put", "4k", "nginx", "diskcache", rows=(4, 7), extra=memory),
        _single("get", "64k", "nginx", rows=(2, 6), extra=("diskcache", *memory)),
        _single(
            "put",
            "64k",
            "rawblockd?none",
            "nginx",
            "redis",
            rows=(2, 7, 8, 13),
            extra=("rawblockd?flush", "diskcache", "memcached"),
        ),
        _single("get", "1m", "nginx", rows=(1, 6), extra=("diskcache", *memory)),
        _single("put", "1m", "nginx", "redis", rows=(1, 7, 8), extra=("diskcache", "memcached")),
        _single("get", "4m", rows=(1,), extra=()),
        _single("put", "4m", rows=(1,), extra=()),
    ]
    series += [
        _batch("mget", "4k", 64, rows=(5,)),
        _batch("mput", "4k", 64, rows=()),
        _batch("mget", "64k", 16, rows=()),
        _batch("mput", "64k", 16, rows=()),
        Series(
            "one-client",
            Work("get", 4 * KIB, connections=1),
            (FIO, OURS, "executor"),
            frozenset({"one"}),
            frozenset({14}),
            ("nginx",),
        ),
        Series("mixed-4k", Work("mixed", 4 * KIB), (FIO, OURS), frozenset({"mixed"})),
        Series("mixed-64k", Work("mixed", 64 * KIB), (FIO, OURS), frozenset({"mixed"})),
    ]
    for size in SIZES:
        for operation in ("get", "put"):
            for connections in (1, 8):
                work = Work(operation, SIZES[size], connections)
                series.append(
                    Series(f"{operation}-{size}-c{connections}", work, (FIO, OURS), frozenset({"connections"}))
                )
    return series


def _batch(operation: Operation, size: str, values: int, *, rows: Iterable[int]) -> Series:
    work = Work(operation, SIZES[size], connections=4, values=values)
    return Series(f"{operation}-{size}", work, (FIO, OURS), frozenset({"batch"}), frozenset(rows))


def chosen(series: Iterable[Series], names: Iterable[str], rows: Iterable[int], *, full: bool) -> list[Series]:
    """Those with one of the names, patterns or tags, or that one of the rows needs; without either, the usual ones.

    The usual ones of the quick bench are those that rows need.
    """
    names, rows = list(names), set(rows)
    found = []
    for item in series:
        if names or rows:
            wanted = bool(item.rows & rows) or any(fnmatch.fnmatch(item.name, n) or n in item.tags for n in names)
        else:
            wanted = full or bool(item.rows)
        if wanted:
            found.append(item.with_extra() if full or "peers" in names else item)
    return found
