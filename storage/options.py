"""What the engine may be told. The process layer fills this from its settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class EvictionPolicy(enum.StrEnum):
    CLOCK = "clock"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Times in seconds, sizes in bytes. Defaults are the daemon's."""

    checkpoint_interval_seconds: float = 60.0
    flush_interval_seconds: float = 1.0
    """How long a written journal block may stay unflushed: bounds limbo and the rows a power loss can take."""
    expiry_interval_seconds: float = 1.0
    eviction: EvictionPolicy = EvictionPolicy.CLOCK
    buffer_bytes: int = 256 << 20
    wait_timeout_seconds: float = 5.0
    """How long a request waits for a buffer, a slot or room in the journal before 503."""
    max_skipped_ratio: float = 0.05
    max_skipped_floor: int = 64
    accept_loss: bool = False
    adopt_seq: int | None = None
    """Start from the checkpoint copy with this seq instead of the newest (offline repair)."""
    scrub_bytes_per_second: int = 16 << 20
    """Rate of background verification; 0 turns it off. 16 MiB/s is one pass over 1 TiB in 18 hours."""
    background: bool = True
    """False leaves flush, expiry, eviction ahead of need and checkpoints to explicit calls (tests, offline tools)."""
