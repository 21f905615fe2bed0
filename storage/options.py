"""What the engine may be told. The process layer fills this from its settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class EvictionPolicy(enum.StrEnum):
    CLOCK = "clock"
    S3FIFO = "s3fifo"
    NONE = "none"


class AdmissionPolicy(enum.StrEnum):
    """What a full device takes."""

    ALL = "all"
    SECOND_PUT = "second_put"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Times in seconds, sizes in bytes. Defaults are the daemon's."""

    checkpoint_interval_seconds: float = 60.0
    flush_interval_seconds: float = 1.0
    """How long a written journal block may stay unflushed: bounds limbo and the rows a power loss can take."""
    expiry_interval_seconds: float = 1.0
    eviction: EvictionPolicy = EvictionPolicy.S3FIFO
    admission: AdmissionPolicy = AdmissionPolicy.ALL
    write_budget_bytes_per_second: int = 0
    """What puts may write to the device; 0: no limit."""
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
    keys_in_memory: bool = False
    """Keep the keys of entries in memory, about 300 B each, so that listings need not read them."""
    event_buffer_bytes: int = 16 << 20
    """Memory for events kept for clients that are slow or come back."""
    background: bool = True
    """False leaves flush, expiry, eviction ahead of need and checkpoints to explicit calls (tests, offline tools)."""
