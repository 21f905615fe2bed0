"""Rows that tell on themselves: every element follows from key, version and part, so a strange one is seen at once.

Used where a snapshot is taken while others write, and for snapshots that were torn elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rawblockd_client import Client
from rawblockd_client.table import Column, EmbeddingTable, PartRows

Array = np.ndarray[Any, np.dtype[Any]]

PARTS = ("w", "m", "v")
WIDTH = 8
DEFAULTS = {"w": -1.0, "m": 0.0, "v": 0.0}
COLUMNS = tuple(Column(name, "float32", (WIDTH,), DEFAULTS[name]) for name in PARTS)
_EXACT = np.uint64((1 << 23) - 1)
"""Whole numbers up to here are exact as float32."""

FIRST_KEY = 1 << 40
"""Of those that writers insert; they take turns."""

POISON = np.float32(1.7e38)
"""What memory that nobody has written showed: finite, so no check for NaN catches it."""


def rows_of(keys: Array, versions: Array, part: str) -> Array:
    """The value of each key at its version, in one part: eight mixtures of the three."""
    seed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    seed ^= versions.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    seed += np.uint64(PARTS.index(part) + 1) * np.uint64(0x165667B19E3779F9)
    elements = seed[:, None] * (2 * np.arange(WIDTH, dtype=np.uint64) + 1)[None, :]
    elements ^= elements >> np.uint64(32)
    elements[:, 0] = keys.astype(np.uint64)
    elements[:, 1] = versions.astype(np.uint64)
    return (elements & _EXACT).astype(np.float32)


def whole_rows(keys: Array, version: int) -> dict[str, Array]:
    versions = np.full(keys.size, version, dtype=np.int64)
    return {part: rows_of(keys, versions, part) for part in PARTS}


def strange_rows(keys: Array, versions: Array, parts: dict[str, Array]) -> int:
    """Rows of which an element, in any part, isn't what was written for the key at its version."""
    strange = np.zeros(keys.size, dtype=bool)
    for part in PARTS:
        strange |= (parts[part] != rows_of(keys, versions, part)).any(axis=1)
    return int(strange.sum())


@dataclass
class Writer:
    """Inserts keys of its own without pause, and writes those it shares with the others over and over."""

    client: Client
    namespace: str
    number: int
    writers: int
    rows: int
    shared: Array
    batch: int = 2000
    inserted: int = 0
    error: BaseException | None = None
    versions: set[int] = field(default_factory=set)
    """Those it has written."""

    def run(self, stop: Callable[[], bool]) -> None:
        table = EmbeddingTable(self.client, self.namespace)
        version = self.number + 1
        for keys in self._batches():
            if stop():
                return
            self.versions.add(version)
            table.update(keys, whole_rows(keys, version), version=version)
            self.inserted += int(keys.size)
            again = self.shared[version % 7 :: 7]
            table.update(again, whole_rows(again, version), version=version)
            version += self.writers

    def _batches(self) -> Iterator[Array]:
        own = np.arange(self.rows, dtype=np.int64) * self.writers + self.number + FIRST_KEY
        for at in range(0, self.rows, self.batch):
            yield own[at : at + self.batch]


def run_writers(writers: list[Writer], stop: Callable[[], bool]) -> list[threading.Thread]:
    """Each in a thread of its own; what ends one is in its ``error``."""

    def run(writer: Writer) -> None:
        try:
            writer.run(stop)
        except BaseException as error:
            writer.error = error
            raise

    threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    return threads


KEY_COUNTS = (7_033_905, 7_034_862, 7_035_789)
"""How many keys ``w``, ``m`` and ``v`` had in the snapshot that was torn: each list contains the one before."""


def torn_parts(scale: int, seed: int = 6) -> dict[str, PartRows]:
    """The parts of a torn snapshot, 1/scale of its size: saved one after the other while keys were inserted.

    Each list is in an order of its own. Keys that a later part has and an earlier lacks have the latest versions.
    """
    counts = [count // scale for count in KEY_COUNTS]
    random = np.random.default_rng(seed)
    keys = random.permutation(np.unique(random.integers(0, 1 << 62, counts[-1] + counts[-1] // 10, dtype=np.int64)))
    keys = keys[: counts[-1]]
    versions = np.sort(random.integers(1, 1_000_000, counts[-1], dtype=np.int64))
    parts = {}
    for part, count in zip(PARTS, counts, strict=True):
        order = random.permutation(count)
        chosen, at = keys[:count][order], versions[:count][order]
        parts[part] = PartRows(chosen, rows_of(chosen, at, part), at)
    return parts
