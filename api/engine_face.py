"""What the HTTP layer asks of the engine (``storage.engine.Engine`` has it).

Naming it here keeps the layer honest about what it uses. All calls run on the loop thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol

from storage.counters import EngineCounters
from storage.entries import Conditions, Durability, EntryInfo, EntrySketch, PutResult
from storage.errors import RawblockdError
from storage.events import Event, EventFeed
from storage.format.parts import Part
from storage.format.row import Row
from storage.imports.session import Difference, ImportPolicy, ImportResult, ImportView
from storage.leases import LeaseResult, LeaseView
from storage.listing import ListingPage
from storage.namespace_settings import NamespaceSettings
from storage.namespaces import NamespaceView
from storage.recovery.report import SkippedView
from storage.retry import RetryResult
from storage.snapshots import SnapshotView
from storage.status import CheckpointStatus, EngineState, EngineStatus, Reason, RecoveryStatus


class EntryReader(Protocol):
    """An open read. It keeps the slot from being reused, so it's closed in all cases; ``close`` is idempotent."""

    @property
    def info(self) -> EntryInfo: ...

    @property
    def piece_bytes(self) -> int:
        """Most bytes of one of the ``pieces``: what is read at once, from the start of a chunk on."""
        ...

    def whole(self, start_byte: int, stop_byte: int) -> memoryview | None:
        """The verified bytes at once, until ``close``, if the record was read whole; else ``pieces`` reads them."""
        ...

    def pieces(self, start_byte: int = 0, stop_byte: int | None = None) -> AsyncGenerator[memoryview, None]:
        """The verified payload from ``start_byte`` up to ``stop_byte``; a piece is valid until the next iteration."""
        ...

    def keep(self) -> None:
        """Stay open, without memory, when the batch that this reader came from ends."""

    def close(self) -> None: ...


class ValuePut(Protocol):
    """A put under way: its slot and buffer are reserved until ``commit`` or ``abort``.

    In a batch it is staged instead, which gives its memory back, and committed together with others. ``room``,
    ``filled`` and ``make_room`` are those of ``exchange.BodyTarget``.
    """

    def room(self) -> memoryview: ...

    def filled(self, count: int) -> None: ...

    async def make_room(self) -> None: ...

    def write_now(self, data: bytes | memoryview) -> bool:
        """As ``write``, if the bytes fit into the piece under way; else False, and nothing was taken."""
        ...

    async def write(self, data: bytes | memoryview) -> None: ...

    async def commit(self) -> PutResult: ...

    def commit_soon(self, done: Callable[[PutResult | RawblockdError], None]) -> None:
        """As ``commit``; ``done`` is told the result, or the error when everything is given back already. At level
        ``none`` at once."""
        ...

    def stage(self) -> None: ...

    def abort(self) -> None: ...


class PartUpload(Protocol):
    """A part of an import on its way in. Exactly one of ``end`` and ``abort`` ends it."""

    async def add(self, keys: Sequence[bytes], rows: bytes | memoryview) -> None: ...

    async def end(self) -> int: ...

    def abort(self) -> None:
        """Forget what came. Does nothing after ``end``."""
        ...


class RecoveryProgress(Protocol):
    @property
    def ratio(self) -> float: ...

    @property
    def step(self) -> str: ...


