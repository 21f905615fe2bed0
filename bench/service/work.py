"""What is asked of a contender, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal["get", "put", "mixed", "mget", "mput"]

SIZE_NAMES = {4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 4 << 20: "4 MiB"}
READS_PERCENT = 80
"""Share of reads in mixed work."""


@dataclass(frozen=True, slots=True)
class Work:
    operation: Operation
    size: int
    """Bytes of a value."""
    connections: int = 32
    """Requests under way; for fio the depth."""
    values: int = 1
    """Values in a request."""
    durability: str = ""
    """Level of puts, where the contender has levels; empty: its default."""
    first_key: int = 0
    keys: int = 0
    """Keys to draw from; 0: those that the contender was filled with."""

    @property
    def name(self) -> str:
        size = SIZE_NAMES.get(self.size, f"{self.size} B")
        if self.values > 1:
            return f":{self.operation} {self.values} × {size}"
        return f"{'mixed 80/20' if self.operation == 'mixed' else self.operation.upper()} {size}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one contender did in one repetition."""

    rate: float
    """Requests per second that were answered as they should be."""
    values_per_second: float
    bytes_per_second: float
    """Of values, not of protocol."""
    p50_microseconds: float
    p99_microseconds: float
    misses: int = 0
    cpu_microseconds: float = 0.0
    """Of the server's processes for each request; 0 where it isn't known."""
    probes: int = 0
    """Tail-loss probes of TCP meanwhile: many of them mean that the loopback stalled."""
