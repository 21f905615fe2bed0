"""What the HTTP layer asks of the engine (``storage.engine.Engine`` has it).

Naming it here keeps the layer honest about what it uses. All calls run on the loop thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from storage.entries import Conditions, Durability, EntryInfo, PutResult
from storage.recovery.report import SkippedView
from storage.retry import RetryResult
from storage.status import CheckpointStatus, EngineState, EngineStatus, Reason, RecoveryStatus


class EntryReader(Protocol):
    """An open read. It keeps the slot from being reused, so it's closed in all cases; ``close`` is idempotent."""

    @property
    def info(self) -> EntryInfo: ...

    def pieces(self, start_byte: int = 0, stop_byte: int | None = None) -> AsyncIterator[memoryview]:
        """The verified payload from ``start_byte`` up to ``stop_byte``; a piece is valid until the next iteration."""
        ...

    def close(self) -> None: ...


class ValuePut(Protocol):
    """A put under way: its slot and buffer are reserved until ``commit`` or ``abort``."""

    async def write(self, data: bytes | memoryview) -> None: ...

    async def commit(self) -> PutResult: ...

    def abort(self) -> None: ...


class RecoveryProgress(Protocol):
    @property
    def ratio(self) -> float: ...

    @property
    def step(self) -> str: ...


class EngineFace(Protocol):
    """Errors are those of ``storage.errors``; which ones is said in ``docs/http.md`` by route."""

    @property
    def state(self) -> EngineState: ...

    @property
    def reasons(self) -> Sequence[Reason]: ...

    @property
    def progress(self) -> RecoveryProgress: ...

    async def head(self, namespace: str, key: bytes) -> EntryInfo: ...

    async def open_read(self, namespace: str, key: bytes) -> EntryReader: ...

    async def begin_put(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        *,
        content_type: str = ...,
        metadata: tuple[tuple[str, str], ...] = ...,
        expires_at: int = ...,
        durability: Durability = ...,
        conditions: Conditions = ...,
    ) -> ValuePut: ...

    async def delete(
        self, namespace: str, key: bytes, *, conditions: Conditions = ..., durability: Durability = ...
    ) -> int: ...

    def status(self) -> EngineStatus: ...

    async def checkpoint(self) -> CheckpointStatus: ...

    async def acknowledge(self) -> RecoveryStatus: ...

    async def retry(self) -> RetryResult: ...

    def skipped(self, start: int, limit: int) -> Sequence[SkippedView]: ...