class EngineFace(Protocol):
    """Errors are those of ``storage.errors``; which ones is said in ``docs/http.md`` by route."""

    @property
    def phase(self) -> EngineState:
        """As ``state``, but ``ready`` whatever it suffers from: quick to ask for."""
        ...

    @property
    def state(self) -> EngineState: ...

    @property
    def reasons(self) -> Sequence[Reason]: ...

    @property
    def progress(self) -> RecoveryProgress: ...

    @property
    def counters(self) -> EngineCounters: ...

    @property
    def events(self) -> EventFeed: ...

    async def event_keys(self, events: Sequence[Event]) -> list[Event]: ...

    async def head(self, namespace: str, key: bytes, *, lease_id: str = ...) -> EntryInfo: ...

    def begin_read(self, namespace: str, key: bytes, done: Callable[[EntryReader | None], None]) -> bool:
        """Begin to read an entry whole; False if it takes more than one step, and ``open_read`` must do it.

        ``done`` is called later, at any rate: with a verified reader, to be closed, or with None if ``open_read`` must
        decide. Raises EntryNotFound, KeyInvalid, NamespaceInvalid, Starting, Draining.
        """
        ...

    async def open_read(
        self, namespace: str, key: bytes, *, lease_id: str = ..., sparse: bool = ..., known_ids: frozenset[int] = ...
    ) -> EntryReader:
        """``sparse``, or an entry whose write id is one of ``known_ids``: no more is read than what is asked for."""
        ...

    def begin_put_now(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        content_type: str = ...,
        metadata: tuple[tuple[str, str], ...] = ...,
        expires_at: int = ...,
        parts: Sequence[Part] = ...,
        durability: Durability = ...,
        conditions: Conditions = ...,
    ) -> ValuePut | None:
        """As ``begin_put``; None, and nothing is begun, where something must be waited for."""
        ...

    async def begin_put(
        self,
        namespace: str,
        key: bytes,
        payload_bytes: int,
        *,
        content_type: str = ...,
        metadata: tuple[tuple[str, str], ...] = ...,
        expires_at: int = ...,
        parts: Sequence[Part] = ...,
        durability: Durability = ...,
        conditions: Conditions = ...,
    ) -> ValuePut: ...

    async def delete(
        self, namespace: str, key: bytes, *, conditions: Conditions = ..., durability: Durability = ...
    ) -> int: ...

    async def touch(
        self,
        namespace: str,
        key: bytes,
        *,
        expires_at: int,
        conditions: Conditions = ...,
        durability: Durability = ...,
    ) -> EntrySketch: ...

    async def update(
        self,
        namespace: str,
        key: bytes,
        *,
        content_type: str | None = ...,
        metadata: tuple[tuple[str, str], ...] | None = ...,
        expires_at: int | None = ...,
        conditions: Conditions = ...,
        durability: Durability = ...,
    ) -> PutResult: ...

    @property
    def max_batch_bytes(self) -> int: ...

    def exists_many(self, namespace: str, keys: Sequence[bytes]) -> list[EntrySketch | RawblockdError | None]: ...

    def open_many(
        self, namespace: str, keys: Sequence[bytes], *, lease_id: str = ..., until_error: bool = ...
    ) -> AsyncGenerator[Sequence[EntryReader | RawblockdError], None]:
        """Some at a time, in order, all or up to the first error; the readers of a list are closed before the next list
        is asked for."""
        ...

    async def commit_many(self, puts: Sequence[Any]) -> list[PutResult | RawblockdError]:
        """``puts`` are staged ones of this engine."""
        ...

    async def delete_many(
        self, namespace: str, keys: Sequence[bytes], *, durability: Durability = ...
    ) -> list[int | RawblockdError]: ...

    async def list_entries(
        self, namespace: str, *, prefix: bytes = ..., cursor: str = ..., limit: int = ...
    ) -> ListingPage: ...

    def namespace_settings(self, namespace: str) -> NamespaceSettings: ...

    def expires_at(self, namespace: str, ttl_seconds: int | None) -> int: ...

    def namespace(self, namespace: str) -> NamespaceView: ...

    def namespaces(self) -> list[NamespaceView]: ...

    async def set_namespace(self, namespace: str, settings: NamespaceSettings) -> tuple[NamespaceView, bool]: ...

    async def wipe_namespace(self, namespace: str) -> NamespaceView: ...

    def lease(
        self, namespace: str, keys: Sequence[bytes], *, ttl_seconds: float, owner: str = ..., lease_id: str = ...
    ) -> LeaseResult: ...

    def release(self, lease_id: str) -> None: ...

    def leases(self) -> list[LeaseView]: ...

    async def take_snapshot(self, namespace: str, *, ttl_seconds: float, owner: str = ...) -> SnapshotView: ...

    def snapshot(self, snapshot_id: str) -> SnapshotView: ...

    def snapshots(self) -> list[SnapshotView]: ...

    def end_snapshot(self, snapshot_id: str) -> None: ...

    def snapshot_digests(self, snapshot_id: str) -> AsyncGenerator[bytes, None]: ...

    async def export_entries(self, snapshot_id: str, *, start: int = ..., since: int = ...) -> int: ...

    def export(
        self, snapshot_id: str, *, start: int = ..., since: int = ...
    ) -> AsyncGenerator[tuple[int, Row, EntryReader | RawblockdError], None]:
        """Position, row and reader of each entry; a reader is closed before the next one is asked for."""
        ...

    async def begin_import(self, namespace: str, *, ttl_seconds: float, owner: str = ...) -> ImportView: ...

    def begin_import_part(self, import_id: str, part: str) -> PartUpload: ...

    async def import_differences(self, import_id: str) -> list[Difference]: ...

    async def commit_import(self, import_id: str, policy: ImportPolicy) -> ImportResult: ...

    async def abort_import(self, import_id: str) -> None: ...

    def import_view(self, import_id: str) -> ImportView: ...

    def imports(self) -> list[ImportView]: ...

    def status(self) -> EngineStatus: ...

    async def checkpoint(self) -> CheckpointStatus: ...

    async def acknowledge(self) -> RecoveryStatus: ...

    async def retry(self) -> RetryResult: ...

    def skipped(self, start: int, limit: int) -> Sequence[SkippedView]: ...
