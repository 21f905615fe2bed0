"""Many gets as one: the device reads ahead of what is handed out, in parallel, without a task for each.

Small records whose row is plainly live are read ahead; whatever is not plain (a miss, a large record, a record that
does not verify, no buffer at hand) is left to the ordinary read of that key, in its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from storage.buffers import Buffer
from storage.commit import Commit
from storage.counters import EngineCounters
from storage.entries import EntrySketch
from storage.errors import KeyInvalid, LeaseNotFound, RawblockdError, ReadFailed
from storage.format.layout import Undecodable, round_up
from storage.format.row import Row
from storage.identity import Identity
from storage.index import Index
from storage.keys import check_key
from storage.leases import Held
from storage.limits import TRANSFER_MAX_BYTES
from storage.namespace_settings import NamespaceSettings
from storage.read_path import EntryReader, ReadPath

AHEAD_READS = 64
AHEAD_BYTES = 8 << 20
"""Reads of one batch that may be ahead of what is handed out: the depth that saturates a device, 8 MiB of buffers."""


@dataclass(slots=True)
class _Ahead:
    row_id: int
    row: Row
    buffer: Buffer
    size: int
    io: asyncio.Future[None]
    settings: NamespaceSettings | None
    """Of the entry's namespace, if the read counts for the entry's expiry."""


class BatchReads:
    def __init__(
        self, path: ReadPath, index: Index, commit: Commit, identity: Identity, counters: EngineCounters
    ) -> None:
        self._path = path
        self._index = index
        self._commit = commit
        self._identity = identity
        self._counters = counters

    def sketches(self, namespace: str, keys: Sequence[bytes]) -> list[EntrySketch | RawblockdError | None]:
        """What is known of entries without I/O; None where there is none, KeyInvalid for what is no key."""
        known = self._index.namespaces.by_name.get(namespace)
        sketches: list[EntrySketch | RawblockdError | None] = []
        for key in keys:
            try:
                check_key(key)
            except KeyInvalid as error:
                sketches.append(error)
                continue
            held = self.find(known.namespace_id, key) if known is not None else None
            sketches.append(EntrySketch(held[1].write_id, held[1].payload_bytes, held[1].expires_at) if held else None)
        return sketches

    def find(self, namespace_id: int, key: bytes) -> Held | None:
        """The published, unexpired row of a key."""
        found = self._commit.published(self._identity.digest(namespace_id, key))
        return None if found is None or self._commit.is_expired(found[1]) else found

    def open(
        self, namespace: str, keys: Sequence[bytes], leased: Callable[[bytes], Held | None]
    ) -> AsyncGenerator[tuple[int, EntryReader | RawblockdError], None]:
        """A reader or an error for each key, in order. ``leased`` says what a lease holds of a key.

        The caller closes a reader before it asks for the next one.
        """

        def begin(position: int) -> _Ahead | None:
            key = keys[position]
            known = self._index.namespaces.by_name.get(namespace)
            if known is None or not key:
                return None
            try:
                held, settings = leased(key), None
            except LeaseNotFound:
                return None  # it ended meanwhile: the key's own read says so
            if held is None:
                held, settings = self.find(known.namespace_id, key), known.settings
            return self._begin(held, settings) if held is not None else None

        def read(position: int) -> Awaitable[EntryReader]:
            return self._path.open(namespace, keys[position], leased=leased(keys[position]))

        return self._run(len(keys), begin, read, lambda position: keys[position])

    def open_held(self, rows: Iterable[Held]) -> AsyncGenerator[tuple[int, EntryReader | RawblockdError], None]:
        """A reader or an error for each row that somebody holds, in order, whatever became of it in the table."""
        held = list(rows)
        return self._run(
            len(held),
            lambda position: self._begin(held[position]),
            lambda position: self._path.open_held(held[position]),
            lambda _: None,
        )

    async def _run(
        self,
        count: int,
        begin: Callable[[int], _Ahead | None],
        read: Callable[[int], Awaitable[EntryReader]],
        key_of: Callable[[int], bytes | None],
    ) -> AsyncGenerator[tuple[int, EntryReader | RawblockdError], None]:
        """``begin`` starts a read ahead if it can; ``read`` is the ordinary read of what was not read ahead."""
        window: deque[_Ahead | None] = deque()
        ahead_bytes = begun = 0
        try:
            for position in range(count):
                while begun < count and len(window) < AHEAD_READS and ahead_bytes < AHEAD_BYTES:
                    ahead = begin(begun)
                    ahead_bytes += ahead.size if ahead is not None else 0
                    window.append(ahead)
                    begun += 1
                first = window.popleft()
                reader: EntryReader | RawblockdError | None = None
                if first is not None:
                    ahead_bytes -= first.size
                    reader = await self._finish(first, key_of(position))
                if reader is None:
                    try:
                        reader = await read(position)
                    except RawblockdError as error:
                        reader = error
                yield position, reader
        finally:
            for ahead in window:
                if ahead is not None:
                    self._drop(ahead)

    def _begin(self, held: Held, settings: NamespaceSettings | None = None) -> _Ahead | None:
        """Start reading a record, if it is a small one and there is a buffer for it."""
        row_id, row = held
        if row.record_bytes > TRANSFER_MAX_BYTES:
            return None
        size = round_up(row.record_bytes, self._index.geometry.block_bytes)
        buffer = self._path.try_acquire(size)
        if buffer is None:
            return None
        self._index.slots.hold(row_id)
        offset = self._index.table.slot_offset(row_id)
        return _Ahead(row_id, row, buffer, size, self._path.read(offset, buffer.view[:size]), settings)

    async def _finish(self, ahead: _Ahead, key: bytes | None) -> EntryReader | None:
        """The reader of a record read ahead; None if it failed or is another key's."""
        kept = False
        try:
            await ahead.io
            header = self._path.verified(ahead.buffer.view[: ahead.size], ahead.row, key)
            kept = header is not None
        except (ReadFailed, Undecodable):
            return None
        finally:
            if not kept:
                self._drop(ahead)
        assert header is not None
        if key is not None:
            self._path.note_hit(ahead.row_id, ahead.row)
        if ahead.settings is not None:
            self._path.slide(ahead.settings, ahead.row)
        return EntryReader(self._path, ahead.row_id, ahead.row, header, ahead.buffer)

    def _drop(self, ahead: _Ahead) -> None:
        """Let go of a read, the slot as soon as the device is done with it."""
        if ahead.io.done():
            if not ahead.io.cancelled():
                ahead.io.exception()
            ahead.buffer.release()
            self._path.space.let_go(ahead.row_id)
        else:
            ahead.buffer.hold_for(ahead.io)
            ahead.buffer.release()
            ahead.io.add_done_callback(lambda io: self._dropped(io, ahead.row_id))

    def _dropped(self, io: asyncio.Future[None], row_id: int) -> None:
        io.exception()  # nobody reads it: a failure is met by the next read
        self._path.space.let_go(row_id)
